"""Files that appear whole or not at all, and locks between processes.

A file is written beside its place under a temporary name, locked while its writer lives, and renamed when complete.
A temporary file that nobody locks belongs to a process that died: `sweep` removes it, without looking at any clock.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

TEMPORARY = ".partial"  # ending of files and folders that are not complete


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends well and vanishes when it does not (Ctrl-C too)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked_temporary(path) as file:
        temporary = Path(file.name)
        try:
            yield file
            file.flush()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder that is gone after the block, or swept later if this process dies."""
    parent.mkdir(parents=True, exist_ok=True)
    with _locked_temporary(parent / "work") as marker:
        folder = Path(marker.name + ".d")
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            Path(marker.name).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path` alone among all processes and threads, after `on_wait` if it has to wait for its turn.
    The empty file stays, so that all who come later lock the same one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep(folder: Path) -> None:
    """Remove what crashed writers left in `folder`."""
    for temporary in folder.glob(f"*{TEMPORARY}"):
        with contextlib.suppress(OSError), temporary.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(f"{temporary}.d", ignore_errors=True)
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked_temporary(path: Path) -> Iterator[IO[bytes]]:
    while True:
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
        with temporary.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not temporary.exists():  # a sweep came between creating and locking
                continue
            yield file
            return
