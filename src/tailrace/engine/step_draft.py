"""A step's plan in the making: rows, samplers and work counts as the scheduler adds them."""

from __future__ import annotations

from math import inf

from tailrace.engine.sequence import Sequence, State
from tailrace.engine.spec.draft import guess_reads
from tailrace.engine.standing import Turn
from tailrace.engine.step import Draft, Preemption, Row

_new = tuple.__new__  # a row without the call of its class in between: one for each running answer and step


class StepDraft:
    """A plan in the making."""

    def __init__(self, sits_out: bool = False, turn: Turn = Turn(), seconds: float = inf) -> None:  # noqa: B008 frozen
        """`sits_out`: background rows are not in this step. `seconds`: how long it may take where it is to be short."""
        self.sits_out = sits_out
        self.turn = turn
        self.seconds = seconds
        self.rested: list[Sequence] = []  # decode rows for which a short step had no room
        self.rows: list[Row] = []
        self.samplers: list[Sequence] = []
        self.sample_rows: list[int] = []
        self.preemptions: list[Preemption] = []
        self.stalled: set[Sequence] = set()  # decode rows that get no block in this step
        self.drafts: list[Draft] = []
        self.score_rows = 0
        self.pooled = 0  # rows at the end that are parts of prompts to be vectors
        self.decode = self.kv_tokens = self.prefill = self.attention = 0

    @property
    def leaves_out(self) -> bool:
        """Whether not everyone who could is in this step."""
        return self.sits_out or self.turn.sit_out or self.seconds < inf

    @property
    def broken(self) -> bool:
        """Whether one that has a row gave way to a later one."""
        return bool(self.preemptions) and any(row.sequence.state is not State.RUNNING for row in self.rows)

    def waits(self, sequence: Sequence) -> bool:
        """Whether it makes way for a short prompt of a group with savings."""
        request = sequence.group.request
        return self.turn.sit_out and (request.background or request.share_group in self.turn.above)

    def add_decode(self, sequence: Sequence, first: int) -> None:
        """A row behind the prompt: it is sampled, and has no followers and no scores."""
        self.samplers.append(sequence)
        self.sample_rows.append(len(self.rows))
        self.rows.append(_new(Row, (sequence, first, 1, 0, 0)))
        self.count_decode(first)

    def count_decode(self, first: int) -> None:
        self.decode += 1
        self.kv_tokens += first + 1

    def add_guesses(self, place: int, guesses: list[int]) -> None:
        """Widen a row that `add_decode` made."""
        sequence, first, *_ = self.rows[place]
        size = len(guesses)
        sequence.tokens[first + 1 : first + 1 + size] = guesses
        self.rows[place] = Row(sequence, first, 1 + size)
        self.drafts.append(Draft(place, self.sample_rows.index(place), len(self.samplers), size))
        self.samplers += [sequence] * size
        self.sample_rows += [place] * size
        self.decode += size
        self.kv_tokens += size * guess_reads(first)

    def add(self, row: Row) -> None:
        sequence, first, size, *_ = row
        if first + size == sequence.known and sequence.group.request.stop.max_tokens:
            self.samplers.append(sequence)
            self.sample_rows.append(len(self.rows))
            for follower in sequence.followers if sequence.group.search is None else ():
                self.samplers.append(follower)
                self.sample_rows.append(len(self.rows))
        self.rows.append(row)

    def move_pooled(self) -> None:
        """Rows of prompts that become vectors go to the end. They are not sampled; of those that are, prompts' stand
        behind all with guesses."""
        pooled = [row for row in self.rows if row.sequence.pools]
        if not pooled:
            return
        self.pooled = len(pooled)
        kept = [place for place, row in enumerate(self.rows) if not row.sequence.pools]
        moved = {place: at for at, place in enumerate(kept)}
        self.sample_rows = [moved[place] for place in self.sample_rows]
        self.drafts = [draft._replace(row=moved[draft.row]) for draft in self.drafts]
        self.rows = [self.rows[place] for place in kept] + pooled
