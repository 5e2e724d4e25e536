"""A small model of the same vocabulary that says how answers go on: its own executor and KV books beside the engine's.

For each sequence it follows there is a twin that shares the tokens and has its own blocks. A call lets the twins catch
up with what is known (a bounded number of tokens, so that a long prompt takes several calls), then takes a few steps of
one token each, of all twins together. Guesses are drawn with the sequence's own temperature, filters, bias and noise:
where the two models agree, the same noise picks the same token. Penalties are left out, as their history would have to
be taken back with every rejected guess. So are adapters, which are the large model's: guesses are right less often, no
more.

What follows an accepted guess stays computed; the rest is written over. Runs on the engine's thread, before the step.
Its blocks are named for others only up to tokens that count.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from tailrace.clock import Clock
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.runner import Runner
from tailrace.engine.sequence import Group, Sequence, State
from tailrace.engine.step import Row, StepPlan, Work

CATCH_UP = 256  # most tokens of one call that are not guesses
_SMOOTHING = 0.2


class _Twin:
    """`known`: what its sequence knew at the last guesses; `guesses`: those, all but the last computed."""

    def __init__(self, sequence: Sequence, kv: KvManager) -> None:
        request = sequence.group.request
        sampling = replace(
            request.sampling, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, logprobs=None
        )
        plain = replace(request, n=1, prompt_logprobs=None, sampling=sampling, adapter=None)
        self.sequence = Sequence(Group(plain, 0, sequence.group.key_seed), sequence.index)
        self.sequence.tokens = sequence.tokens
        self.sequence.table = kv.open(sequence.tokens[: sequence.known], plain.cache_key)
        self.sequence.computed = self.known = kv.matched(self.sequence.table)
        self.guesses: list[int] = []

    def follow(self, sequence: Sequence) -> None:
        """Take over what came since: of what was computed, all before the first wrong guess is right."""
        came = sequence.tokens[self.known : self.known + len(self.guesses)].tolist()
        agree = next(
            (i for i, pair in enumerate(zip(self.guesses, came, strict=True)) if pair[0] != pair[1]), len(came)
        )
        twin = self.sequence
        twin.computed = min(twin.computed, self.known + agree, sequence.known - 1)
        twin.known = self.known = sequence.known
        twin.slot = sequence.slot
        self.guesses = []


class DraftModel:
    def __init__(self, runner: Runner, kv: KvManager, clock: Clock, max_context: int) -> None:
        """`runner` has a slot for each of the engine's; `kv` is its own. No guesses beyond `max_context` tokens."""
        self.kv = kv
        self.seconds = 0.0  # smoothed time of a step of one token for each sequence
        self._runner = runner
        self._clock = clock
        self._max_context = max_context
        self._twins: dict[Sequence, _Twin] = {}

    def propose(self, sequences: Seq[Sequence], length: int) -> list[list[int]]:
        """At most `length` guesses for each, none for those that could not catch up or have no room."""
        self._leave_ended()
        twins = [self._follow(sequence, length) for sequence in sequences]
        rows = self._catch_up([twin for twin in twins if twin is not None])
        for ahead in range(length):
            if not rows:
                break
            self._step(rows, timed=ahead > 0)
            rows = [Row(row.sequence, row.sequence.known - 1, 1) for row in rows if self._goes_on(row.sequence)]
        return [[] if twin is None else self._take_guesses(twin) for twin in twins]

    def _leave_ended(self) -> None:
        """Give back the blocks of sequences that do not run any more."""
        for sequence in [one for one in self._twins if one.state is not State.RUNNING]:
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        table = self._twins.pop(sequence).sequence.table
        assert table is not None
        self.kv.release(table)

    def _follow(self, sequence: Sequence, length: int) -> _Twin | None:
        if min(sequence.draft_room, self._max_context - sequence.known) < length:
            return None
        twin = self._twins.get(sequence)
        if twin is None:
            twin = self._twins[sequence] = _Twin(sequence, self.kv)
        twin.follow(sequence)
        return twin

    def _catch_up(self, twins: list[_Twin]) -> list[Row]:
        """Rows that compute all that is known. Those for which that is too much get nearer to it."""
        rows, left = [], CATCH_UP
        for one in twins:
            twin = one.sequence
            size = min(twin.todo, left)
            assert twin.table is not None
            if not size or not self.kv.reserve(twin.table, twin.computed, twin.computed + size):
                continue
            left -= size
            row = Row(twin, twin.computed, size)
            if size == twin.todo:
                rows.append(row)
            else:
                self._compute([row], ())
        return rows

    def _goes_on(self, twin: Sequence) -> bool:
        """Has its last guess, and a block for computing it."""
        assert twin.table is not None
        return twin.todo == 1 and self.kv.reserve(twin.table, twin.computed, twin.known)

    def _step(self, rows: list[Row], *, timed: bool) -> None:
        """Compute the rows and add a guess to each."""
        started = self._clock.now()
        tokens = self._compute(rows, tuple(row.sequence for row in rows))
        if timed:
            self.seconds += (_SMOOTHING if self.seconds else 1.0) * (self._clock.now() - started - self.seconds)
        for row, token in zip(rows, tokens, strict=True):
            if token >= 0:
                row.sequence.append(token)

    def _compute(self, rows: list[Row], samplers: tuple[Sequence, ...]) -> list[int]:
        plan = StepPlan(tuple(rows), samplers, tuple(range(len(samplers))), Work(), self.kv.take_copies())
        self._runner.forward(plan)
        tokens = self._runner.sample(plan).tokens
        self.kv.take_evictions()
        for row in rows:
            row.sequence.computed = row.first + row.size
        return tokens

    def _take_guesses(self, one: _Twin) -> list[int]:
        """Its guesses; what counts is named, and the twin stands where its sequence does."""
        twin = one.sequence
        assert twin.table is not None
        one.guesses = twin.tokens[one.known : twin.known].tolist()
        twin.known = one.known
        self.kv.commit(twin.table, twin.tokens, min(twin.computed, one.known))
        self.kv.trim(twin.table, max(twin.computed, 1))
        return one.guesses
