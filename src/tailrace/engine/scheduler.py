"""What each step computes. Pure: no tensors, threads or clock, so the simulator runs this very class.

`plan(now)` lets every sequence's computed tokens catch up with its known ones under the step budget: decode rows
first (one token each), then prompts, then chunks of the prompts that are admitted. `commit` moves the counters,
gives full blocks to the prefix cache, appends the sampled tokens and starts the further choices of a prompt.
`finish` and `abort` end sequences at any time between steps and free slot and blocks at once.

A drafter may guess how a sequence goes on: its decode row then computes the guesses too, in blocks that nobody else
needs, and as many are kept as the sampler confirms (`engine/spec`). The counters of the rest fall back.

When blocks run out while decoding, one of the lowest priority is preempted, of the share group most in debt
(`standing.py`), the newest: it keeps its tokens, gives up its blocks and waits first in line to be recomputed. None is
preempted more than `max_preemptions` times while another can be; when no victim is left the step goes on without it.

Rows that sit out for a group within its part, or for which a short step has no room, are computed in a later step.

A waiting sequence of higher priority takes the slot of a running one that has no token yet, or is background: that
one is parked, which loses nothing while its blocks are not needed. Background rows sit out steps that compute other
prompts (`max_yields` in a row), and their prompts get what the others leave of a step.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf

from tailrace.engine.ahead import Ahead
from tailrace.engine.beam_step import BeamSearches, take_offer
from tailrace.engine.budget import ChunkBudget
from tailrace.engine.kv.manager import BlockTable, KvManager
from tailrace.engine.limits import Limits, validate
from tailrace.engine.sequence import NO_SLOT, Group, Sequence, State
from tailrace.engine.share import Served, Want, divide, unweighed, weighed, whole
from tailrace.engine.spec.draft import Drafter, verify
from tailrace.engine.standing import Standings, Turn
from tailrace.engine.step import BAD, Preemption, Row, StepPlan, StepResult, Update, Work
from tailrace.engine.step_draft import StepDraft
from tailrace.errors import InternalError, TailraceError
from tailrace.types import FinishReason, GenerateRequest

_new = tuple.__new__  # as in step_draft
_RUNNING = State.RUNNING  # looking up a member of an enum takes as long as a row's counters


class Scheduler:
    def __init__(self, kv: KvManager, limits: Limits, budget: ChunkBudget, drafter: Drafter | None = None) -> None:
        self.kv = kv
        self.drafter = drafter
        self.limits = limits
        self.budget = budget
        self.running: list[Sequence] = []  # by Sequence.order: the last is preempted first
        self._waiting: list[tuple[int, int, int, int, Sequence]] = []  # heap; finished ones are dropped when met
        self._slots = list(range(limits.max_sequences - 1, -1, -1))
        self._blocked: tuple[Sequence, int] | None = None  # head that did not fit, and the blocks there were
        self._parked: list[Sequence] = []  # waiting with their blocks
        self._served = Served()
        self._searches = BeamSearches()
        self.standings = Standings()
        self.turn = Turn()  # of the last plan
        self._ahead: Ahead | None = None
        self._yielded = 0  # steps in a row that background rows sat out
        self._stale = 0  # finished sequences that may still be in the heap
        self.waiting_count = 0  # sequences, further choices included
        self.waiting_tokens = 0  # known tokens of those

    # ---- requests come and go -------------------------------------------------------------------------------

    def validate(self, request: GenerateRequest) -> None:
        """Raise the typed error of a request that could never run. Safe from any thread."""
        validate(request, self.limits, self.kv)

    def submit(self, group: Group) -> None:
        """Queue a request that `validate` accepted."""
        self._searches.add(group)
        self._wait(group.sequences[0], preempted=False)

    def finish(self, sequence: Sequence, reason: FinishReason, now: float, *, forget: bool = False) -> None:
        """End a sequence and free what it holds. `forget`: its cached blocks are not to be trusted."""
        assert sequence.state is not State.FINISHED, "a sequence ends once"
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
            self._give_up(sequence, forget=forget)
        elif sequence.state is State.WAITING:
            self._uncount(sequence)
            self._stale += 1
            if sequence in self._parked:
                self._parked.remove(sequence)
                self._give_up(sequence, forget=forget)
        self._free_slot(sequence)
        sequence.state = State.FINISHED
        sequence.finish = reason
        sequence.finished = now
        sequence.notes = sequence.constraint = None
        if self._stale > 64 + len(self._waiting) // 2:
            self._drop_stale()

    def end(self, group: Group, reason: FinishReason, now: float, error: Exception | None = None) -> list[Update]:
        """End every choice that has not ended, in whatever phase it is."""
        updates = []
        for sequence in group.sequences:
            if sequence.state is not State.FINISHED:
                self.finish(sequence, reason, now, forget=reason is FinishReason.ERROR)
                updates.append(Update(sequence, None, -1, reason, error))
        return updates

    def reset(self, groups: Iterable[Group], now: float) -> None:
        """Begin anew after a broken invariant: these groups (all that live) are finished, the cache is empty."""
        for sequence in (sequence for group in groups for sequence in group.sequences):
            if sequence.state is not State.FINISHED:
                sequence.state, sequence.finish, sequence.finished = State.FINISHED, FinishReason.ERROR, now
                sequence.table, sequence.slot = None, NO_SLOT
        self.running.clear()
        self._parked.clear()
        self._searches.clear()
        self._waiting.clear()
        self._slots = list(range(self.limits.max_sequences - 1, -1, -1))
        self._stale = self.waiting_count = self.waiting_tokens = 0
        self._blocked = None
        self.kv.reset()

    @property
    def has_work(self) -> bool:
        return bool(self.running) or self.waiting_count > 0

    @property
    def free_slots(self) -> int:
        return len(self._slots)

    def live_tables(self) -> list[BlockTable]:
        return [one.table for one in (*self.running, *self._parked) if one.table is not None]

    # ---- planning -------------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None when there is nothing to do."""
        preemptions: list[Preemption] = []
        sits_out = self._sits_out()
        while True:
            turn = self.standings.turn(self.running, now)
            short = self.budget.short_step(self.standings.shortest) if turn.short else inf
            draft = self._begun(sits_out, turn, short)
            if draft.broken:
                preemptions += draft.preemptions
                continue
            if not draft.preemptions:
                self._admit(draft, now)
                if draft.preemptions:  # some of its rows are of sequences that gave way
                    preemptions += draft.preemptions
                    continue
                if self.standings.turn(self.running, now) != turn:  # someone started for whom others make way
                    continue
                self._guess(draft)
            if len(draft.rows) < len(self.running):
                self._prefill(draft)
            if not draft.rows and not draft.preemptions:
                if not self.running:
                    return None
                self._preempt(draft, max(self.running, key=self._place), "kv_deadlock")
            preemptions += draft.preemptions
            if draft.rows:
                break
        self.turn = turn
        for sequence in draft.rested:
            sequence.rested += 1
        return StepPlan(
            tuple(draft.rows),
            tuple(draft.samplers),
            tuple(draft.sample_rows),
            Work(draft.prefill, draft.decode, draft.kv_tokens, draft.attention),
            self.kv.take_copies(),
            tuple(preemptions),
            self.kv.take_evictions(),
            tuple(draft.drafts),
            draft.pooled,
        )

    def look_ahead(self, plan: StepPlan) -> None:
        """While `plan` is computed: make the decode rows that the next one will likely have."""
        alike = len(plan.rows) == len(self.running) and plan.one_each and not self._searches
        self._ahead = Ahead(self.running, self.kv) if alike else None

    def _begun(self, sits_out: bool, turn: Turn, seconds: float) -> StepDraft:
        """A draft with its decode rows."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and not sits_out and not turn.above and ahead.holds(self.running, self.kv):
            return ahead.draft
        draft = StepDraft(sits_out, turn, seconds)
        self._decode(draft)
        return draft

    def _decode(self, draft: StepDraft) -> None:
        """Rows for the sequences that lack one token."""
        holds, reserve = self.kv.holds, self.kv.reserve
        for sequence in self._decoding(draft):
            first, table = sequence.computed, sequence.table
            if sequence.state is not _RUNNING:
                continue
            assert table is not None
            if not (holds(table, first) or reserve(table, first, first + 1) or self._make_room(draft, sequence)):
                draft.stalled.add(sequence)
                continue
            if first < sequence.group.prompt_tokens:
                draft.add(self._row(draft, sequence, 1))
                draft.count_decode(first)
            else:
                draft.add_decode(sequence, first)

    def _decoding(self, draft: StepDraft) -> list[Sequence]:
        """Sequences that lack one token and are in this step."""
        rows = [one for one in self.running if one.known - one.computed == 1 and not one.pools]
        if not draft.leaves_out:
            return rows
        for one in rows:
            if (draft.sits_out and one.group.request.background) or draft.waits(one):
                draft.stalled.add(one)
        rows = [one for one in rows if one not in draft.stalled]
        return rows if draft.seconds == inf else self._short(draft, rows)

    def _short(self, draft: StepDraft, rows: list[Sequence]) -> list[Sequence]:
        """Those that fit a short step: of groups within their part, then those that rested longest."""
        above = draft.turn.above
        rows.sort(key=lambda one: (one.group.request.share_group in above, -one.rested))
        prompts = any(one.todo > 1 and one.group.request.step_share >= 1.0 for one in self.running)
        count = self.budget.short_rows((one.computed for one in rows), draft.seconds, prompts)
        draft.rested = rows[count:]
        draft.stalled.update(draft.rested)
        for one in rows[:count]:
            one.rested = 0
        return rows[:count]

    def _sits_out(self) -> bool:
        """Whether background rows leave this step to prompts that someone waits for."""
        running = self.running
        if not running or not running[-1].group.request.background or self._yielded >= self.limits.max_yields:
            self._yielded = 0
            return False
        busy = any(one.todo > 1 and not one.group.request.background for one in running)
        self._yielded = self._yielded + 1 if busy else 0
        return busy

    def _guess(self, draft: StepDraft) -> None:
        """Ask the drafter about the rows behind their prompts."""
        rows = draft.rows
        if self.drafter is None:
            return
        places = [place for place, row in enumerate(rows) if _may_guess(row)]
        if not places:
            return
        drafts = self.drafter.draft([rows[place].sequence for place in places], Work(0, draft.decode, draft.kv_tokens))
        for place, guesses in zip(places, drafts, strict=True):
            size = self._fitting(rows[place].sequence, len(guesses))
            if size:
                draft.add_guesses(place, guesses[:size])

    def _fitting(self, sequence: Sequence, size: int) -> int:
        """Guesses that the sequence's blocks hold, with another block while there is more than one for each."""
        kv, table, first = self.kv, sequence.table, sequence.computed
        assert table is not None
        size = min(size, sequence.draft_room)
        held = len(table.blocks) * kv.block_tokens - first - 1
        if size > held and kv.available > len(self.running) and kv.reserve(table, first, first + 1 + size):
            return size
        return min(size, held)

    def _make_room(self, draft: StepDraft, sequence: Sequence) -> bool:
        """Preempt from the end of the order until `sequence` has its block; False when it must sit out or went."""
        table = sequence.table
        assert table is not None
        while not self.kv.reserve(table, sequence.computed, sequence.known):
            if self._drop_parked(draft):
                continue
            victim = self._victim(sequence)
            if victim is None:
                return False
            self._preempt(draft, victim, "kv_full")
            if victim is sequence:
                return False
        return True

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """Of the lowest priority, then of the group most in debt, then the newest; itself where none comes after it."""
        for other in sorted(self.running, key=self._place, reverse=True):
            if other.preemptions < self.limits.max_preemptions:
                return other
            if other is sequence:
                break
        return None

    def _place(self, sequence: Sequence) -> tuple[int, float, int, int]:
        """The greatest gives up its blocks first."""
        priority, arrival, index = sequence.order()
        return priority, self.standings.debt(sequence.group.request.share_group), arrival, index

    def _preempt(self, draft: StepDraft, sequence: Sequence, reason: str, *, park: bool = False) -> None:
        """Back among the waiting, first of its priority; `park`: with its blocks."""
        lost = 0 if park else sequence.computed
        draft.preemptions.append(Preemption(sequence.group.request.id, sequence.index, lost, reason))
        self.running.remove(sequence)
        for member in (sequence, *sequence.followers):
            self._free_slot(member)
        if park:
            self._parked.append(sequence)
        else:
            self._give_up(sequence)
            sequence.computed = 0
        sequence.preemptions += 1
        sequence.group.preemptions += 1
        self._wait(sequence, preempted=True)

    def _drop_parked(self, draft: StepDraft) -> bool:
        """Take the blocks of the parked sequence that comes last; it will be recomputed."""
        if not self._parked:
            return False
        sequence = max(self._parked, key=self._place)
        self._parked.remove(sequence)
        draft.preemptions.append(
            Preemption(sequence.group.request.id, sequence.index, sequence.computed, "kv_full_parked")
        )
        self._give_up(sequence)
        sequence.computed = 0
        return True

    def _admit(self, draft: StepDraft, now: float) -> None:
        """Start waiting sequences in order, while slots and blocks last; nobody overtakes the first that must wait."""
        while self._waiting:
            sequence = self._waiting[0][-1]
            if sequence.state is State.WAITING:
                if not self._slots_for(draft, sequence) or not self._open_or_take(draft, sequence):
                    return
                heappop(self._waiting)
                self._start(sequence, now)
            else:
                heappop(self._waiting)

    def _slots_for(self, draft: StepDraft, sequence: Sequence) -> bool:
        """Enough slots for it and its choices, some taken from sequences of lower priority that can be parked."""
        need = 1 + len(sequence.followers) - len(self._slots)
        if need <= 0:
            return True
        yielding = [other for other in reversed(self.running) if self._gives_way(other, sequence)]
        if sum(1 + len(other.followers) for other in yielding) < need:
            return False
        for other in yielding:
            if need > 0:
                need -= 1 + len(other.followers)
                self._preempt(draft, other, "priority", park=True)
        return True

    def _gives_way(self, other: Sequence, sequence: Sequence) -> bool:
        request = other.group.request
        return (
            request.priority < sequence.group.request.priority
            and (request.background or other.first_token is None)
            and other.preemptions < self.limits.max_preemptions
        )

    def _open_or_take(self, draft: StepDraft, sequence: Sequence) -> bool:
        """Blocks for it: those it was parked with, or new ones, taken from who gives way."""
        if sequence in self._parked:
            self._parked.remove(sequence)
            return True
        while not self._open(sequence):
            last = max((*self._parked, *self.running), key=self._place, default=None)
            if last is None or last.group.request.priority >= sequence.group.request.priority:
                return False
            if last in self._parked:
                self._drop_parked(draft)
            elif self._gives_way(last, sequence):
                self._preempt(draft, last, "kv_priority")
            else:
                return False
            self._blocked = None
        return True

    def _open(self, sequence: Sequence) -> bool:
        """Blocks for everything known, leaving one for each running sequence to grow into."""
        kv, blocked = self.kv, self._blocked
        if self.running and blocked is not None and blocked[0] is sequence and blocked[1] >= kv.available:
            return False
        known, group = sequence.tokens[: sequence.known], sequence.group
        table = kv.open(known, group.request.cache_key, reuse=sequence.takes_prefix)
        spare = len(self.running) + len(sequence.followers) if self.running else 0
        need = kv.blocks_for(sequence.known) - len(table.blocks)
        if need + spare > kv.available or not kv.reserve(table, kv.matched(table), sequence.known):
            kv.release(table)
            self._blocked = (sequence, kv.available)
            return False
        sequence.table = table
        self._blocked = None
        return True

    def _start(self, sequence: Sequence, now: float) -> None:
        assert sequence.table is not None
        self._uncount(sequence)
        sequence.state = State.RUNNING
        for member in (sequence, *sequence.followers):
            member.slot = self._slots.pop()
        if sequence.group.started is None:
            sequence.group.started = now
        if not sequence.computed:  # else it was parked
            sequence.reuse(self.kv.matched(sequence.table))
        if not sequence.preemptions:
            self.standings.came(sequence.group.request, sequence.todo, now)
        insort(self.running, sequence, key=Sequence.order)

    def _prefill(self, draft: StepDraft) -> None:
        """Divide the chunk budget among the sequences that have no row yet and are not stalled."""
        taken = {row.sequence for row in draft.rows} | draft.stalled
        waiting = [one for one in self.running if one.todo and one not in taken and not draft.waits(one)]
        for sequence in waiting:
            self._extend(sequence)
        budget = max(1, self.budget.chunk_tokens(draft.decode, draft.kv_tokens, draft.seconds))
        attention = self.budget.attention
        wants = self._wants(waiting, attention)
        beside = any(row.sequence.group.request.step_share < 1.0 for row in draft.rows)
        grants = whole(budget, wants) if self.limits.whole_prompts else divide(budget, wants, beside=beside)
        for sequence, want, grant in zip(waiting, wants, grants, strict=True):
            tokens = sequence.todo if grant == want.tokens else unweighed(grant, sequence.computed, attention)
            count = self._bounded(draft, sequence, min(tokens, sequence.todo))
            if count:
                self._served.add(want.group, count, want.weight)
                draft.prefill += count
                draft.attention += count * (sequence.computed + count // 2)
                draft.add(self._row(draft, sequence, count))
        draft.move_pooled()

    def _wants(self, sequences: list[Sequence], attention: float) -> list[Want]:
        """In tokens without context, so that one deep in its prompt does not make the step longer than was budgeted."""
        served = self._served.of(one.group.request.share_group for one in sequences)
        wants = []
        for sequence in sequences:
            request = sequence.group.request
            deadline = inf if request.deadline is None else request.deadline
            todo = weighed(sequence.todo, sequence.computed, attention)
            wants.append(
                Want(
                    todo, request.share_group, request.weight, deadline, request.step_share, request.background,
                    served[request.share_group],
                )
            )  # fmt: skip
        return wants

    def _extend(self, sequence: Sequence) -> None:
        """Skip what another sequence with the same tokens has committed meanwhile."""
        table = sequence.table
        assert table is not None
        if sequence.group.computes_all or sequence.computed != self.kv.matched(table):
            return
        if self.kv.prefix_cache:
            sequence.reuse(self.kv.extend(table, sequence.tokens[: sequence.known]))

    def _bounded(self, draft: StepDraft, sequence: Sequence, count: int) -> int:
        if sequence.scored < sequence.group.prompt_tokens and sequence.group.wants_scores:
            return min(count, self.limits.score_rows - draft.score_rows)
        return count

    def _row(self, draft: StepDraft, sequence: Sequence, count: int) -> Row:
        first, group = sequence.computed, sequence.group
        if not group.wants_scores or sequence.scored >= group.prompt_tokens:
            return Row(sequence, first, count)
        stop = min(first + count + 1, group.prompt_tokens)
        start = max(first + 1, sequence.scored)
        draft.score_rows += max(0, stop - start)
        return Row(sequence, first, count, start, stop)

    # ---- committing -----------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[Update]:
        """Take in a step's result. Sequences that ended since the plan are passed over."""
        rows, tokens = verify(plan, result.tokens) if plan.drafts else (plan.rows, result.tokens)
        self.standings.worked(rows, self.turn, self.budget, now)
        updates = self._refuse_bad(plan, tokens, now) if BAD in tokens else []
        for row in rows:
            if row[0].state is _RUNNING:
                self._advance(row, updates, now)
        for draft in plan.drafts:
            self._settle(rows[draft.row], draft.size)
        for sample, (sequence, token) in enumerate(zip(plan.samplers, tokens, strict=True)):
            if sequence.state is not _RUNNING or token < 0:
                continue
            if sequence.first_token is None:
                sequence.first_token = now
            if sequence.group.search is not None:
                take_offer(sequence, sequence.group.search, result, sample)
                continue
            sequence.append(token)
            reason = None
            if sequence.known == len(sequence.tokens):
                reason = FinishReason.LENGTH
                self.finish(sequence, reason, now)
            updates.append(_new(Update, (sequence, token, sample, reason, None, None)))
        return updates + self._searches.advance(self, now) if self._searches else updates

    def _settle(self, row: Row, drafted: int) -> None:
        """Count a verified draft, and give back the blocks that only rejected guesses stand in."""
        sequence = row.sequence
        sequence.drafted += drafted
        sequence.accepted += row.size - 1
        if sequence.state is State.RUNNING:
            assert sequence.table is not None
            self.kv.trim(sequence.table, sequence.computed + 1)

    def _refuse_bad(self, plan: StepPlan, tokens: Iterable[int], now: float) -> list[Update]:
        """A row whose logits were not numbers, or whose grammar cannot go on, ends its own request only, and its blocks
        are forgotten."""
        updates: list[Update] = []
        for sequence, token in zip(plan.samplers, tokens, strict=True):
            if token == BAD and sequence.state is not State.FINISHED:
                updates.extend(self.end(sequence.group, FinishReason.ERROR, now, _failure(sequence)))
        return updates

    def _advance(self, row: Row, updates: list[Update], now: float) -> None:
        sequence, first, size, score_from, score_to = row
        group, table, stop = sequence.group, sequence.table, first + size
        assert table is not None
        if first < sequence.peak or first < group.prompt_tokens:
            group.computed_prompt += max(0, min(stop, group.prompt_tokens) - max(first, sequence.peak))
            group.recomputed += max(0, min(stop, sequence.peak) - first)
            sequence.peak = max(sequence.peak, stop)
        else:
            sequence.peak = stop
        sequence.computed = stop
        if score_to > score_from:
            sequence.scored = score_to
        if stop % self.kv.block_tokens == 0 or size > 1:
            self.kv.commit(table, sequence.tokens, stop)
        if first >= group.prompt_tokens or stop < sequence.known:
            return
        if not group.request.stop.max_tokens:
            updates.extend(self.end(group, FinishReason.LENGTH, now))
        elif sequence.followers and group.search is None:
            self._fork(sequence)

    def _fork(self, leader: Sequence) -> None:
        """The prompt is computed: every further choice becomes a running sequence over the same blocks."""
        assert leader.table is not None
        for follower in leader.followers:
            follower.start_tokens()
            follower.table = self.kv.fork(leader.table, leader.computed)
            follower.computed = follower.peak = leader.computed
            follower.scored = leader.scored
            follower.state = State.RUNNING
            insort(self.running, follower, key=Sequence.order)
        leader.followers = []

    # ---- small parts ----------------------------------------------------------------------------------------

    def _wait(self, sequence: Sequence, *, preempted: bool) -> None:
        sequence.state = State.WAITING
        self.waiting_count += 1 + len(sequence.followers)
        self.waiting_tokens += sequence.known
        priority, arrival, index = sequence.order()
        heappush(self._waiting, (priority, 0 if preempted else 1, arrival, index, sequence))

    def _uncount(self, sequence: Sequence) -> None:
        self.waiting_count -= 1 + len(sequence.followers)
        self.waiting_tokens -= sequence.known

    def _give_up(self, sequence: Sequence, *, forget: bool = False) -> None:
        assert sequence.table is not None
        self.kv.release(sequence.table, forget=forget)
        sequence.table = None

    def _free_slot(self, sequence: Sequence) -> None:
        if sequence.slot != NO_SLOT:
            self._slots.append(sequence.slot)
            sequence.slot = NO_SLOT

    def _drop_stale(self) -> None:
        self._waiting = [entry for entry in self._waiting if entry[-1].state is State.WAITING]
        heapify(self._waiting)
        self._stale = 0


def _may_guess(row: Row) -> bool:
    group = row.sequence.group
    return row.first >= group.prompt_tokens and group.search is None


def _failure(sequence: Sequence) -> TailraceError:
    constraint = sequence.constraint
    if constraint is not None and constraint.broken:
        return constraint.error()
    return InternalError("the model produced no valid numbers for this request")
