"""A digest is remembered while nothing about the file changed, and never when something did."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tailrace.engine.store import digest
from tailrace.engine.store.digest import remembered_sha256, sha256_file

LATER_NS = 10_000_000_000


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is read in full."""
    seen: list[Path] = []

    def counting(path: Path) -> str:
        seen.append(path)
        return sha256_file(path)

    monkeypatch.setattr(digest, "sha256_file", counting)
    return seen


def settle(folder: Path, by: int | None = None) -> None:
    """Date the records, `by` then, or as if the file had rested when it was read."""
    for record in folder.iterdir():
        later = by or record.stat().st_mtime_ns + LATER_NS
        os.utime(record, ns=(later, later))


def test_progress_and_value(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (digest.CHUNK + 5))
    heard: list[int] = []
    assert sha256_file(path, heard.append) == hashlib.sha256(b"x" * (digest.CHUNK + 5)).hexdigest()
    assert heard == [digest.CHUNK, digest.CHUNK + 5]


def test_a_settled_file_is_read_once(tmp_path: Path, reads: list[Path]) -> None:
    path, folder = tmp_path / "file", tmp_path / "digests"
    path.write_bytes(b"content")
    first = remembered_sha256(path, folder)
    settle(folder)
    assert remembered_sha256(path, folder) == first == hashlib.sha256(b"content").hexdigest()
    assert len(reads) == 1


def test_a_file_that_just_changed_is_read_again(tmp_path: Path, reads: list[Path]) -> None:
    """Its next change might carry the same timestamp."""
    path, folder = tmp_path / "file", tmp_path / "digests"
    path.write_bytes(b"content")
    remembered_sha256(path, folder)
    settle(folder, by=path.stat().st_ctime_ns + digest.SETTLED_NS)
    remembered_sha256(path, folder)
    assert len(reads) == 2


def test_changed_content_of_equal_size_is_noticed(tmp_path: Path, reads: list[Path]) -> None:
    path, folder = tmp_path / "file", tmp_path / "digests"
    path.write_bytes(b"before")
    remembered_sha256(path, folder)
    settle(folder)
    changed = path.stat().st_mtime_ns + 1  # not within the same tick of the file system's clock
    path.write_bytes(b"behind")
    os.utime(path, ns=(changed, changed))
    assert remembered_sha256(path, folder) == hashlib.sha256(b"behind").hexdigest()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"identity": 1, "sha256": 2}'])
def test_a_damaged_record_is_ignored(tmp_path: Path, content: bytes) -> None:
    path, folder = tmp_path / "file", tmp_path / "digests"
    path.write_bytes(b"content")
    expected = remembered_sha256(path, folder)
    for record in folder.iterdir():
        record.write_bytes(content)
    settle(folder)
    assert remembered_sha256(path, folder) == expected


def test_an_unwritable_folder_costs_only_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    assert remembered_sha256(path, path / "digests") == hashlib.sha256(b"content").hexdigest()
