"""Runs every engine on the same work, one after the other within each round, and compares medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.channel import Failed, Worker
from benchmarks.peers.probe import BandwidthProbe
from benchmarks.peers.work import GREEDY_TOKENS, Work

OURS = "tailrace"
AGREEING_TOKENS = 4  # of GREEDY_TOKENS, on average: rounding may part two right engines later, not at once


@dataclass(slots=True)
class Entry:
    """One engine's results. `problem` is set when it cannot be counted."""

    name: str
    worker: Worker
    version: str = ""
    problem: str = ""
    texts: list[str] = field(default_factory=list)
    agreement: float = 0.0  # mean number of leading greedy tokens equal to ours
    rates: dict[str, list[float]] = field(default_factory=dict)

    def median(self, key: str) -> float | None:
        values = self.rates.get(key)
        return statistics.median(values) if values else None


def check_greedy(entries: Sequence[Entry], prompts: list[list[int]], decode: Callable[[list[int]], str]) -> None:
    """Have everyone answer the same prompts. A peer whose text is another one from the start does not count."""
    ours: list[list[int]] = []
    for entry in entries:
        outputs = [_attempt(entry, [prompt], GREEDY_TOKENS).get("outputs", [[]])[0] for prompt in prompts]
        ours = ours or outputs
        entry.texts = [decode(tokens) for tokens in outputs]
        entry.agreement = statistics.mean(_common(a, b) for a, b in zip(ours, outputs, strict=True))
        if not entry.problem and entry.agreement < AGREEING_TOKENS:
            entry.problem = f"its greedy text differs from the start ({entry.agreement:.1f} equal tokens)"


def run(entries: Sequence[Entry], work: Sequence[Work], rounds: int, probe: BandwidthProbe) -> list[dict[str, Any]]:
    """Fill the entries' rates; returns the bandwidth seen before each round."""
    seen = []
    for item in work:
        for number in range(rounds + 1):
            seen.append({"work": item.name, "round": number, "gb_per_second": round(probe.measure(), 2)})
            turn = number % len(entries)
            for entry in (*entries[turn:], *entries[:turn]):
                _measure(entry, item, number)
    return seen


def _measure(entry: Entry, item: Work, number: int) -> None:
    """One run; round 0 warms up and is not counted."""
    if entry.problem:
        return
    answer = _attempt(entry, item.prompts(number), item.tokens_out)
    counts = {len(tokens) for tokens in answer.get("outputs", [])}
    if not entry.problem and counts != {item.tokens_out}:
        entry.problem = f"{item.name}: made {sorted(counts)} tokens where {item.tokens_out} were asked for"
    if entry.problem or number == 0:
        return
    for kind in item.rates:
        rate = item.rate(kind, answer["seconds"], answer["first_seconds"])
        entry.rates.setdefault(f"{item.name} ({kind})", []).append(round(rate, 2))


def _attempt(entry: Entry, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    if entry.problem:
        return {}
    try:
        return entry.worker.ask("generate", prompts=prompts, tokens=tokens)
    except Failed as error:
        entry.problem = str(error)
        return {}


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def summary(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Per measurement: medians, and ours over each peer that counts."""
    rows = []
    for key in entries[0].rates:
        medians = {entry.name: entry.median(key) for entry in entries}
        ours = medians[OURS]
        ratios = {
            entry.name: round(ours / value, 2)
            for entry in entries[1:]
            if not entry.problem and ours and (value := medians[entry.name])
        }
        rows.append({"work": key, "tokens_per_second": medians, "tailrace_over": ratios})
    return rows
