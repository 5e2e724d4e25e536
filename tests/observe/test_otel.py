"""Traces and GenAI metrics at a real OTLP receiver: what it gets, and what happens when it is away."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tailrace.backends.fake import FakeBackend
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tailrace.clock import ManualClock
from tailrace.config import ObserveConfig
from tailrace.control.admission import AsJob, Reject
from tailrace.errors import ConfigError
from tailrace.observe.ended import Ended
from tailrace.observe.otel import collector as collecting
from tailrace.observe.otel.collector import Collector
from tailrace.observe.otel.telemetry import QUEUE, Telemetry
from tailrace.observe.timeline import Phase, Timeline
from tailrace.types import Traits
from tests.observe.otlp_receiver import Receiver, attributes, receiver
from tests.serving import chat, in_process, live, make_state, patient, until

CHAT = "/v1/chat/completions"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PATIENCE = 60.0


@contextmanager
def telemetry(url: str, ratio: float = 1.0, **settings: Any) -> Iterator[Telemetry]:
    """Sends everything at the end; sooner with `every`."""
    found = Telemetry(Collector(url, {"authorization": "Bearer token"}), ratio, **{"every": 60.0, **settings})
    found.start()
    try:
        yield found
    finally:
        found.close(PATIENCE)


def ended(outcome: str = "ok", status: int = 200, *, late: bool = False, **facts: Any) -> Ended:
    """A chat of 3.5 s: half a second of ingress, one of prefill, two of decode."""
    clock = ManualClock()
    timeline = Timeline(clock)
    clock.advance(0.5)
    timeline.enter(Phase.PREFILL)
    clock.advance(1.0)
    timeline.enter(Phase.DECODE)
    clock.advance(2.0)
    timeline.facts.update({"route": "chat", "model": "m", "prompt_tokens": 200, "completion_tokens": 5, "longest": 5})
    timeline.facts.update(facts, **({"deadline": 1.0} if late else {}))
    timeline.close(outcome)
    return Ended("r", "POST", CHAT, status, "acme", timeline, clock.wall())


def sent(*ends: Ended, ratio: float = 1.0) -> Receiver:
    with receiver() as found, telemetry(found.url, ratio) as watcher:
        for end in ends:
            watcher(end)
    assert watcher.lost == 0
    return found


async def served(body: dict[str, Any], headers: dict[str, str] | None = None, **settings: Any) -> tuple[Receiver, Any]:
    """What the receiver got of one request to a server, and the end that the server told of."""
    ends: list[Ended] = []
    with receiver() as found, telemetry(found.url) as watcher:
        state = make_state(**settings)
        state.plane.watchers, state.trace_ratio = (watcher, ends.append), 1.0
        async with in_process(state) as client:
            await client.post(CHAT, json=body, headers=headers)
        await asyncio.to_thread(watcher.close, PATIENCE)
    return found, ends[0]


async def test_a_request_is_a_span_with_its_phases_below_it() -> None:
    found, end = await served(chat(max_tokens=4), {"x-request-id": "mine"})
    root = found.root()
    assert root.name == "chat fake"
    assert root.parent_span_id == b""
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert root.end_time_unix_nano - root.start_time_unix_nano == end.timeline.total() * 1000
    assert root.end_time_unix_nano == round(end.wall * 1e6) * 1000
    phases = found.phases(root)
    assert len(found.spans()) == 1 + len(phases)
    lengths = {name: (span.end_time_unix_nano - span.start_time_unix_nano) // 1000 for name, span in phases.items()}
    assert lengths == {phase.value: length for phase, length in end.timeline.parts().items() if length}
    assert {span.trace_id for span in phases.values()} == {root.trace_id}
    at = root.start_time_unix_nano
    for span in found.spans()[1:]:  # each begins where the one before it ended
        assert span.start_time_unix_nano == at
        at = span.end_time_unix_nano
    assert at == root.end_time_unix_nano
    assert attributes(phases["decode"].attributes) == {"gen_ai.usage.output_tokens": 4}


async def test_its_attributes_are_those_of_the_conventions_and_our_own() -> None:
    found, end = await served(chat("some secret words", max_tokens=4), {"x-request-id": "mine"})
    facts = end.timeline.facts
    said = attributes(found.root().attributes)
    expected = {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tailrace",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.response.id": facts["answer"],
        "gen_ai.request.stream": False,
        "gen_ai.usage.input_tokens": facts["prompt_tokens"],
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "tailrace.request_id": "mine",
        "tailrace.tenant": "default",
        "tailrace.outcome": "ok",
        "tailrace.class": "interactive",
        "tailrace.bucket": facts["bucket"],
        "tailrace.admission": "admit",
        "tailrace.admission.reason": "starts_now",
    }
    assert said | expected == said
    assert "secret" not in str(found.traces) + str(found.metrics)
    resource = attributes(found.traces[0].resource_spans[0].resource.attributes)
    assert resource["service.name"] == "tailrace" and resource["service.instance.id"]
    assert found.headers["authorization"] == "Bearer token"


async def test_the_callers_trace_goes_on() -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=7"}
    found, end = await served(chat(max_tokens=2), headers)
    root = found.root()
    assert (root.trace_id.hex(), root.parent_span_id.hex(), root.trace_state) == (TRACE, PARENT, "vendor=7")
    assert root.span_id.hex() == end.timeline.facts["trace"].span


async def test_the_answer_says_which_trace_it_is() -> None:
    state = make_state()
    async with in_process(state) as client:
        assert "traceresponse" not in (await client.post(CHAT, json=chat(max_tokens=2))).headers
        state.trace_ratio = 1.0
        state.plane.watchers = (ends := [], ends.append)[1:]
        answer = await client.post(
            CHAT, json=chat(max_tokens=2), headers={"traceparent": f"00-{TRACE}-{PARENT}-00", "tracestate": ","}
        )
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{ends[0].timeline.facts['trace'].span}-00"


@pytest.mark.parametrize("state", ["=", "a", "a=1,a=2", "\x01=2", ",".join(f"k{n}=1" for n in range(90)), "é=1"])
def test_a_hostile_tracestate_is_dropped(state: str) -> None:
    headers = [(b"traceparent", f"00-{TRACE}-{PARENT}-01".encode()), (b"tracestate", state.encode())]
    from tailrace.observe.trace_context import TraceContext

    root = sent(ended(trace=TraceContext.of(headers, 1.0))).root()
    assert (root.trace_id.hex(), root.trace_state) == (TRACE, "")


async def test_a_refusal_and_a_failure() -> None:
    found, _ = await served(chat(), backend=FaultyBackend(FakeBackend(), lambda request: Fault(Kind.RAISE, after=1)))
    root = found.root()
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "internal_error")
    said = attributes(root.attributes)
    assert (said["error.type"], said["tailrace.error_domain"], said["tailrace.error_kind"]) == (
        "internal_error", "execution", "internal",
    )  # fmt: skip

    found, _ = await served(chat(model="nobody"))
    root, said = found.root(), attributes(found.root().attributes)
    assert root.name == "chat"
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert (said["error.type"], said["http.response.status_code"]) == ("model_not_found", 404)
    assert (said["gen_ai.request.model"], said.get("gen_ai.response.model")) == ("nobody", None)


async def test_a_request_that_was_refused() -> None:
    with receiver() as found, telemetry(found.url) as watcher:
        state = make_state()
        state.plane.watchers = (watcher,)
        state.pipeline.begin_drain()
        async with in_process(state) as client:
            assert (await client.post(CHAT, json=chat())).status_code == 503
        await asyncio.to_thread(watcher.close, PATIENCE)
    root, said = found.root(), attributes(found.root().attributes)
    assert (said["tailrace.outcome"], said["http.response.status_code"]) == ("rejected", 503)
    assert (said["error.type"], said["tailrace.error_domain"]) == ("draining", "admission")
    assert root.status.code == Status.STATUS_CODE_ERROR


def test_what_was_decided_is_said_with_its_reason() -> None:
    reject = Reject("deadline_unattainable", 503, "class:interactive", 3.0, 2.0)
    limit = {"limit": "requests_per_minute", "scope": "acme", "outcome": "partial", "enforced": True}
    found = sent(
        ended("rejected", 503, admission=AsJob(reject), limit=limit, traits=Traits(task="triage"), preemptions=2)
    )
    said = attributes(found.root().attributes)
    assert (said["tailrace.admission"], said["tailrace.admission.reason"]) == ("asjob", "deadline_unattainable")
    assert (said["tailrace.limit"], said["tailrace.task"], said["tailrace.preemptions"]) == (
        "requests_per_minute", "triage", 2,
    )  # fmt: skip


async def test_a_request_whose_client_left() -> None:
    with receiver() as found, telemetry(found.url) as watcher:
        state = make_state(FakeBackend(step_seconds=0.05))
        ends: list[Ended] = []
        state.plane.watchers, state.trace_ratio = (watcher, ends.append), 1.0
        async with live(state) as url, patient(base_url=url) as client:
            async with client.stream("POST", CHAT, json=chat(stream=True, max_tokens=400)) as answer:
                await anext(answer.aiter_bytes())
            await until(lambda: ends)
        await asyncio.to_thread(watcher.close, PATIENCE)
    said = attributes(found.root().attributes)
    assert (said["tailrace.outcome"], said["error.type"]) == ("cancelled", "cancelled")
    assert said["gen_ai.usage.output_tokens"] == ends[0].timeline.facts["completion_tokens"] > 0
    assert said["gen_ai.request.stream"] is True
    assert found.root().end_time_unix_nano == round(ends[0].wall * 1e6) * 1000


async def test_other_routes_have_a_span_and_probes_have_none() -> None:
    with receiver() as found, telemetry(found.url) as watcher:
        state = make_state()
        state.plane.watchers = (watcher,)
        async with in_process(state) as client:
            for path in ("/health/live", "/health/ready", "/metrics", "/v1/models", "/no/such/route"):
                await client.get(path)
        await asyncio.to_thread(watcher.close, PATIENCE)
    assert [span.name for span in found.spans() if span.kind == Span.SPAN_KIND_SERVER] == ["GET /v1/models", "GET"]
    assert found.metrics == [] or not found.points("gen_ai.server.request.duration")


def test_the_ratio_leaves_out_all_but_what_failed_or_came_late() -> None:
    found = sent(
        ended(),
        ended("error", 500, error="internal_error"),
        ended(late=True, tag="late"),
        ended("cancelled"),
        ratio=0.0,
    )
    outcomes = [attributes(span.attributes).get("tailrace.outcome") for span in found.spans()]
    assert [outcome for outcome in outcomes if outcome] == ["error", "ok"]
    assert sum(point.count for point in found.points("gen_ai.server.request.duration")) == 4


def test_the_metrics_are_the_records_figures() -> None:
    found = sent(ended(), ended(), ended("rejected", 429, error="queue_full"))
    durations = {attributes(p.attributes).get("error.type"): p for p in found.points("gen_ai.server.request.duration")}
    assert (durations[None].count, durations[None].sum) == (2, 7.0)
    assert durations["queue_full"].count == 1
    (first,) = found.points("gen_ai.server.time_to_first_token")
    (each,) = found.points("gen_ai.server.time_per_output_token")
    assert (first.count, first.sum, each.count, each.sum) == (2, 3.0, 2, 1.0)
    tokens = {attributes(p.attributes)["gen_ai.token.type"]: p for p in found.points("gen_ai.client.token.usage")}
    assert (tokens["input"].sum, tokens["output"].sum) == (600, 15)
    assert attributes(first.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tailrace",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m",
    }
    assert list(first.explicit_bounds)[:3] == [0.001, 0.005, 0.01]
    assert list(each.explicit_bounds)[-1] == 2.5
    assert list(durations[None].explicit_bounds)[-1] == 81.92
    assert list(tokens["input"].explicit_bounds)[-1] == 4**13


def test_names_that_callers_make_up_are_no_series() -> None:
    found = sent(*(ended("invalid", 404, error="model_not_found", model=None, asked=f"x{n}" * 99) for n in range(20)))
    (point,) = found.points("gen_ai.server.request.duration")
    assert point.count == 20
    names = {attributes(span.attributes).get("gen_ai.request.model", "") for span in found.spans()}
    assert max(map(len, names)) == 200


def test_surrogates_in_a_name_do_not_stop_the_others() -> None:
    found = sent(ended(asked="\ud800"), ended(asked="good"))
    assert {attributes(s.attributes).get("gen_ai.request.model") for s in found.spans()} >= {"?", "good"}


def test_without_a_collector_requests_are_counted_as_lost_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with caplog.at_level(logging.WARNING), telemetry(url, timeout=0.2) as watcher:
            for _ in range(QUEUE + 10):
                watcher(ended())
            watcher.close(PATIENCE)
    assert watcher.lost == QUEUE + 10
    assert [record.message for record in caplog.records if "does not take traces" in record.message] != []
    assert len(caplog.records) == 1


def test_a_collector_that_comes_back_gets_what_follows(caplog: pytest.LogCaptureFixture) -> None:
    with receiver() as found, caplog.at_level(logging.WARNING):
        found.status = 400
        with telemetry(found.url, every=0.01) as watcher:
            watcher(ended())
            wait_until(lambda: watcher.lost == 1)
            found.status = 200
            watcher(ended())
            wait_until(lambda: bool(found.traces))
    assert watcher.lost == 1
    assert [record.message.split(":")[0].split("Collector")[0] for record in caplog.records] == ["the collector "] * 2


def test_a_collector_that_hangs_holds_up_neither_requests_nor_the_end() -> None:
    with receiver() as found:
        found.open.clear()
        watcher = Telemetry(Collector(found.url, {}), every=0.01, timeout=PATIENCE)
        watcher.start()
        watcher(ended())
        wait_until(lambda: found.asked > 0)
        for _ in range(QUEUE + 5):
            watcher(ended())
        assert watcher.lost == 5
        watcher.close(0.1)  # returns
        found.open.set()
        watcher.close(PATIENCE)


def wait_until(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came true")


def test_no_endpoint_is_no_collector() -> None:
    assert Collector.of(ObserveConfig()) is None


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("localhost:4318", ()), ("grpc://host:4317", ()), ("http://", ()), ("http://host:99999", ()),
        ("http://host/?key=1", ()), ("http://host", ("secret-token",)), ("http://host", ("a b=secret-token",)),
        ("http://host", ("a=secret-token\r\nb: c",)),
    ],
)  # fmt: skip
def test_what_cannot_be_a_collector_is_refused_without_showing_secrets(url: str, headers: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="accepted is") as refused:
        Collector.of(ObserveConfig(otlp_endpoint=url, otlp_headers=headers))
    assert "secret" not in refused.value.message


def test_a_password_in_the_endpoint_is_not_shown() -> None:
    found = Collector.of(ObserveConfig(otlp_endpoint="https://me:hush@host/", otlp_headers=("x-token=hush",)))
    assert found == Collector("https://me:hush@host", {"x-token": "hush"})
    assert "hush" not in f"{found}{found!r}"


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"pip install 'tailrace\[otel\]'"):
        Collector.of(ObserveConfig(otlp_endpoint="http://host:4318"))
