"""The file in which rows wait: order, bounds, what a killed server leaves, disks that are full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.observe import spill as module
from tailrace.observe.spill import Spill


def rows(first: int, last: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(first, last)]


def spill(folder: Path, most: int = 10_000) -> Spill:
    made = Spill(folder, most)
    made.open()
    return made


def test_rows_are_read_in_order_until_they_are_forgotten(tmp_path: Path) -> None:
    kept = spill(tmp_path)
    assert kept.append(rows(0, 5)) == 5
    assert kept.read(2) == kept.read(2) == rows(0, 2)
    kept.forget()
    assert kept.append(rows(5, 7)) == 2
    assert kept.read(100) == rows(2, 7)
    kept.forget()
    assert (kept.read(100), kept.nbytes, (tmp_path / "ledger.0.jsonl").stat().st_size) == ([], 0, 0)
    assert kept.append(rows(7, 8)) == 1 and kept.read(9) == rows(7, 8)


def test_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    kept = spill(tmp_path / "new")
    assert kept.read(9) == [] and not (tmp_path / "new").exists()
    assert kept.append(rows(0, 1)) == 1
    assert (tmp_path / "new" / "ledger.0.jsonl").stat().st_mode & 0o777 == 0o600


def test_more_than_a_read_takes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 10)
    kept = spill(tmp_path)
    kept.append(rows(0, 100))
    assert kept.read(50) == rows(0, 50)
    kept.close()
    again = spill(tmp_path)
    assert again.read(1000) == rows(0, 100)


def test_its_size_is_bounded(tmp_path: Path) -> None:
    kept = spill(tmp_path, most=40)
    assert kept.append(rows(0, 9)) == 5 and kept.append(rows(5, 9)) == 0
    assert kept.read(9) == rows(0, 5)
    kept.forget()
    assert kept.append(rows(5, 9)) == 4


@pytest.mark.parametrize("left", [b'{"n": 0}\n{"n": 1}\n{"n', b'{"n": 0}\n{"n": 1}\n{"n": 2}'])
def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "ledger.0.jsonl").write_bytes(left)
    kept = spill(tmp_path)
    assert kept.torn == 1
    kept.append(rows(2, 3))
    assert kept.read(9) == rows(0, 3)


def test_a_line_that_is_no_row_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "ledger.0.jsonl").write_bytes(b'{"n": 0}\n\xff\xfe\n[]\n{"n": 1}\n')
    kept = spill(tmp_path)
    assert kept.read(9) == rows(0, 2) and kept.torn == 2
    kept.forget()
    assert kept.nbytes == 0


def test_nothing_but_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "ledger.0.jsonl").write_bytes(b"x" * 100)
    kept = spill(tmp_path)
    assert (kept.torn, kept.nbytes, kept.read(9)) == (1, 0, [])


def test_servers_of_one_folder_have_files_of_their_own(tmp_path: Path) -> None:
    first, second = spill(tmp_path), spill(tmp_path)
    first.append(rows(0, 2))
    second.append(rows(2, 4))
    assert first.read(9) == rows(0, 2) and second.read(9) == rows(2, 4)
    first.close()
    second.close()
    third = spill(tmp_path)  # what both have left
    assert third.read(9) == rows(2, 4)  # others' first
    third.forget()
    assert third.read(9) == rows(0, 2)
    third.forget()
    assert third.nbytes == 0
    assert spill(tmp_path).read(9) == []


def test_a_disk_that_is_full_keeps_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = spill(tmp_path)
    kept.append(rows(0, 2))
    real = os.pwrite

    def half(descriptor: int, data: bytes, at: int) -> int:
        if len(data) < 10:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: len(data) - 5], at)

    monkeypatch.setattr(os, "pwrite", half)
    assert kept.append(rows(2, 9)) == 0
    monkeypatch.setattr(os, "pwrite", real)
    assert kept.append(rows(9, 10)) == 1
    assert kept.read(99) == [*rows(0, 2), *rows(9, 10)]


def test_a_folder_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = spill(tmp_path / "file" / "folder")
    assert kept.append(rows(0, 2)) == 0 and kept.read(9) == [] and kept.nbytes == 0
