"""Puts a benchmark together: probe, warm up, measure (once, repeatedly, or at many loads), report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Protocol

from tailrace.bench.arrivals import arrivals
from tailrace.bench.client import Client
from tailrace.bench.drive import Done, Driver, Limits
from tailrace.bench.http import Http
from tailrace.bench.options import Options
from tailrace.bench.pace import Pace
from tailrace.bench.probe import Probe, Server, tokenize
from tailrace.bench.record import Record
from tailrace.bench.remarks import remarks
from tailrace.bench.report import Report, Run
from tailrace.bench.summary import Summary, summarize
from tailrace.bench.sweep import Level, Sweep
from tailrace.bench.workload import Workload
from tailrace.errors import ConfigError, RequestError
from tailrace.figures.quantities import seconds
from tailrace.figures.slo import parse_slo
from tailrace.traces import read_trace

DEFAULT_REQUESTS = 100
DEFAULT_CONCURRENCY = 8


class Watch(Protocol):
    """Who looks on while it runs."""

    def stage(self, name: str, requests: int | None) -> None: ...
    def done(self, record: Record) -> None: ...


class Bench:
    """`await run()` once. `stop()` ends it early; the report then has what was answered until then."""

    def __init__(self, options: Options, pace: Pace, watch: Watch, *, started: float) -> None:
        """Raises ConfigError for whatever can be seen to be wrong before anything is sent."""
        if options.concurrency is None and not options.open_loop:
            options = replace(options, concurrency=DEFAULT_CONCURRENCY)
        if options.seed is None:  # prompts that no earlier benchmark left in the server's cache
            options = replace(options, seed=Random(started).randrange(1 << 31))
        self._options, self._pace, self._watch = options, pace, watch
        self._slo = parse_slo(options.slo)
        self._timeout = seconds(options.timeout, "--timeout")
        self._think = seconds(options.think, "--think") if options.think else 0.0
        self._duration = seconds(options.duration, "--duration") if options.duration else None
        self._trace = read_trace(Path(options.trace)) if options.trace else None
        self._check_trace()
        self.report = Report(options, started, {})
        self._server: Server | None = None
        self._task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def run(self) -> Report:
        """Raises Unavailable and RequestError when the server cannot be measured at all."""
        async with Http(self._options.url, self._options.key, self._timeout) as http:
            self._task = asyncio.create_task(self._whole(http))
            try:
                await asyncio.wait((self._task,))
            finally:
                self._task.cancel()
            if self._task.cancelled():
                self.report.interrupted = True
                self.report.note("stopped early: requests that had no answer yet are not counted")
            else:
                self._task.result()
        return self.report

    def _check_trace(self) -> None:
        timed = self._trace is not None and self._trace[0].arrival is not None
        if self._trace and not timed and self._options.rate is None and self._options.concurrency is None:
            raise ConfigError("--trace has lengths only: add --rate or --concurrency", param="--rate")

    async def _whole(self, http: Http) -> None:
        self._watch.stage("asking the server what it can do", None)
        self._server = server = await Probe(http, self._options, self._pace).look()
        self._describe(http, server)
        self._check_workload()
        await self._warm_up(http)
        if self._options.sweep:
            await self._sweep(http)
        else:
            for number in range(self._options.repeats):
                label = "measuring" if self._options.repeats == 1 else f"run {number + 1}"
                await self._measure(http, label, str(number), self._options)

    def _check_workload(self) -> None:
        """Refuse prompts that this route cannot take."""
        first = self._workload("check").talk(0).turns[0].prompt
        if isinstance(first, list) and isinstance(first[0], dict) and not self._found.shape.chat:
            raise ConfigError("--prompts has messages, which need the chat route (--endpoint chat)", param="--endpoint")

    def _describe(self, http: Http, server: Server) -> None:
        pieces = server.pieces
        self.report.server = {
            "url": http.base,
            "shape": asdict(server.shape),
            "path": server.shape.path,
            "max_context": server.max_context,
            "tokenizer": server.tokenizer,
            "prompts": {"how": pieces.how, "overhead": pieces.overhead, "tokens_per_piece": pieces.cost},
        }
        for note in server.notes:
            self.report.note(note)

    async def _warm_up(self, http: Http) -> None:
        """Prompts of its own, so that nothing measured later is in the server's cache because of it."""
        options = self._options
        if not options.warmup:
            return
        self._watch.stage("warming up", options.warmup)
        records: list[Record] = []
        driver = self._driver(http, Limits(options.warmup), lambda record, _: records.append(record))
        await driver.closed(self._workload("warmup").talks(), min(options.warmup, options.concurrency or 1))
        if records and not any(record.ok for record in records):
            first = records[0]
            raise RequestError(f"no warm-up request was answered: {first.error}: {first.message}", param="--warmup")

    async def _sweep(self, http: Http) -> None:
        options = self._options
        name = "rate" if options.open_loop else "concurrency"

        async def measure(load: float) -> Level:
            value = load if name == "rate" else int(load)
            changed = replace(options, rate=load) if name == "rate" else replace(options, concurrency=int(load))
            summary = await self._measure(http, f"{name} {value:g}", f"sweep/{value:g}", changed)
            return Level(load, summary["throughput"]["output_tokens_per_s"], summary["attainment"])

        start = float(options.rate or options.concurrency or 1)
        wanted = options.attainment if self._slo else None
        sweep = Sweep(measure, start, options.sweep_max, name == "concurrency", wanted)
        try:
            await sweep.run()
        finally:
            self._note_knee(sweep, name)

    def _note_knee(self, sweep: Sweep, name: str) -> None:
        if not sweep.levels:
            return
        knee = sweep.knee()
        rule = (
            "highest load that meets the SLO"
            if sweep.wanted is not None
            else "lowest load with 95 % of the best throughput"
        )
        self.report.knee = {"unit": name, "load": knee.load if knee else None, "rule": rule, "limited": sweep.limited}
        if sweep.limited:
            self.report.note("the knee may lie higher: --sweep-max was reached")
        if knee is None:
            self.report.note(f"no load meets the SLO, not even {name} {min(sweep.levels):g}")

    # --- one measurement

    async def _measure(self, http: Http, label: str, salt: str, options: Options) -> Summary:
        requests = self._requests(options)
        self._watch.stage(label, requests)
        start = self._pace.now()
        limits = Limits(requests, None if self._duration is None else start + self._duration, self._think)
        taken = _Taken(self._watch)
        driver = self._driver(http, limits, taken.add)
        talks = self._workload(salt).talks()
        try:
            if options.open_loop:
                await driver.open(talks, self._times(options, salt), start)
            else:
                await driver.closed(talks, options.concurrency or DEFAULT_CONCURRENCY)
            await self._count(http, taken.uncounted)
        finally:
            summary = summarize(taken.records, self._slo)
            load = options.rate if options.open_loop else options.concurrency
            self.report.runs.append(Run(label, load, summary, taken.records))
            for note in remarks(summary, options, self._found):
                self.report.note(note)
        return summary

    async def _count(self, http: Http, uncounted: list[tuple[Record, str]]) -> None:
        """Answers without usage, by the server's tokenizer: after the run, so that it costs the run nothing."""
        server = self._found
        if not uncounted or not server.tokenizer:
            return
        start = len(await tokenize(http, server.shape.model, "") or [])
        for record, text in uncounted:
            ids = await tokenize(http, server.shape.model, text)
            if ids is not None:
                record.output_tokens, record.counted = len(ids) - start, "tokenizer"
                record.prompt_tokens = record.asked_prompt if server.pieces.exact else None

    @property
    def _found(self) -> Server:
        assert self._server is not None, "the probe comes first"
        return self._server

    def _driver(self, http: Http, limits: Limits, done: Done) -> Driver:
        shape = self._found.shape
        retry = self._options.on_429 == "retry"
        client = Client(http, shape, self._pace, retry=retry, patience=self._timeout)
        return Driver(client, self._pace, limits, done, chat=shape.chat)

    def _workload(self, salt: str) -> Workload:
        return Workload(self._options, self._found.pieces, f"{self._options.seed}/{salt}", self._trace)

    def _requests(self, options: Options) -> int | None:
        if options.requests is not None:
            return options.requests
        if self._trace is not None and self._duration is None:
            return len(self._trace)
        return None if self._duration is not None else DEFAULT_REQUESTS

    def _times(self, options: Options, salt: str) -> Iterable[float]:
        if options.rate is not None:
            return arrivals(options.arrival, options.rate, options.cv, Random(f"{options.seed}/{salt}/arrivals"))
        assert self._trace is not None, "an open loop has a rate or a trace"
        return [(row.arrival or 0.0) / options.speedup for row in self._trace]


class _Taken:
    """The records of a run as they come, and the texts that still have to be counted."""

    def __init__(self, watch: Watch) -> None:
        self.records: list[Record] = []
        self.uncounted: list[tuple[Record, str]] = []
        self._watch = watch

    def add(self, record: Record, text: str) -> None:
        self.records.append(record)
        if record.ok and record.counted != "usage":
            self.uncounted.append((record, text))
        self._watch.done(record)
