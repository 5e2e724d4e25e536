"""`tailrace doctor`: the examination as a table or as JSON, and an exit status."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from tailrace.cli.output import console
from tailrace.clock import SystemClock
from tailrace.config import Loaded
from tailrace.doctor.examine import examine
from tailrace.doctor.finding import Finding, Level
from tailrace.doctor.machine import Machine
from tailrace.doctor.speed import known_speed, measured_speed
from tailrace.terminal import fraction_bars

_MARKS = {Level.OK: ("green", "OK"), Level.WARN: ("yellow", "WARN"), Level.FAIL: ("bold red", "FAIL")}


def run_doctor(loaded: Loaded, *, measure: bool, as_json: bool, machine: Machine | None = None) -> int:
    """Print what was found; 1 when something would keep `serve` from starting, else 0."""
    machine, engine = machine or Machine(), loaded.config.engine
    with fraction_bars(show=measure) as progress:
        speed = (
            measured_speed(engine, SystemClock(), progress)
            if measure
            else known_speed(engine, lambda: machine.ranks(engine))
        )
        findings = list(examine(machine, loaded.config, speed))
    (print_json if as_json else print_table)(findings)
    return int(any(finding.level is Level.FAIL for finding in findings))


def print_json(findings: Sequence[Finding]) -> None:
    ok = all(finding.level is not Level.FAIL for finding in findings)
    print(json.dumps({"ok": ok, "findings": [asdict(finding) for finding in findings]}, indent=2))


def print_table(findings: Sequence[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for finding in findings:
        style, mark = _MARKS[finding.level]
        text = Text(finding.text)
        if finding.advice:
            text.append(f"\n-> {finding.advice}", style="dim" if finding.level is Level.OK else style)
        table.add_row(Text(mark, style=style), Text(finding.check, style="bold"), text)
    console().print(table)
    counts = Counter(finding.level for finding in findings)
    console().print(f"[dim]{counts[Level.FAIL]} to fix, {counts[Level.WARN]} to look at, {counts[Level.OK]} fine[/]")
