"""The numbers beside the bar."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

from tailrace.clock import ManualClock
from tailrace.llm.meter import Meter, metered


def test_speed_counts_generated_tokens_and_prompts_where_none_are() -> None:
    clock, done = ManualClock(), []
    meter = Meter(clock, lambda: done.append(1))
    assert str(meter) == ""
    clock.advance(2.0)
    meter.tell(0, 3000)
    assert (str(meter), len(done)) == ("1,500 tok/s", 1)
    meter.tell(10, 0)
    assert (str(meter), len(done)) == ("5 tok/s", 1)


def test_nothing_is_drawn_without_a_terminal(capfd: object) -> None:
    with metered("working", 2, ManualClock(), show=True) as meter:
        meter.tell(1, 5)
    assert capfd.readouterr() == ("", "")  # type: ignore[attr-defined]


def everything(terminal: int) -> bytes:
    """Nobody writes any more, but the kernel may hand out what was written in parts; an error tells the end."""
    seen = b""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 1 << 16):
            seen += part
    return seen


def test_a_terminal_sees_the_bar() -> None:
    code = (
        "from tailrace.clock import ManualClock\n"
        "from tailrace.llm.meter import metered\n"
        "clock = ManualClock()\n"
        "with metered('working', 2, clock, show=True) as meter:\n"
        "    clock.advance(1.0); meter.tell(7, 5); meter.tell(0, 5)\n"
    )
    parent, child = pty.openpty()
    environ = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", code], stderr=child, env=environ, check=True)
    os.close(child)
    seen = everything(parent).decode()
    os.close(parent)
    assert "working" in seen
    assert "2/2" in seen
    assert "7 tok/s" in seen
