"""Whole benchmarks against a server of ours with a fake engine: what is reported is what the server counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend, say
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tailrace.bench.options import Options
from tailrace.bench.pace import RealPace
from tailrace.bench.record import Record
from tailrace.bench.report import Report
from tailrace.bench.run import Bench
from tailrace.clock import ManualClock, SystemClock
from tailrace.errors import ConfigError, RequestError
from tests.bench.servers import Odd, error, serving
from tests.serving import gauge, live, make_state, until


class Seen:
    """A `Watch` that keeps what it saw."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int | None]] = []
        self.records: list[Record] = []
        self.on_done = lambda: None

    def stage(self, name: str, requests: int | None) -> None:
        self.stages.append((name, requests))

    def done(self, record: Record) -> None:
        self.records.append(record)
        self.on_done()


async def bench(base: str, **fields: Any) -> Report:
    return await Bench(Options(url=base, **fields), RealPace(SystemClock()), Seen(), started=0.0).run()


def counters(state: AppState) -> dict[str, float]:
    names = ("prompt_tokens", "cached_tokens", "generated_tokens")
    read = state.metrics.registry.get_sample_value
    found = {name: read(f"tailrace_{name}_total") or 0.0 for name in names}
    requests = [read("tailrace_requests_total", {"route": route, "outcome": "ok"}) for route in ("completions", "chat")]
    return found | {"requests": sum(filter(None, requests))}


class Counted:
    """The server's own counts at the moment the measurement starts."""

    def __init__(self, state: AppState) -> None:
        self.state, self.before = state, {}

    def stage(self, name: str, requests: int | None) -> None:
        self.before = counters(self.state)

    def done(self, record: Record) -> None:
        pass

    def since(self) -> dict[str, float]:
        now = counters(self.state)
        return {name: now[name] - self.before[name] for name in now}


LOADS = [
    {"concurrency": 3, "requests": 12, "input": "uniform:5-60", "output": "uniform:2-9"},
    {"rate": 400.0, "requests": 12, "workload": "shared-prefix", "prefixes": 2, "prefix_tokens": 64, "input": "8"},
    {"concurrency": 2, "requests": 7, "workload": "multi-turn", "input": "30", "output": "5"},
    {"concurrency": 2, "requests": 9, "workload": "mixed", "mix": ("1 fixed:10 fixed:3", "1 fixed:300 fixed:2")},
    {"concurrency": 2, "requests": 6, "endpoint": "chat", "input": "100", "output": "3", "natural_end": True},
]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.get("workload", load.get("endpoint", "random")))
async def test_counts_are_exactly_those_of_the_server(load: dict[str, Any]) -> None:
    state = make_state(FakeBackend(max_context=2048))
    async with live(state) as base:
        counted = Counted(state)
        report = await Bench(Options(url=base, **load), RealPace(SystemClock()), counted, started=0.0).run()
        server = counted.since()
    summary = report.runs[0].summary
    tokens = summary["tokens"]
    assert summary["answered"] == summary["requests"] == load["requests"] == server["requests"]
    assert tokens["prompt"] == server["prompt_tokens"]
    assert tokens["cached"] == server["cached_tokens"]
    assert tokens["output"] == server["generated_tokens"]
    assert tokens["counted_by"] == {"usage": load["requests"]}
    assert tokens["prompts_off_by"]["max"] == 0  # every prompt is exactly as long as asked
    assert summary["latency"]["queue_ms"]["count"] == load["requests"]
    if load.get("workload") in ("shared-prefix", "multi-turn"):
        assert tokens["cached"] > 0


async def test_the_same_seed_sends_the_same_prompts() -> None:
    prompts = []
    for seed in (1, 1, 2):
        backend = FakeBackend(max_context=2048)
        async with live(make_state(backend)) as base:
            await bench(base, requests=6, concurrency=2, input="uniform:5-40", output="2", seed=seed)
        prompts.append(sorted(list(prompt) for prompt in backend.prompts))
    assert prompts[0] == prompts[1] != prompts[2]


def test_a_seed_that_is_not_given_is_drawn_and_told() -> None:
    seeds = [
        Bench(Options(), RealPace(SystemClock()), Seen(), started=started).report.options.seed
        for started in (1.0, 1.0, 2.0)
    ]
    assert seeds[0] == seeds[1] != seeds[2]
    assert None not in seeds


async def test_prompts_that_the_server_still_had_are_pointed_out() -> None:
    async with live(make_state(FakeBackend(max_context=2048))) as base:
        first, again = [await bench(base, requests=4, concurrency=1, input="200", output="2", seed=7) for _ in range(2)]
    assert first.notes == []
    assert "came from the server's prefix cache" in again.notes[0]
    assert "--seed" in again.notes[0]


async def test_repeats_send_other_prompts() -> None:
    async with live(make_state(FakeBackend(max_context=2048))) as base:
        report = await bench(base, requests=4, concurrency=2, input="100", output="2", repeats=3, warmup=0)
    assert [run.label for run in report.runs] == ["run 1", "run 2", "run 3"]
    assert [run.summary["tokens"]["cached"] for run in report.runs] == [0, 0, 0]


async def test_a_trace_with_its_prefixes(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        '{"arrival_s":0.0,"input_tokens":1100,"output_tokens":3,"hash_ids":[1,2,3]}\n'
        '{"arrival_s":9.0,"input_tokens":1090,"output_tokens":4,"hash_ids":[1,2,4]}\n'
    )
    async with live(make_state(FakeBackend(max_context=2048))) as base:
        report = await bench(base, trace=str(trace), speedup=1000.0, length_scale=0.5, warmup=0)
    tokens = report.runs[0].summary["tokens"]
    assert (tokens["prompt"], tokens["output"]) == (550 + 545, 2 + 2)
    assert tokens["cached"] == 512
    assert any("the trace was scaled" in note for note in report.notes)


async def test_a_prompt_file_asked_turn_by_turn(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"turns": ["first question", "second question"]}\n')
    backend = FakeBackend(max_context=2048, script=say("reply"))
    async with live(make_state(backend)) as base:
        report = await bench(
            base, workload="file", prompts=str(file), prompt_field="turns", requests=2, warmup=0, natural_end=True,
            concurrency=1,
        )  # fmt: skip
    assert report.runs[0].summary["answered"] == 2
    last = bytes(token for token in backend.prompts[-1].tolist() if token < 256).decode()
    assert last.index("first question") < last.index("reply") < last.index("second question")


async def test_a_full_server_is_counted_or_retried() -> None:
    limits = {"control": {"max_waiting_requests": 1}}
    load = {"concurrency": 6, "requests": 12, "input": "10", "output": "4", "warmup": 0}

    backend = FakeBackend(max_sequences=1, manual=True)
    state = make_state(backend, **limits)
    seen = Seen()

    async def step() -> None:
        """While it is measured, not before somebody was refused."""
        while True:
            refusals = state.metrics.registry.get_sample_value("tailrace_rejects_total", {"reason": "queue_full"})
            if refusals or ("measuring", 12) not in seen.stages:
                backend.step()
            await asyncio.sleep(0)

    async with live(state) as base:
        stepping = asyncio.create_task(step())
        report = await Bench(Options(url=base, **load), RealPace(SystemClock()), seen, started=0.0).run()
        stepping.cancel()
    summary = report.runs[0].summary
    refused = summary["errors"]["429 queue_full"]
    assert refused > 0
    assert summary["answered"] == 12 - refused
    assert summary["retry_after_s"]["count"] == refused


async def test_refusals_are_retried_when_asked() -> None:
    def busy(body: Any) -> Any:
        return error(429, "queue_full", "later", retry_after_ms=1)

    odd = Odd()

    class Refusing(Seen):
        def stage(self, name: str, requests: int | None) -> None:
            if name == "measuring":
                odd.script.extend([busy] * 3)

    async with serving(odd) as base:
        options = Options(url=base, requests=5, concurrency=2, input="20", output="2", warmup=0, on_429="retry")
        report = await Bench(options, RealPace(SystemClock()), Refusing(), started=0.0).run()
    summary = report.runs[0].summary
    assert (summary["answered"], summary["retries"], summary["errors"]) == (5, 3, {})


async def test_one_failing_request_is_one_error() -> None:
    fault = Fault(Kind.RAISE, after=1)
    backend = FaultyBackend(FakeBackend(max_context=2048), lambda r: fault if len(r.prompt) == 77 else None)
    async with live(make_state(backend)) as base:  # type: ignore[arg-type]
        report = await bench(
            base, requests=20, concurrency=2, workload="mixed", mix=("1 77 5", "1 50 5"), warmup=0, slo="ttft=60s"
        )
    summary = report.runs[0].summary
    assert set(summary["errors"]) == {"stream internal_error"}
    assert summary["errors"]["stream internal_error"] + summary["answered"] == 20
    assert summary["attainment"] == summary["answered"] / 20


async def test_without_usage_the_tokenizer_counts() -> None:
    async with serving(Odd(usage=False, tokenizer=True)) as base:
        report = await bench(base, requests=3, concurrency=1, input="20", output="4")
    tokens = report.runs[0].summary["tokens"]
    assert tokens["counted_by"] == {"tokenizer": 3}
    assert (tokens["output"], tokens["prompt"]) == (12, 60)


async def test_without_usage_and_tokenizer_estimates_are_flagged() -> None:
    async with serving(Odd(usage=False)) as base:
        report = await bench(base, requests=3, concurrency=1, input="20", output="4")
    assert report.runs[0].summary["tokens"]["counted_by"] == {"chunks": 3}
    assert any("estimates" in note for note in report.notes)


async def test_stopping_keeps_what_was_answered() -> None:
    state = make_state(FakeBackend(max_context=2048, step_seconds=0.001))
    async with live(state) as base:
        seen = Seen()
        made = Bench(
            Options(url=base, concurrency=2, input="10", output="2"), RealPace(SystemClock()), seen, started=0.0
        )
        seen.on_done = lambda: made.stop() if len(seen.records) == 5 else None
        report = await made.run()
        await until(lambda: gauge(state, "tailrace_requests_running") == 0)
    assert report.interrupted
    assert report.runs[0].summary["answered"] == 5
    assert report.data()["interrupted"] is True


async def test_a_sweep_finds_the_slots_of_a_server() -> None:
    """On a clock of its own: a step takes a second, and begins when nobody has anything left to do or to send."""
    backend, clock, seen = FakeBackend(max_context=2048, max_sequences=4, manual=True), ManualClock(), Seen()

    def open_requests() -> int:
        """As many as the load keeps open, and fewer at its end."""
        names, load = [name for name, _ in seen.stages], 1
        if names[-1:] and names[-1].startswith("concurrency"):
            load = min(int(names[-1].split()[1]), 12 - len(seen.records) % 12)
        return load

    async def step() -> None:
        while True:
            if backend.load().running >= open_requests():
                clock.advance(1.0)
                backend.step()
            await asyncio.sleep(0)

    async with live(make_state(backend)) as base:
        stepping = asyncio.create_task(step())
        options = Options(
            url=base, sweep=True, concurrency=1, requests=12, input="10", output="8", sweep_max=4.0, warmup=0
        )
        report = await Bench(options, RealPace(clock), seen, started=0.0).run()
        stepping.cancel()
    assert report.knee is not None
    assert (report.knee["unit"], report.knee["load"], report.knee["limited"]) == ("concurrency", 4, True)
    assert [run.load for run in report.runs][:3] == [1, 2, 4]


async def test_an_unanswered_warm_up_ends_it() -> None:
    async with live(make_state(FakeBackend(max_context=64))) as base:
        with pytest.raises(RequestError, match="context_length_exceeded"):
            await bench(base, input="100", requests=2)


@pytest.mark.parametrize("fields", [{"slo": "ttft"}, {"timeout": "x"}, {"trace": "/nowhere.csv"}, {"duration": "0"}])
def test_what_can_be_seen_to_be_wrong_is_refused_before_anything_is_sent(fields: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Bench(Options(**fields), RealPace(SystemClock()), Seen(), started=0.0)  # type: ignore[arg-type]


def test_lengths_alone_need_arrivals(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("input_tokens,output_tokens\n5,5\n")
    options = Options(trace=str(trace))
    with pytest.raises(ConfigError, match="--rate"):
        Bench(options, RealPace(SystemClock()), Seen(), started=0.0)
    Bench(replace(options, rate=1.0), RealPace(SystemClock()), Seen(), started=0.0)
