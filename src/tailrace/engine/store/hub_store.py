"""Models from the hub on disk: each commit's files in a folder of their own, and what a name meant when it was pulled.

    {org}--{repo}/{commit}/{repo}/{files}     each file in place only when complete and verified
    {org}--{repo}/names/{digest}.json         a pulled name: its commit, files and sizes; written last

A name that is pulled stays what it was, whatever the hub does later: nothing here asks the network but `pull`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tailrace.engine.store.atomic import locked, replacing
from tailrace.engine.store.hub import UNFINISHED, HubCommit
from tailrace.engine.store.hub_name import Choice, HubName, choose
from tailrace.engine.store.wheel import Progress, require_room
from tailrace.frozen import frozen


@frozen
class HubModel:
    name: str
    commit: str
    path: Path
    size: int


@frozen
class _Record:
    name: str
    commit: str
    main: str
    files: dict[str, int]  # bytes by name


class HubStore:
    """Everything under `folder`."""

    def __init__(self, folder: Path, endpoint: str | None) -> None:
        self._folder = folder
        self._endpoint = endpoint

    def find(self, name: HubName) -> Path | None:
        """The file or folder of a pulled model."""
        record = _read(self._record(name))
        return None if record is None else self._complete(name, record)

    def models(self) -> Iterator[HubModel]:
        for path in sorted(self._folder.glob("*/names/*.json")):
            record = _read(path)
            if record is None:
                continue
            home = path.parents[1]
            place = _place(home, record.commit, home.name.partition("--")[2]) / record.main
            yield HubModel(record.name, record.commit, place, sum(record.files.values()))

    def pull(self, name: HubName, progress: Progress) -> Path:
        """Raises StoreError, and OSError of the disk."""
        home = self._home(name)
        with locked(home / "lock", lambda: progress("waiting", 0, 0)):
            found = self.find(name)  # by the process that held the lock
            if found is not None:
                return found
            commit = HubCommit(name, self._endpoint)
            choice = choose(name, commit.files)
            place = _place(home, commit.sha, name.repo.partition("/")[2])
            place.mkdir(parents=True, exist_ok=True)
            require_room(place, str(name), sum(file.size - _bytes_here(place / file.name) for file in choice.files))
            _fetch(commit, choice, place, progress)
            record = _Record(str(name), commit.sha, choice.main, {file.name: file.size for file in choice.files})
            with replacing(self._record(name)) as out:
                out.write(json.dumps(asdict(record)).encode())
            return place / choice.main

    def _complete(self, name: HubName, record: _Record) -> Path | None:
        place = _place(self._home(name), record.commit, name.repo.partition("/")[2])
        whole = all(_size(place / file) == size for file, size in record.files.items())
        return place / record.main if whole else None

    def _home(self, name: HubName) -> Path:
        return self._folder / name.repo.replace("/", "--")

    def _record(self, name: HubName) -> Path:
        return self._home(name) / "names" / f"{hashlib.sha256(str(name).encode()).hexdigest()[:24]}.json"


def _fetch(commit: HubCommit, choice: Choice, place: Path, progress: Progress) -> None:
    before, total = 0, sum(file.size for file in choice.files)
    for file in choice.files:
        if not (place / file.name).is_file():
            commit.fetch(file, place / file.name, _Sum(progress, before, total))
        before += file.size
        progress("downloading", before, total)


def _place(home: Path, commit: str, repo: str) -> Path:
    """Ends in the repository's name, which is so the model's."""
    return home / commit[:16] / repo


def _read(path: Path) -> _Record | None:
    try:
        record = _Record(**json.loads(path.read_bytes()))
        return record if isinstance(record.files, dict) and isinstance(record.commit, str) else None
    except (OSError, ValueError, TypeError):
        return None


@frozen
class _Sum:
    """Bytes of one file to bytes of all."""

    progress: Progress
    before: int
    total: int

    def __call__(self, done: int) -> None:
        self.progress("downloading", self.before + done, self.total)


def _bytes_here(path: Path) -> int:
    return _size(path) or _size(path.with_name(path.name + UNFINISHED)) or 0


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
