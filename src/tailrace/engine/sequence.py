"""One choice of a request as counters: tokens known, tokens computed. Owns no decision.

    0 ............ computed ............ known ............ capacity
    |  K/V in memory  |  known, to be computed  |  may still come  |

A prompt that waits, a chunked prefill, a decode row, a preempted sequence are the same thing with other numbers:
the scheduler lets `computed` catch up with `known`, and a token is sampled whenever it has.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrace.engine.kv.manager import BlockTable
from tailrace.types import EngineFacts, FinishReason, GenerateRequest, Pooling, Tokens

if TYPE_CHECKING:  # the scheduler needs no grammars
    from tailrace.engine.beams import Offer, Search
    from tailrace.engine.grammar.constraint import Constraint
    from tailrace.engine.grammar.thinking import ThinkingRules
    from tailrace.engine.grammar.workshop import CompiledGrammar

NO_SLOT = -1


class State(Enum):
    WAITING = auto()  # no slot, no blocks
    HELD = auto()  # a further choice of a prompt that its leader is computing
    RUNNING = auto()  # has a slot and blocks
    FINISHED = auto()


class Sequence:
    """`tokens` is one preallocated array; only its first `known` entries mean something.

    `peak` is the most it ever had computed: rows below it are recomputation after a preemption.
    `scored` counts prompt tokens whose log-probability is known, for requests that ask for it. `closed`: its
    terminal event is out. `rested`: steps in a row that had no room for its next token. `notes` are the drafter's own;
    of `drafted` guesses, `accepted` were right. `constraint` is where it stands in its group's grammar, made when it is
    first asked for (engine/grammar). `pools`: its prompt becomes a vector, and nothing follows it.
    """

    __slots__ = (
        "accepted", "closed", "computed", "constraint", "drafted", "finish", "finished", "first_token", "followers",
        "group", "index", "known", "notes", "offer", "peak", "pools", "preemptions", "rested", "scored", "slot",
        "state", "table", "tokens",
    )  # fmt: skip

    def __init__(self, group: Group, index: int) -> None:
        self.group = group
        self.index = index
        self.pools = group.request.pooling is not None
        self.state = State.WAITING
        self.tokens: Tokens = _NOTHING
        self.known = 0
        self.computed = 0
        self.peak = 0
        self.scored = 1
        self.preemptions = 0
        self.rested = 0
        self.slot = NO_SLOT
        self.table: BlockTable | None = None
        self.followers: list[Sequence] = []  # choices that start when this one's prompt is computed
        self.closed = False
        self.notes: object | None = None
        self.constraint: Constraint | None = None
        self.offer: Offer | None = None  # what may follow it, where it is a beam
        self.drafted = 0
        self.accepted = 0
        self.finish: FinishReason | None = None
        self.first_token: float | None = None
        self.finished: float | None = None

    @property
    def todo(self) -> int:
        return self.known - self.computed

    @property
    def takes_prefix(self) -> bool:
        """Whether cached blocks serve: not while something is to be made of each token of its prompt."""
        group = self.group
        return not group.computes_all or (group.wants_scores and self.scored >= group.prompt_tokens)

    @property
    def draft_room(self) -> int:
        """Most guesses of one step: the token sampled behind the last of them must be wanted too."""
        return len(self.tokens) - self.known - 1

    @property
    def generated(self) -> int:
        return self.known - self.group.prompt_tokens

    def start_tokens(self) -> None:
        """Make the array: the prompt, and room for what may be generated."""
        group = self.group
        self.tokens = np.empty(group.prompt_tokens + group.request.stop.max_tokens, dtype=np.int32)
        self.tokens[: group.prompt_tokens] = group.request.prompt
        self.known = group.prompt_tokens

    def reuse(self, computed: int) -> None:
        """`computed` tokens are there without computing them; those never computed before count as cached."""
        group = self.group
        if computed > self.peak:
            group.cached += max(0, min(computed, group.prompt_tokens) - min(self.peak, group.prompt_tokens))
            self.peak = computed
        self.computed = computed

    def append(self, token: int) -> None:
        self.tokens[self.known] = token
        self.known += 1

    def order(self) -> tuple[int, int, int]:
        """Place among the running: priority, then arrival, then choice; the last is preempted first."""
        return (-self.group.request.priority, self.group.arrival, self.index)


class Group:
    """A request: one prompt, `n` sequences. Its prompt is computed once, by the first of them. With `search` they are
    its beams, and the answers come when it is over."""

    __slots__ = (
        "adapter", "arrival", "cached", "computed_prompt", "computes_all", "grammar", "key_seed",
        "measured_nanoseconds", "preemptions", "prompt_tokens", "recomputed", "request", "search", "sequences",
        "standard_seconds", "started", "thinking",
        "wants_scores",
    )  # fmt: skip

    def __init__(
        self,
        request: GenerateRequest,
        arrival: int,
        key_seed: int,
        grammar: CompiledGrammar | None = None,
        thinking: ThinkingRules | None = None,
        *,
        search: Search | None = None,
    ) -> None:
        """`key_seed` is the request's seed, or one drawn for it; `arrival` orders requests."""
        self.request = request
        self.adapter: Any = None if request.adapter is None else request.adapter.weights
        self.grammar = grammar
        self.thinking = thinking
        self.search = search
        self.arrival = arrival
        self.key_seed = key_seed
        self.prompt_tokens = len(request.prompt)
        self.wants_scores = request.prompt_logprobs is not None
        self.computes_all = self.wants_scores or request.pooling is Pooling.MEAN  # no prefix is taken from the cache
        self.started: float | None = None
        self.cached = 0
        self.computed_prompt = 0
        self.recomputed = 0
        self.preemptions = 0
        self.standard_seconds = 0.0  # its part of the steps so far, by frozen coefficients
        self.measured_nanoseconds = 0  # the same of what they took
        self.sequences = [Sequence(self, index) for index in range(request.n)]
        leader = self.sequences[0]
        leader.start_tokens()
        leader.followers = self.sequences[1:]
        for follower in leader.followers:
            follower.state = State.HELD

    @property
    def done(self) -> bool:
        return all(sequence.state is State.FINISHED for sequence in self.sequences)

    def facts(self, sequence: Sequence, block_tokens: int) -> EngineFacts:
        assert sequence.finished is not None
        return EngineFacts(
            finished=sequence.finished,
            started=self.started,
            first_token=sequence.first_token,
            cached_tokens=self.cached,
            computed_prompt_tokens=self.computed_prompt,
            recomputed_tokens=self.recomputed,
            drafted_tokens=sequence.drafted,
            accepted_tokens=sequence.accepted,
            preemptions=self.preemptions,
            standard_seconds=self.standard_seconds,
            measured_seconds=self.measured_nanoseconds / 1e9,
            kv_blocks=self.kv_blocks(block_tokens),
        )

    def kv_blocks(self, block_tokens: int) -> int:
        """Blocks that hold the most that its sequences ever had computed; the prompt's full ones are there once."""
        shared = self.prompt_tokens // block_tokens
        first, *others = [-(-sequence.peak // block_tokens) for sequence in self.sequences]
        return first + sum([max(blocks - shared, 0) for blocks in others])


_NOTHING: Tokens = np.empty(0, dtype=np.int32)
