"""The sampling parameters of whoever runs, as the arrays that Model.sample takes.

Each slot's values are written once, when a sequence enters it. A step gathers them by slot; while the same
sequences run, even the gathered arrays are kept and only positions, histories and minimum lengths move. It is
told nothing: a slot whose owner changed is written anew, so preemption and resumption need no notice here.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.engine.grammar.masks import Masks
from tailrace.engine.sample.history import History
from tailrace.engine.sample.keys import sampling_key
from tailrace.engine.sample.restrict import Restriction, joined, restriction
from tailrace.engine.sequence import Group, Sequence

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
U64 = npt.NDArray[np.uint64]


class Parameters(NamedTuple):
    """Per row; names, order and meaning as in _native.pyi, `Model.sample` after `rows`."""

    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    typical_p: F32
    key: U64
    position: I32
    logprobs: I32
    penalties: F32
    history_starts: I32
    history_ids: I32
    history_counts: I32
    bias_starts: I32
    bias_ids: I32
    bias_values: F32


class Bias(NamedTuple):
    ids: I32
    values: F32


class SamplingBatch:
    def __init__(self, slots: int, end_ids: frozenset[int], vocab: int = 0) -> None:
        """`end_ids` are the model's end tokens, forbidden below a request's `min_tokens`. `vocab`: for masks."""
        self._end_ids = end_ids
        self._vocab = vocab
        self._restricted: list[Restriction | None] = [None] * slots
        self._any_restricted = False  # of those gathered
        self._owner: list[Sequence | None] = [None] * slots
        self._temperature = np.zeros(slots, np.float32)
        self._top_k = np.zeros(slots, np.int32)
        self._top_p = np.ones(slots, np.float32)
        self._min_p = np.zeros(slots, np.float32)
        self._typical_p = np.ones(slots, np.float32)
        self._key = np.zeros(slots, np.uint64)
        self._logprobs = np.full(slots, -1, np.int32)
        self._penalties = np.zeros((slots, 3), np.float32)
        self._history: list[History | None] = [None] * slots
        self._bias: list[Bias | None] = [None] * slots
        self._early: list[Bias | None] = [None] * slots  # the bias while below min_tokens
        self._gathered: tuple[list[int], tuple[F32, I32, F32, F32, F32, U64, I32, F32], bool] | None = None

    def parameters(self, samplers: Seq[Sequence], behind: Seq[int] | None = None) -> Parameters:
        """The arrays for these sequences' next tokens, in this order. Valid until the next call.

        `behind`: how many guesses stand between what is known and each row's token. They are in the sequence's tokens,
        and the row is sampled as if they had been generated.
        """
        slots = [sequence.slot for sequence in samplers]
        changed = self._enter(samplers, slots)
        if changed or self._gathered is None or self._gathered[0] != slots:
            self._gathered = (slots, self._gather(slots), self._plain(slots))
            self._any_restricted = any(self._restricted[slot] is not None for slot in slots)
        _, (temperature, top_k, top_p, min_p, typical_p, key, logprobs, penalties), plain = self._gathered
        known = [sequence.known or sequence.group.prompt_tokens for sequence in samplers]
        position = np.array(known, np.int32)
        if behind is not None:
            position += np.array(behind, np.int32)
        if plain:
            starts = np.zeros(len(slots) + 1, np.int32)
            extras = (starts, _NO_IDS, _NO_IDS, starts, _NO_IDS, _NO_VALUES)
        else:
            ahead = behind or [0] * len(slots)
            extras = (*self._histories(samplers, ahead), *self._biases(samplers, ahead))
        return Parameters(temperature, top_k, top_p, min_p, typical_p, key, position, logprobs, penalties, *extras)

    def masks(self, samplers: Seq[Sequence], behind: Seq[int] | None, grammars: Masks | None) -> Masks | None:
        """The grammars' masks, and what requests restrict besides. After `parameters` for the same samplers."""
        if not self._any_restricted:
            return grammars
        found = [self._restricted[sequence.slot] for sequence in samplers]
        return joined(found, samplers, behind or [0] * len(samplers), grammars)

    def _enter(self, samplers: Seq[Sequence], slots: list[int]) -> bool:
        changed = False
        for sequence, slot in zip(samplers, slots, strict=True):
            if self._owner[slot] is not sequence:
                self._write(sequence, slot)
                changed = True
        return changed

    def _write(self, sequence: Sequence, slot: int) -> None:
        group = sequence.group
        sampling = group.request.sampling
        self._owner[slot] = sequence
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = min(sampling.top_k, _MOST_INT32)
        self._top_p[slot] = max(sampling.top_p, _LEAST_FLOAT32)
        self._min_p[slot] = sampling.min_p
        self._typical_p[slot] = max(sampling.typical_p, _LEAST_FLOAT32)
        self._key[slot] = sampling_key(group.key_seed, sequence.index)
        self._logprobs[slot] = _reported(group)
        repetition = max(sampling.repetition_penalty, _LEAST_FLOAT32)
        self._penalties[slot] = (sampling.presence_penalty, sampling.frequency_penalty, repetition)
        penalised = sampling.presence_penalty or sampling.frequency_penalty or repetition != 1.0
        prompt = group.request.prompt if repetition != 1.0 else _NO_IDS
        self._history[slot] = History(prompt) if penalised else None
        self._bias[slot] = self._early[slot] = _bias(dict(sampling.logit_bias))
        stop = group.request.stop
        limited = self._restricted[slot] = restriction(group.request, self._vocab, self._end_ids)
        if (
            stop.min_tokens and group.grammar is None and limited is None
        ):  # else its masks see to it, which know what else may come
            ends = set(stop.token_ids) | (set() if stop.ignore_eos else self._end_ids)
            self._early[slot] = _bias(dict(sampling.logit_bias) | dict.fromkeys(ends, -np.inf))

    def _gather(self, slots: list[int]) -> tuple[F32, I32, F32, F32, F32, U64, I32, F32]:
        return (
            self._temperature[slots], self._top_k[slots], self._top_p[slots], self._min_p[slots],
            self._typical_p[slots], self._key[slots], self._logprobs[slots], self._penalties[slots],
        )  # fmt: skip

    def _plain(self, slots: list[int]) -> bool:
        return all(
            self._history[slot] is None and self._bias[slot] is None and self._early[slot] is None for slot in slots
        )

    def _histories(self, samplers: Seq[Sequence], behind: Seq[int]) -> tuple[I32, I32, I32]:
        parts: list[tuple[I32, I32]] = []
        for sequence, more in zip(samplers, behind, strict=True):
            history = self._history[sequence.slot]
            if history is None:
                parts.append((_NO_IDS, _NO_IDS))
                continue
            if sequence.known:
                start = sequence.group.prompt_tokens + history.generated
                for token in sequence.tokens[start : sequence.known].tolist():
                    history.push(token)
            parts.append(history.ahead(sequence.tokens[sequence.known : sequence.known + more].tolist()))
        ids, counts = [part[0] for part in parts], [part[1] for part in parts]
        return _starts(ids), np.concatenate(ids), np.concatenate(counts)

    def _biases(self, samplers: Seq[Sequence], behind: Seq[int]) -> tuple[I32, I32, F32]:
        parts: list[Bias | None] = []
        for sequence, more in zip(samplers, behind, strict=True):
            early = max(sequence.generated, 0) + more < sequence.group.request.stop.min_tokens
            parts.append((self._early if early else self._bias)[sequence.slot])
        ids = [_NO_IDS if part is None else part.ids for part in parts]
        values = [_NO_VALUES if part is None else part.values for part in parts]
        return _starts(ids), np.concatenate(ids), np.concatenate(values)


def forced(targets: I32, width: int) -> Parameters:
    """Parameters that choose exactly `targets`, one a row: so the sampler tells the log-probabilities of given tokens.

    It reports those of the raw logits, so a prompt token's are computed as a generated one's are. `width` is the
    number of alternatives.
    """
    rows = len(targets)
    zeros, none = np.zeros(rows, np.float32), np.zeros(rows + 1, np.int32)
    return Parameters(
        temperature=zeros,
        top_k=np.zeros(rows, np.int32),
        top_p=np.ones(rows, np.float32),
        min_p=zeros,
        typical_p=np.ones(rows, np.float32),
        key=np.zeros(rows, np.uint64),
        position=np.zeros(rows, np.int32),
        logprobs=np.full(rows, width, np.int32),
        penalties=np.tile(np.array([0.0, 0.0, 1.0], np.float32), (rows, 1)),
        history_starts=none,
        history_ids=_NO_IDS,
        history_counts=_NO_IDS,
        bias_starts=np.arange(rows + 1, dtype=np.int32),
        bias_ids=np.ascontiguousarray(targets, np.int32),
        bias_values=np.full(rows, 1e30, np.float32),
    )


def _reported(group: Group) -> int:
    """`logprobs` of Model.sample: a search adds up those of what it may choose."""
    if group.search is not None:
        return -2 - group.search.alternatives
    asked = group.request.sampling.logprobs
    return -1 if asked is None else asked


def _bias(entries: dict[int, float]) -> Bias | None:
    if not entries:
        return None
    return Bias(np.fromiter(entries.keys(), np.int32), np.fromiter(entries.values(), np.float32))


def _starts(parts: list[I32]) -> I32:
    return np.cumsum([0, *map(len, parts)], dtype=np.int32)


# A value beyond its array's type would end every sequence of the step, not only its own.
_MOST_INT32 = 2**31 - 1
_LEAST_FLOAT32 = float(np.finfo(np.float32).tiny)
_NO_IDS = np.empty(0, np.int32)
_NO_VALUES = np.empty(0, np.float32)
