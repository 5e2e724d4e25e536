"""Files appear whole or not at all; leftovers go, what is in use stays."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tailrace.engine.store.atomic import locked, replacing, sweep, temporary_folder


def test_a_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    with replacing(target) as file:
        file.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
def test_a_fault_leaves_the_old_file_and_nothing_else(tmp_path: Path, fault: type[BaseException]) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(fault), replacing(target) as file:
        file.write(b"half")
        raise fault
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


@pytest.mark.parametrize("fault", [None, RuntimeError, KeyboardInterrupt])
def test_a_temporary_folder_goes_away(tmp_path: Path, fault: type[BaseException] | None) -> None:
    def work() -> None:
        with temporary_folder(tmp_path) as folder:
            (folder / "download").write_bytes(b"x")
            if fault is not None:
                raise fault

    if fault is None:
        work()
    else:
        with pytest.raises(fault):
            work()
    assert list(tmp_path.iterdir()) == []


def test_sweep_takes_leftovers_and_spares_work_in_progress(tmp_path: Path) -> None:
    (tmp_path / "old.123.partial").write_bytes(b"")
    (tmp_path / "old.123.partial.d").mkdir()
    (tmp_path / "old.123.partial.d" / "half.whl").write_bytes(b"half")
    (tmp_path / "done").write_bytes(b"done")
    with replacing(tmp_path / "new") as file, temporary_folder(tmp_path) as folder:
        file.write(b"new")
        (folder / "download").write_bytes(b"x")
        sweep(tmp_path)
        assert (folder / "download").read_bytes() == b"x"
        assert not list(tmp_path.glob("old*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done", "new"]


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    waiting, entered = threading.Event(), threading.Event()

    def second() -> None:
        with locked(tmp_path / "lock", waiting.set):
            entered.set()

    with locked(tmp_path / "lock", lambda: pytest.fail("nobody else holds it")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(120)
        assert not entered.is_set()
    thread.join(120)
    assert entered.is_set()
