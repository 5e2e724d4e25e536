"""Beam search written down plainly, over a function from tokens to log-probabilities of the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logprobs = Callable[[list[int]], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Found:
    tokens: list[int]
    score: float
    ended: bool


def beam_search(
    logprobs: Logprobs,
    prompt: list[int],
    width: int,
    most: int,
    ends: frozenset[int],
    penalty: float = 1.0,
    stopping: bool | None = False,
    least: int = 0,
) -> list[Found]:
    """The rules of transformers' `generate(num_beams=width)`: best first. `least`: no end before that many tokens."""
    running: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Found] = []
    for length in range(1, most + 1):
        table = []
        for rank, (total, said) in enumerate(running):
            row = logprobs(prompt + said)
            for token in range(len(row)):
                if np.isfinite(row[token]) and not (token in ends and length < least):
                    table.append((total + float(row[token]), rank, float(row[token]), token))
        table.sort(key=lambda each: (-each[0], each[1], -each[2], each[3]))
        whole = [(total, running[rank][1] + [token]) for total, rank, _, token in table]
        stops = [said[-1] in ends or length == most for _, said in whole]
        just = [
            Found(said, total / length**penalty, said[-1] in ends)
            for (total, said), stop in zip(whole[:width], stops, strict=False)
            if stop
        ]
        finished = sorted(finished + just, key=lambda one: -one.score)[:width]
        running = [one for one, stop in zip(whole, stops, strict=True) if not stop][:width]
        if not running:
            break
        if len(finished) == width:
            if stopping is True:
                break
            reach = most if stopping is None and penalty > 0 else length
            if running[0][0] / reach**penalty <= finished[-1].score:
                break
    return finished
