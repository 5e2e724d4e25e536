"""Runs every engine on the same work, one after the other within each round, and compares medians."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.channel import Failed, Worker
from benchmarks.peers.probe import BandwidthProbe
from benchmarks.peers.work import GREEDY_TOKENS, Work

OURS = "tailrace"
# Rounding parts two right engines' texts early, but what each writes is likely to the other. Garbage is not: it costs
# many nats a token.
LIKELY = 1.0  # nats per token that a peer's text may be less likely to our model than our own


@dataclass(slots=True)
class Entry:
    """One engine's results. `problem` is set when it cannot be counted."""

    name: str
    worker: Worker
    version: str = ""
    problem: str = ""
    texts: list[str] = field(default_factory=list)
    likelihood: float = 0.0  # mean log-probability of its greedy tokens under our model
    rates: dict[str, list[float]] = field(default_factory=dict)

    def median(self, key: str) -> float | None:
        values = self.rates.get(key)
        return statistics.median(values) if values else None


def check_greedy(entries: Sequence[Entry], prompts: list[list[int]], decode: Callable[[list[int]], str]) -> None:
    """Have everyone answer the same prompts. A peer whose answers our model finds unlikely does not count."""
    ours = entries[0]
    for entry in entries:
        answers = [_attempt(entry, [prompt], GREEDY_TOKENS) for prompt in prompts]
        if entry.problem or ours.problem:
            continue
        outputs = [answer["outputs"][0] for answer in answers]
        entry.texts = [decode(tokens) for tokens in outputs]
        scores = [ours.worker.ask("score", prompt=p, tokens=t) for p, t in zip(prompts, outputs, strict=True)]
        entry.likelihood = round(statistics.mean(score["mean_logprob"] for score in scores), 3)
        if entry.likelihood < ours.likelihood - LIKELY:
            entry.problem = f"its greedy text is unlikely: {entry.likelihood} nats a token, ours {ours.likelihood}"


def run(entries: Sequence[Entry], work: Sequence[Work], rounds: int, probe: BandwidthProbe) -> list[dict[str, Any]]:
    """Fill the entries' rates; returns the bandwidth seen before each round."""
    seen = []
    for item in work:
        for number in range(rounds + 1):
            print(f"{item.name}: {f'round {number} of {rounds}' if number else 'warm-up'}", file=sys.stderr, flush=True)
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
        rows.append({"work": key, "medians": medians, "tailrace_over": ratios})
    return rows
