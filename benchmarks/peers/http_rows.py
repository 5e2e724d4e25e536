"""The comparison over HTTP: every server gets the same streamed load, one after the other within each round."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.http_load import Answer, Mixed, Mixture, together
from benchmarks.peers.probe import BandwidthProbe
from benchmarks.peers.servers import Server
from benchmarks.peers.work import prompt_ids
from benchmarks.serving.live import quantile

COUNTS = (8, 32)
TOKENS_IN, TOKENS_OUT = 256, 64
FRONT = "thin front alone"  # not a peer: what the front costs that in-process peers get


@dataclass(slots=True)
class Seen:
    """One server's figures by row, a value a round."""

    server: Server
    figures: dict[str, list[float]] = field(default_factory=dict)

    def note(self, row: str, value: float) -> None:
        self.figures.setdefault(row, []).append(round(value, 5))

    def median(self, row: str) -> float | None:
        values = self.figures.get(row)
        return statistics.median(values) if values else None


def run(servers: Sequence[Server], rounds: int, probe: BandwidthProbe) -> tuple[list[Seen], list[float]]:
    """Round 0 warms up. Returns what was seen, and the bandwidth before each round in GB/s."""
    seen = [Seen(server) for server in servers]
    bandwidth = []
    for number in range(rounds + 1):
        bandwidth.append(round(probe.measure(), 2))
        turn = number % len(seen)
        for one in (*seen[turn:], *seen[:turn]):
            if not one.server.problem:
                print(
                    f"{one.server.name}: {f'round {number} of {rounds}' if number else 'warm-up'}",
                    file=sys.stderr,
                    flush=True,
                )
                _round(one, number)
    return seen, bandwidth


def _round(one: Seen, number: int) -> None:
    try:
        figures = asyncio.run(_measure(one.server, number))
    except Exception as error:  # the peer's fault, whatever it is: it is reported and no longer counted
        one.server.problem = f"{type(error).__name__}: {error}"
        return
    if number:
        for row, value in figures.items():
            one.note(row, value)


async def _measure(server: Server, number: int) -> dict[str, float]:
    figures = {}
    for count in COUNTS:
        prompts = [prompt_ids((number, count, row), TOKENS_IN) for row in range(count)]
        seconds, _ = await together(server, prompts, TOKENS_OUT)
        figures[f"{count} streams: {TOKENS_IN} in, {TOKENS_OUT} out (out tok/s)"] = count * TOKENS_OUT / seconds
    if server.name != FRONT:
        answers = await Mixed(server, Mixture(), lambda row, tokens: prompt_ids((number, row), tokens)).run()
        figures |= _tails(answers)
    return figures


def _tails(answers: Sequence[Answer]) -> dict[str, float]:
    return {
        "short beside 1,800-token prompts: TTFT p99 (s)": quantile([answer.ttft for answer in answers], 0.99),
        "short beside 1,800-token prompts: TPOT p99 (s)": quantile([answer.tpot for answer in answers], 0.99),
    }


def summary(seen: Sequence[Seen]) -> list[dict[str, Any]]:
    """Medians, and how many times better the first server is than each other: more tokens, or fewer seconds."""
    ours = seen[0]
    rows = []
    for row in ours.figures:
        medians = {one.server.name: one.median(row) for one in seen}
        times = {
            one.server.name: round(_better(row, ours.median(row) or 0.0, value), 2)
            for one in seen[1:]
            if one.server.name != FRONT and (value := medians[one.server.name])
        }
        rows.append({"work": row, "medians": medians, "tailrace_over": times})
    return rows


def _better(row: str, ours: float, theirs: float) -> float:
    return theirs / ours if row.endswith("(s)") else ours / theirs
