"""`tailrace simulate`: the table, the file, the charts; mistakes name their flag."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.errors import ConfigError
from tailrace.options import dashed
from tailrace.plan.options import Options

LINES = "arrival_s,client,input_tokens,output_tokens\n" + "".join(
    f"{i / 4},c{i % 2},{80 + i % 7 * 60},{4 + i % 9}\n" for i in range(40)
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(LINES)
    return str(path)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_simulation_is_shown_and_written(trace: str, tmp_path: Path) -> None:
    file, page = tmp_path / "out.json", tmp_path / "out.html"
    shown = run(trace, "--slo", "ttft=2s", "--json", str(file), "--plot", str(page), "--seed", "3")
    assert "40 of 40 requests answered" in shown
    assert "c0" in shown
    found = json.loads(file.read_text())
    assert found["tailrace_simulation"] == 1
    assert found["summary"]["answered"] == len(found["requests"]) == 40
    assert found["options"]["seed"] == 3
    assert page.read_text().count("<svg") == 6


def test_flags_reach_the_simulation(trace: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    flags = ["--rate-scale", "2", "--length-scale", "0.5", "--window", "2-6", "--max-output", "3", "--requests", "5"]
    run(trace, *flags, "--json", str(file), "--baseline", "static", "--baseline", "reserve", "--steps", "1,0,0,0,0")
    requests = json.loads(file.read_text())["requests"]
    assert len(requests) == 5
    assert requests[1]["arrival"] - requests[0]["arrival"] == pytest.approx(0.125)
    assert {request["output_tokens"] for request in requests} <= {2, 3}
    assert json.loads(file.read_text())["machine"]["coefficients"] == [1, 0, 0, 0, 0]


def test_settings_count(trace: str, tmp_path: Path) -> None:
    file, settings = tmp_path / "out.json", tmp_path / "tailrace.toml"
    settings.write_text("[engine]\nmax_sequences = 1\n[control]\nmax_waiting_requests = 1\n")
    run(trace, "--config", str(settings), "--rate-scale", "50", "--json", str(file))
    assert json.loads(file.read_text())["summary"]["refusals"]["by_reason"]["queue_full"] > 10


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--baseline", "best"], "--baseline 'best': accepted is static"),
        (["--baseline", "static", "--baseline", "dynamic"], "exclude each other"),
        (["--window", "9"], "--window"),
        (["--window", "9-4"], "--window"),
        (["--window", "90-99"], "nothing arrives then"),
        (["--rate-scale", "0"], "--rate-scale"),
        (["--retries", "-1"], "--retries"),
        (["--steps", "fast"], "--steps"),
        (["--slo", "fast"], "--slo"),
        (["--plot", "x.gif"], "--plot"),
        (["--json", "/nowhere/x.json"], "--json"),
    ],
)
def test_mistakes_name_their_flag(trace: str, flags: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run(trace, *flags)
    assert said in raised.value.message


def test_a_bad_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,5,many\n")
    with pytest.raises(ConfigError, match=r"TRACE .*bad\.csv, line 2: column output_tokens is 'many'"):
        run(str(path))


def test_every_flag_is_in_the_help() -> None:
    shown = CliRunner().invoke(app, ["simulate", "--help"]).output
    assert [spec.name for spec in fields(Options) if f"{dashed(spec.name)} " not in shown] == []
