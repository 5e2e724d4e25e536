"""Carries out a StepPlan on the native executor. Decides nothing; owns only reusable argument arrays.

A runner's two calls are separate so that grammar masks and the sampler's arguments are made while the forward runs.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tailrace.engine.grammar.certain import certain_guesses, with_certain
from tailrace.engine.kv.manager import BlockTable
from tailrace.engine.pool import Hidden
from tailrace.engine.pool import wanted as wanted_states
from tailrace.engine.sample.batch import Parameters, SamplingBatch, forced
from tailrace.engine.sequence import Sequence
from tailrace.engine.step import Row, Scores, StepPlan, StepResult

if TYPE_CHECKING:  # plans can be made and faked without the native module
    from tailrace._native import Adapter, KvCache, Model
    from tailrace.engine.grammar.masks import MaskMaker, Masks

I32 = npt.NDArray[np.int32]


class Runner(Protocol):
    def forward(self, plan: StepPlan) -> None:
        """Make the plan's copies, then begin to compute its rows. Logits stay inside until `sample`."""
        ...

    def sample(self, plan: StepPlan) -> StepResult:
        """Choose a token for each sampler of the plan, when it is computed."""
        ...


class _Draw(NamedTuple):
    """Samples of a step: who gets them, `behind` how many guesses, and from which logits."""

    samplers: Seq[Sequence]
    behind: list[int] | None
    at: I32
    parameters: Parameters
    asked: list[int] | None = None  # their places among the plan's samples; None: all


class NativeRunner:
    def __init__(
        self,
        model: Model,
        kv: KvCache,
        *,
        slots: int,
        max_blocks: int,
        end_ids: frozenset[int] = frozenset(),
        masks: MaskMaker | None = None,
        vocab: int = 0,
    ) -> None:
        """`slots` sequences run at most, each with at most `max_blocks` KV blocks. No grammars without `masks`.
        `vocab`: the size of masks."""
        self._model = model
        self._kv = kv
        self._masks = masks
        self._sampling = SamplingBatch(slots, end_ids, vocab)
        self._tables = np.zeros((slots, max_blocks), np.int32)
        self._copied: list[tuple[BlockTable | None, int]] = [(None, 0)] * slots  # what each row of _tables shows
        self._counting = np.arange(slots + 1, dtype=np.int32)
        self._plain = False
        self._sample_at: list[int] = []  # per row of the plan: where the logits of its first place are, or would be
        self._certain: dict[int, int] = {}  # by row, its first guesses that need no logits
        self._score_at: list[tuple[Row, int]] = []  # scoring rows and the index of their first logits

    def forward(self, plan: StepPlan) -> None:
        copy_blocks(self._kv, plan)
        rows = plan.rows
        self._show(rows)
        counts = [row[2] for row in rows]
        firsts = np.array([row[1] for row in rows], np.int32)
        # One token of each sequence, and one sampled from each: the logits of every row, in order.
        self._plain = sum(counts) == len(rows) and plan.one_each
        if self._plain:
            tokens = np.array([row[0].tokens.item(row[1]) for row in rows], np.int32)
            starts, wanted = self._counting[: len(rows) + 1], self._counting[: len(rows)]
            self._score_at.clear()
            self._certain = {}
        else:
            tokens = np.concatenate([sequence.tokens[first : first + count] for sequence, first, count, _, _ in rows])
            at = list(accumulate(counts, initial=0))
            starts, wanted = np.array(at, np.int32), np.array(self._logit_rows(plan, at), np.int32)
        hidden_only = 0
        if plan.pooled:
            more = self._hidden_rows(plan, starts)
            hidden_only, wanted = len(more), np.concatenate([wanted, more])
        tables = self._tables[: len(rows)]
        self._model.begin(self._kv, tokens, starts, firsts, tables, wanted, hidden_only, adapters=adapters_of(rows))
        if self._masks is not None:
            self._masks.begin(plan)

    def sample(self, plan: StepPlan) -> StepResult:
        try:
            draw = self._prepared(plan) if plan.samplers else None
        finally:
            masks = self._settled()
        scores = tuple([self._score(row, at) for row, at in self._score_at])
        if draw is None:
            result = StepResult([], _NO_F32, _NO_TOP_IDS, _NO_TOP, scores)
        else:
            result = self._drawn(draw, masks, scores)
            if draw.asked is not None:
                result = with_certain(plan, draw.asked, result)
        return replace(result, hidden=self._hidden(plan)) if plan.pooled else result

    def _settled(self) -> Masks | None:
        """The plan's masks, when everything is computed."""
        try:
            self._model.settle()
        finally:
            masks = None if self._masks is None else self._masks.take()
        return masks

    def _prepared(self, plan: StepPlan) -> _Draw:
        """The draws of a plan, while it is computed."""
        samplers, rows, behind = plan.samplers, plan.sample_rows, plan.behind if plan.drafts else None
        if not self._certain:
            return _Draw(samplers, behind, self._logits_of(rows, behind), self._sampling.parameters(samplers, behind))
        assert behind is not None
        asked = [i for i, row in enumerate(rows) if behind[i] >= self._certain.get(row, 0)]
        some, more = [samplers[i] for i in asked], [behind[i] for i in asked]
        at = self._logits_of([rows[i] for i in asked], more)
        return _Draw(some, more, at, self._sampling.parameters(some, more), asked)

    def _drawn(self, draw: _Draw, masks: Masks | None, scores: tuple[Scores, ...]) -> StepResult:
        """`masks` are those of all samples."""
        if masks is not None and draw.asked is not None:
            masks = masks.of(draw.asked)
        masks = self._sampling.masks(draw.samplers, draw.behind, masks)
        tokens, logprobs, top_ids, top = self._model.sample(draw.at, *draw.parameters, *(masks or ()))
        result = StepResult(tokens.tolist(), logprobs, top_ids, top, scores)
        return result if masks is None else masks.refuse_broken(draw.samplers, result)

    def _logits_of(self, rows: Seq[int], behind: list[int] | None) -> I32:
        """For each sample, which logits it is drawn from."""
        if self._plain:
            return self._counting[: len(rows)]
        at = [self._sample_at[row] for row in rows]
        return np.array(at if behind is None else [a + more for a, more in zip(at, behind, strict=True)], np.int32)

    def _hidden_rows(self, plan: StepPlan, starts: I32) -> I32:
        """Flat rows whose hidden states are wanted, ascending: they stand behind those with logits."""
        place = len(plan.rows) - plan.pooled
        found = []
        for row, start in zip(plan.rows[place:], starts[place:].tolist(), strict=False):
            low, high = wanted_states(row.sequence, row.first, row.size)
            found.append(np.arange(start + low - row.first, start + high - row.first, dtype=np.int32))
        return np.concatenate(found)

    def _hidden(self, plan: StepPlan) -> tuple[Hidden, ...]:
        """The last rows of the forward's hidden states, by sequence."""
        pooled = plan.rows[len(plan.rows) - plan.pooled :]
        spans = [(row.sequence, *wanted_states(row.sequence, row.first, row.size)) for row in pooled]
        states = self._model.hidden()
        at = len(states) - sum(high - low for _, low, high in spans)
        found = []
        for sequence, low, high in spans:
            found.append(Hidden(sequence, low, states[at : at + high - low]))
            at += high - low
        return tuple(found)

    def _show(self, rows: Seq[Row]) -> None:
        """Copy the blocks of those that have others than their place in `_tables` shows."""
        for place, (row, (shown, changes)) in enumerate(zip(rows, self._copied, strict=False)):
            table = row[0].table
            assert table is not None
            if shown is not table or changes != table.changes:
                used = len(table.blocks)
                self._tables[place, :used] = table.row[:used]
                self._copied[place] = (table, table.changes)

    def _logit_rows(self, plan: StepPlan, starts: list[int]) -> list[int]:
        """Flat rows that need logits, ascending; notes where each row's logits will begin."""
        wanted: list[int] = []
        sampled = set(plan.sample_rows)
        drafted = {draft.row: draft.size for draft in plan.drafts}
        self._certain = certain_guesses(plan) if drafted else {}
        self._sample_at = [-1] * len(plan.rows)
        self._score_at.clear()
        for place, row in enumerate(plan.rows):
            if row.score_to > row.score_from:
                self._score_at.append((row, len(wanted)))
                base = starts[place] - row.first - 1
                wanted.extend(range(base + row.score_from, base + row.score_to))
            if place in sampled:
                certain = self._certain.get(place, 0)
                self._sample_at[place] = len(wanted) - certain
                wanted.extend(range(starts[place + 1] - 1 - drafted.get(place, 0) + certain, starts[place + 1]))
        return wanted

    def _score(self, row: Row, at: int) -> Scores:
        sequence, start, stop = row.sequence, row.score_from, row.score_to
        width = sequence.group.request.prompt_logprobs or 0
        where = np.arange(at, at + stop - start, dtype=np.int32)
        parameters = forced(sequence.tokens[start:stop], width)
        _, logprobs, top_ids, top = self._model.sample(where, *parameters)
        return Scores(sequence, start, logprobs, top_ids, top)


def adapters_of(rows: Seq[Row]) -> list[Adapter | None] | None:
    """Of each row's request; None when none has one."""
    found = [row[0].group.adapter for row in rows]
    return found if any(found) else None


def copy_blocks(kv: KvCache, plan: StepPlan) -> None:
    """The plan's copies in order: at once, unless one reads or overwrites what another writes."""
    if not plan.copies:
        return
    batches: Seq[Seq[tuple[int, int]]] = [plan.copies]
    written = {copy.dst for copy in plan.copies}
    if len(written) < len(plan.copies) or any(copy.src in written for copy in plan.copies):
        batches = [[copy] for copy in plan.copies]
    for batch in batches:
        src, dst = np.array(batch, np.int32).T
        kv.copy_blocks(np.ascontiguousarray(src), np.ascontiguousarray(dst))


_NO_F32 = np.empty(0, np.float32)
_NO_TOP_IDS = np.empty((0, 0), np.int32)
_NO_TOP = np.empty((0, 0), np.float32)
