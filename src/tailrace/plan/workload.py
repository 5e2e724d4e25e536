"""Recorded rows to requests: scaled in time and length, cut to a window, with prompts that share what the rows share.

A prompt's tokens mean nothing; they are equal where the trace says that texts are equal (`hash_ids`) and differ
everywhere else, so that the real prefix cache finds what it would find. How long an answer becomes is kept apart from
the request: whoever schedules it sees `max_tokens`, as with a real client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from tailrace.engine.sample.keys import mix64
from tailrace.errors import ConfigError
from tailrace.frozen import frozen
from tailrace.traces import TraceRow, scaled
from tailrace.types import GenerateRequest, SamplingParams, StopConditions, Tokens

_GREEDY = SamplingParams(temperature=0.0)
_BLOCK, _OWN = 1, 2  # kinds of text, so that a block and a row of the same number differ


@frozen
class Scale:
    """`rate` multiplies how many arrive in a second, `length` all lengths. `window`: seconds of the recorded time that
    are replayed. `poisson`: arrivals a second where the trace has none. `limit`: most requests. `max_input` and
    `max_output` shorten what is longer, after scaling; 0: nothing."""

    rate: float = 1.0
    length: float = 1.0
    window: tuple[float, float] | None = None
    poisson: float | None = None
    limit: int | None = None
    max_input: int = 0
    max_output: int = 0

    def row(self, row: TraceRow) -> TraceRow:
        row = scaled(row, self.length)
        return replace(
            row,
            input_tokens=min(row.input_tokens, self.max_input or row.input_tokens),
            output_tokens=min(row.output_tokens, self.max_output or row.output_tokens),
        )


@frozen
class Arrival:
    """`output`: tokens that the model will answer with; hidden from whoever schedules."""

    index: int
    at: float
    row: TraceRow

    @property
    def client(self) -> str:
        return self.row.client or "default"

    @property
    def output(self) -> int:
        return self.row.output_tokens


def arrivals(rows: Sequence[TraceRow], scale: Scale, seed: int) -> list[Arrival]:
    """In order of time, from 0. Raises ConfigError for a window without requests, or rows without times."""
    timed = list(_timed(rows, scale, seed))
    start, stop = scale.window or (0.0, float("inf"))
    kept = [(at, row) for at, row in timed if start <= at < stop][: scale.limit]
    if not kept:
        raise ConfigError(
            f"--window {start:g}-{stop:g}: nothing arrives then; the trace ends at {timed[-1][0]:.1f} s",
            param="--window",
        )
    first = scale.window[0] if scale.window else 0.0
    return [Arrival(index, (at - first) / scale.rate, scale.row(row)) for index, (at, row) in enumerate(kept)]


def _timed(rows: Sequence[TraceRow], scale: Scale, seed: int) -> Iterator[tuple[float, TraceRow]]:
    if rows[0].arrival is not None:
        yield from sorted(((row.arrival or 0.0, row) for row in rows), key=lambda timed: timed[0])
        return
    if scale.poisson is None:
        raise ConfigError("the trace has lengths only: add --rate, in requests a second", param="--rate")
    rng, now = Random(f"{seed}/arrivals"), 0.0
    for row in rows:
        yield now, row
        now += rng.expovariate(scale.poisson)


def request(arrival: Arrival, max_tokens: int) -> GenerateRequest:
    """As the protocol makes it: `max_tokens` is what the client allows, already within the context."""
    return GenerateRequest(str(arrival.index), "", tokens(arrival), _GREEDY, StopConditions(max_tokens))


def tokens(arrival: Arrival) -> Tokens:
    """The prompt: whole blocks by their ids as far as the length goes, then text of its own."""
    row, parts, left = arrival.row, [], arrival.row.input_tokens
    for block in row.blocks:
        if left < row.block_tokens:
            break
        parts.append(_text(_BLOCK, block, row.block_tokens))
        left -= row.block_tokens
    if left:
        parts.append(_text(_OWN, arrival.index, left))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _text(kind: int, number: int, length: int) -> Tokens:
    """Tokens that no other text has in the same place, but by an accident of one in a thousand million."""
    start = mix64(number << 2 | kind) & 0x3FFF_FFFF
    return np.arange(start, start + length, dtype=np.int32)
