"""A closed Timeline as a row of the ledger, and back."""

from __future__ import annotations

import pytest

from tailrace.clock import ManualClock
from tailrace.control.admission import AsJob, Reject
from tailrace.database.entry_id import entry_ids_from
from tailrace.errors import QueueFull
from tailrace.observe.entry import About, Entry, entry, is_row
from tailrace.observe.record import Records, record
from tailrace.observe.timeline import Phase, Timeline
from tailrace.types import Formats, Traits

ABOUT = About("mine", "chatcmpl-1", "chat", "acme", "ci", 200)


def closed(outcome: str = "ok", **facts: object) -> Timeline:
    """Ten milliseconds in each of three phases, and then one."""
    clock = ManualClock()
    timeline = Timeline(clock)
    timeline.facts.update(facts)
    for phase in (Phase.WAIT, Phase.PREFILL, Phase.DECODE, Phase.POST):
        clock.advance(0.01)
        timeline.enter(phase)
    clock.advance(0.001)
    timeline.close(outcome)
    return timeline


def made(timeline: Timeline, about: About = ABOUT, ended: float = 1000.0) -> Entry:
    return entry(about, timeline, server="here", ended=ended)


def test_what_a_row_says() -> None:
    traits = Traits("chat", tools=True, attachments=2, task="triage", origin="job")
    facts = {
        "traits": traits, "formats": Formats("nib4+int8", "int8"), "asked": "m", "base_model": "model", "stream": True,
        "class": "agent", "class_reason": "tools", "bucket": "<256", "deadline": 1.0, "predicted_ttft": 0.25,
        "longest": 5, "prompt_tokens": 7, "kv_blocks": 2, "device_us": 1200,
    }  # fmt: skip
    found = made(closed(**facts))
    assert (found.opened, found.ended, found.total_us) == (pytest.approx(1000 - 0.041), 1000.0, 41_000)
    assert found.phases == {"ingress": 10_000, "wait": 10_000, "prefill": 10_000, "decode": 10_000, "post": 1000}
    assert (found.queue_us, found.ttft_us, found.tpot_us) == (10_000, 30_000, 2500)
    assert (found.task, found.tools, found.attachments, found.origin) == ("triage", True, 2, "job")
    assert (found.weights_format, found.kv_format) == ("nib4+int8", "int8")
    assert (found.model_asked, found.model, found.streamed) == ("m", "model", True)
    assert (found.request_class, found.class_reason, found.bucket) == ("agent", "tools", "<256")
    assert (found.prompt_tokens, found.kv_blocks, found.device_us, found.price) == (7, 2, 1200, 0)
    assert (found.predicted_ttft, found.deadline_met) == (0.25, True)
    assert (found.outcome, found.status, found.error_code) == ("ok", 200, "")


def test_one_that_was_refused_before_anything_was_known() -> None:
    timeline = closed("rejected")
    error = QueueFull("full", retry_after=1.0)
    error.detail = {"scope": "all", "value": 5, "limit": 4}
    timeline.failed(error)
    found = made(timeline, About("r", "chatcmpl-2", "chat", "acme", "ci", 429))
    assert (found.status, found.error_code, found.request_class) == (429, "queue_full", "")
    assert found.decisions == {"error": {"param": None, "scope": "all", "value": 5, "limit": 4}}
    assert found.deadline_met is None and found.tpot_us is None


def test_a_row_is_read_as_it_was_written() -> None:
    decision = AsJob(Reject("no_time", 503, "all", 3.0, 2.0))
    found = made(closed(admission=decision, band=1, limit={"limit": "concurrency"}))
    assert Entry.of_row(found.row()) == found and is_row(found.row())
    for wrong in ({"opened": "then"}, {"tenant": None}, {"phases": {}}, {"more": 1}):
        assert not is_row({**found.row(), **wrong})
    admission = found.decisions["admission"]
    assert (admission["decision"], admission["refusal"]["reason"]) == ("asjob", "no_time")


def test_what_a_caller_wrote_is_bounded_and_what_every_database_takes() -> None:
    assert made(closed(asked="a\0b" + "x" * 1000)).model_asked == "a\ufffdb" + "x" * 125
    assert made(closed(asked="\ud800")).model_asked == "?"


def test_ids_are_in_order_of_time() -> None:
    early, late = made(closed(), ended=1000.0), made(closed(), ended=2000.0)
    assert early.entry_id < entry_ids_from(1500.0) < late.entry_id
    assert early.entry_id != made(closed(), ended=1000.0).entry_id


def test_the_latest_are_found_by_any_id_and_by_their_tenant_alone() -> None:
    records, first = Records(), made(closed())
    records.add(first)
    again = made(closed(), About("mine", "chatcmpl-9", "chat", "acme"))
    records.add(again)
    assert records.find("mine", "acme") is again
    assert records.find("chatcmpl-1", "acme") is first and records.find(first.entry_id, "acme") is first
    assert records.find("mine", "other") is None and records.find("chatcmpl-2", "acme") is None
    for number in range(3000):
        records.add(made(closed(), About(f"r{number}", f"a{number}", "chat", "acme")))
    assert records.find("mine", "acme") is None and records.find("chatcmpl-1", "acme") is None
    assert record(records.find("a2999", "acme"))["id"] == "r2999"  # type: ignore[arg-type]
