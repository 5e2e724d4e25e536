"""Trace context from headers: the standard's form, and nothing else."""

from __future__ import annotations

import pytest

from tailrace.observe.trace_context import TraceContext

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def of(*values: str, state: tuple[str, ...] = ()) -> TraceContext:
    headers = [(b"traceparent", value.encode()) for value in values]
    return TraceContext.of([*headers, *((b"tracestate", value.encode()) for value in state), (b"host", b"x")], 0.0)


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"00-{TRACE}-{PARENT}-ff", True),
        (f"00-{TRACE}-{PARENT}-02", False),
        (f" 00-{TRACE}-{PARENT}-01 ", True),
        (f"cc-{TRACE}-{PARENT}-01", True),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be", True),
    ],
)
def test_a_trace_goes_on(value: str, sampled: bool) -> None:
    context = of(value)
    assert (context.trace, context.parent, context.chosen) == (TRACE, PARENT, sampled)
    assert len(context.span) == 16 and context.span != PARENT
    assert context.header() == f"00-{TRACE}-{context.span}-{'01' if sampled else '00'}".encode()


@pytest.mark.parametrize(
    "value",
    [
        "", "x", "00", f"00-{TRACE}-{PARENT}", f"00-{TRACE}-{PARENT}-1", f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01", f"00-{TRACE}x-{PARENT}-01", f"00-{TRACE}-{PARENT}-01\nx",
        f"cc-{TRACE}-{PARENT}-01.x", "00-" + "é" * 40, "0" * 100_000,
    ],
)  # fmt: skip
def test_anything_else_begins_a_trace(value: str) -> None:
    context = of(value)
    assert (context.parent, context.chosen, context.state) == ("", False, "")
    assert context.trace != TRACE and len(context.trace) == 32 and len(context.span) == 16


def test_two_parents_are_none() -> None:
    assert of(f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01").parent == ""


def test_the_state_is_passed_on_when_it_is_short() -> None:
    parent = f"00-{TRACE}-{PARENT}-01"
    assert of(parent, state=("a=1", "b=2")).state == "a=1,b=2"
    assert of(parent, state=("a=" + "x" * 600,)).state == ""
    assert of(state=("a=1",)).state == ""


def test_the_ratio_chooses_where_no_caller_does() -> None:
    drawn = [TraceContext.of((), 0.25) for _ in range(2000)]
    assert [context.chosen for context in drawn] == [int(context.trace[16:], 16) < 2**62 for context in drawn]
    assert {context.chosen for context in drawn} == {True, False}
    assert TraceContext.of((), 1.0).chosen is True
    assert TraceContext.of([(b"traceparent", f"00-{TRACE}-{PARENT}-00".encode())], 1.0).chosen is False
