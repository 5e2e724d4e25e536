"""`tailrace bench` as a program: flags, files, exit statuses, Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tailrace.backends.fake import FakeBackend
from tailrace.bench.options import Options
from tailrace.bench.report import read
from tailrace.cli.main import main
from tailrace.options import dashed
from tests.serving import live, make_state, until

LOAD = ("--concurrency", "2", "--input", "20", "--output", "3", "--warmup", "0")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tailrace", "bench", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


async def program(*arguments: str, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tailrace", "bench", *arguments, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env=env,
    )  # fmt: skip


def test_every_option_is_a_flag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--help") == 0
    out = capsys.readouterr().out
    assert [spec.name for spec in fields(Options) if f"{dashed(spec.name)} " not in out] == []
    assert "compare" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rate", "1", "--concurrency", "1"), "--rate"),
        (("--url", "ftp://x"), "--url"),
        (("--url", "http://127.0.0.1:9"), "no answer from http://127.0.0.1:9 (--url)"),
        (("--json", "/no/such/folder/out.json"), "--json"),
        (("--plot", "out.jpeg"), "--plot"),
        (("compare", "/no/a.json", "/no/b.json"), "/no/a.json"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert call(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert said in error


async def test_a_run_ends_in_a_table_and_files(tmp_path: Path) -> None:
    result, plot = tmp_path / "out.json", tmp_path / "out.html"
    async with live(make_state(FakeBackend(max_context=2048))) as base:
        process = await program("--url", base, *LOAD, "--requests", "5", "--json", str(result), "--plot", str(plot))
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert b"5 of 5 requests answered" in out
    assert read(result)["runs"][0]["summary"]["tokens"]["output"] == 15
    assert plot.read_text().count("<svg") == 6


async def test_ctrl_c_ends_with_what_was_measured() -> None:
    backend = FakeBackend(max_context=2048, max_sequences=2)
    async with live(make_state(backend)) as base:
        process = await program("--url", base, *LOAD, "--duration", "10m")
        await until(lambda: len(backend.prompts) > 60)
        process.send_signal(signal.SIGINT)
        out, error = await process.communicate()
    assert process.returncode == 130
    assert b"requests answered in" in out
    assert b"note: stopped early" in out
    assert b"Traceback" not in error


async def test_nothing_answered_is_status_1() -> None:
    async with live(make_state(FakeBackend(max_context=64))) as base:
        process = await program("--url", base, *LOAD[:2], "--input", "100", "--warmup", "0", "--requests", "2")
        out, _ = await process.communicate()
    assert process.returncode == 1
    assert b"400 context_length_exceeded" in out
