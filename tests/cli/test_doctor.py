"""The command: a table, JSON, an exit status."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest

from tailrace.cli.doctor import run_doctor
from tailrace.cli.main import main
from tailrace.config import load
from tests.doctor.support import machine, refusing
from tests.tiny import write_tiny_gguf


@pytest.fixture
def flags(tmp_path: Path) -> dict[str, object]:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    return {"engine.model": str(model), "engine.store": str(tmp_path / "store"), "engine.threads": 2}


def test_json_is_for_programs(flags: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load(environ={}, flags=flags)
    assert run_doctor(loaded, measure=False, as_json=True, machine=machine(tmp_path)) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert [finding["check"] for finding in report["findings"]] == [
        "installation", "store", "port", "processor", "kernels", "threads", "memory nodes", "other work",
        "thread pools", "memory", "memory limit", "huge pages", "model", "text", "needs", "fits", "speed",
    ]  # fmt: skip
    assert set(report["findings"][0]) == {"check", "level", "text", "advice", "facts"}
    taken = machine(tmp_path, listen=refusing(OSError(errno.EADDRINUSE, "Address already in use")))
    assert run_doctor(loaded, measure=False, as_json=True, machine=taken) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_the_table_says_what_to_do(
    flags: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    broken = machine(
        tmp_path,
        {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"},
        listen=refusing(OSError(errno.EADDRINUSE, "Address already in use")),
    )
    assert run_doctor(load(environ={}, flags=flags), measure=False, as_json=False, machine=broken) == 1
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["FAIL", "port", "127.0.0.1:8000:", "Address", "already", "in", "use"] in lines
    assert "-> as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" in out
    assert "1 to fix, 1 to look at, 15 fine" in out


def test_the_program_ends_with_the_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = ["doctor", str(tmp_path / "absent.gguf"), "--json", "--port", "0", "--store", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["tailrace", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1


def test_measuring(flags: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(load(environ={}, flags=flags), measure=True, as_json=True, machine=machine(tmp_path)) == 0
    speed = json.loads(capsys.readouterr().out)["findings"][-1]
    assert speed["facts"]["source"] == "measured now"
