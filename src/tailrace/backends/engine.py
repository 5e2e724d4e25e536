"""Our own engine as a Backend: asyncio on this side, the engine's thread on the other.

Owns the streams between the two. Each step's events cross with one `call_soon_threadsafe`; a reader that is slow
finds several steps' events in one list, and never slows the engine down. Knows no queue policy: what is submitted
is started as soon as slots and KV blocks allow, in order. An engine that hangs can be replaced; whoever holds the
backend need not know.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from tailrace.backends.base import no_grammars
from tailrace.clock import Clock
from tailrace.engine.beams import Search
from tailrace.engine.loop import Delivery, EngineLoop
from tailrace.engine.outlook import prefill
from tailrace.engine.parts import EngineParts
from tailrace.engine.runner import Runner
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.sequence import Group, State
from tailrace.engine.stats import EngineStats
from tailrace.engine.turns import Turns
from tailrace.errors import InvalidRequest, TailraceError, Unavailable, Unsupported
from tailrace.types import (
    Capabilities,
    FinishReason,
    GenerateRequest,
    Health,
    Inspection,
    LoadReport,
    Outlook,
    Pulse,
    TokenEvent,
    Tokens,
)

if TYPE_CHECKING:
    from tailrace.engine.grammar.thinking import ThinkingRules
    from tailrace.engine.grammar.workshop import CompiledGrammar

_ABORT_GRACE = 10.0  # seconds for the engine to end everyone; one step is enough
_STEPS_WORTH_KEEPING = 50  # of learning, before it replaces the calibration at start


class _Stream:
    """One request's events on their way to its reader. Lives until its last event, read or not."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.left = set(range(len(group.sequences)))  # choices without a terminal event yet
        self.begun = False
        self.events: list[TokenEvent] = []
        self._reader: asyncio.Future[None] | None = None

    def push(self, events: list[TokenEvent]) -> int:
        """Returns how many choices ended."""
        self.begun = True
        self.events += events
        ended = 0
        for event in events:
            if event.finish is not None:
                ended += 1
                self.left.discard(event.index)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        return ended

    def fail(self, error: Exception) -> None:
        """All that is left of it ends."""
        self.push([TokenEvent(index, finish=FinishReason.ERROR, error=error) for index in sorted(self.left)])

    def ready(self) -> asyncio.Future[None]:
        """Until there are events, where there are none; for the one reader. An asyncio.Event would take four calls more
        for each token."""
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def take(self) -> list[TokenEvent]:
        events, self.events = self.events, []
        return events


class EngineBackend:
    name = "engine"

    def __init__(
        self,
        parts: EngineParts,
        model: str,
        clock: Clock,
        *,
        seeds: random.Random | None = None,
        loop: Callable[..., EngineLoop] = EngineLoop,
    ) -> None:
        """`model` is the name it answers to; `seeds` draws a seed for requests that bring none. `loop` makes the
        engine's loop, of EngineLoop's arguments: the simulator's has no thread."""
        scheduler = parts.scheduler
        limits = scheduler.limits
        features = {"tokens", "logprobs", "prompt_logprobs", "seed", "n", "prefix_cache", "beams"}
        self.caps = Capabilities(
            models=(model,),
            max_context=limits.max_context,
            vocab_size=limits.vocab_size,
            max_sequences=limits.max_sequences,
            features=frozenset(features if parts.grammars is None else features | {"grammar"}),
            block_tokens=scheduler.kv.block_tokens,
            costs=parts.cost.standard,
            generates=parts.generates,
            embedding=parts.embedding,
            pooling=parts.pooling,
            formats=parts.formats,
        )
        self._make = partial(loop, tokenizer=parts.tokenizer, cost=parts.cost, clock=clock)
        self._generation = 0  # of the engine
        self._renew = parts.renew
        self._cost = parts.cost
        self._keep_costs = parts.keep_costs
        self._grammars = parts.grammars
        self._tokenizer = parts.tokenizer
        self._clock = clock
        self._seeds = seeds or random.SystemRandom()
        self._arrivals = count()
        self._streams: dict[str, _Stream] = {}
        self._choices = 0  # submitted and not ended
        self._wakes: list[Callable[[], None]] = []
        self._asyncio: asyncio.AbstractEventLoop | None = None
        self._draining = False
        self._restarting = False
        self._restarted = asyncio.Event()
        self._empty = asyncio.Event()
        self._set_up(scheduler, parts.runner, parts.turns)

    @property
    def stats(self) -> EngineStats:
        return self.engine.stats

    def start(self) -> None:
        self.engine.start()

    def close(self) -> None:
        """Stop the engine's thread; requests that still run end with ABORT."""
        self.engine.stop()
        if self._turns is not None:
            self._turns.quit()
        if self._grammars is not None:
            self._grammars.close()
        if self._keep_costs is not None and self.stats.steps >= _STEPS_WORTH_KEEPING:
            self._keep_costs()

    def pulse(self) -> Pulse:
        return Pulse() if self._restarting or self._renew is None else self.engine.pulse()

    async def restart(self, error: TailraceError) -> None:
        """See Backend. Counts go on; the prefix cache begins empty."""
        assert self._renew is not None
        self._restarting = True
        self._restarted.clear()
        before = self.engine
        before.abandon()
        self._generation += 1
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()
        self._choices = 0
        self._empty.set()
        renewed = await asyncio.to_thread(self._renew)
        self._renew = renewed.renew
        self._set_up(renewed.scheduler, renewed.runner, renewed.turns)
        self.engine.takes_over(before)
        self.engine.start()
        self._restarting = False
        self._restarted.set()
        for wake in self._wakes:
            wake()

    async def generate(
        self, request: GenerateRequest, *, deadline: float | None = None
    ) -> AsyncIterator[Sequence[TokenEvent]]:
        """See Backend. At `deadline` (on the injected clock) the request is aborted."""
        grammar = await self._compiled(request)
        while self._restarting:
            await self._restarted.wait()
        stream = self._submit(request, grammar)
        try:
            while stream.left or stream.events:
                if not stream.events:
                    await (stream.ready() if deadline is None else self._wait(stream, request.id, deadline))
                yield stream.take()
        finally:
            if stream.left:
                self.engine.abort(request.id)

    async def check(self, request: GenerateRequest) -> None:
        await self._compiled(request)

    async def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)

    def load(self) -> LoadReport:
        if self._restarting:
            return LoadReport(kv_blocks_total=self._scheduler.kv.pool.total)
        scheduler, charges = self._scheduler, self.engine.charges
        running = min(self._choices, scheduler.limits.max_sequences - scheduler.free_slots)
        return LoadReport(
            running=running,
            waiting=self._choices - running,
            prompt_tokens_waiting=scheduler.waiting_tokens,
            kv_blocks_free=scheduler.kv.available,
            kv_blocks_total=scheduler.kv.pool.total,
            step_seconds=self._cost.step_seconds,
            step_error=self._cost.error,
            free_slots=max(0, scheduler.limits.max_sequences - self._choices),
            free_blocks=self._free_blocks(),
            prefill_markup=charges.prefill_markup,
            decode_markup=charges.decode_markup,
            busy_seconds=charges.busy / 1e9,
            overhead_seconds=charges.overhead / 1e9,
            computed_tokens=self.stats.prefill_tokens + self.stats.decode_tokens,
            recomputed_tokens=self.stats.recomputed_tokens,
            aborts=self.stats.aborts,
            abort_seconds=self.stats.cancel_seconds,
            drafted_tokens=self.stats.drafted_tokens,
            accepted_tokens=self.stats.accepted_tokens,
        )

    def outlook(self) -> Outlook:
        """What is submitted and not started counts as a prompt that is."""
        if self._restarting:
            return Outlook()
        found = self.engine.outlook()
        leaders = [stream.group.sequences[0] for stream in self._streams.values()]
        waiting = tuple(prefill(one.group.request, one.known) for one in leaders if one.state is State.WAITING)
        return replace(found, prefills=found.prefills + waiting) if waiting else found

    def inspect(self) -> Inspection:
        kv = self._scheduler.kv
        free, cached = kv.pool.free, len(kv.tree.idle)
        median, high = self._cost.errors()
        stats = self.stats
        return Inspection(
            free, cached, kv.pool.total - free - cached, stats.steps, median, high,
            kv_evicted=stats.evictions, failed_steps=stats.failed_steps,
            standard_seconds=self.engine.charges.standard_seconds, tally=stats.tally,
        )  # fmt: skip

    def match_prefix(self, tokens: Tokens, salt: bytes = b"") -> int:
        return self._scheduler.kv.match(tokens, salt)

    def on_room(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)

    async def health(self) -> Health:
        if self._restarting:
            return Health(False, "the engine is being restarted")
        health = self.engine.health()
        return Health(False, "draining", health.detail) if health.ok and self._draining else health

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109
        """See Backend. New requests are refused from now on."""
        self._draining = True
        if not await self._emptied(timeout):
            self.engine.abort(None)
            await self._emptied(_ABORT_GRACE)

    async def _compiled(self, request: GenerateRequest) -> CompiledGrammar | None:
        grammar = request.grammar
        if grammar is None:
            return None
        if self._grammars is None:
            raise no_grammars(grammar)
        return await self._grammars.get(grammar)

    def _submit(self, request: GenerateRequest, grammar: CompiledGrammar | None) -> _Stream:
        if self._draining:
            raise Unavailable("the server is shutting down", retry_after=1.0)
        if request.pooling is None and not self.caps.generates:
            raise Unsupported("this model makes embeddings, no text", param="model")
        self._scheduler.validate(request)
        if request.id in self._streams:
            raise InvalidRequest(f"a request with id {request.id!r} is already running", param="id")
        if not self._streams:
            self._asyncio = asyncio.get_running_loop()
            self._empty.clear()
        seed = request.sampling.seed
        seed = self._seeds.getrandbits(63) if seed is None else seed
        group = Group(
            request, next(self._arrivals), seed, grammar, self._thinking(request), search=self._search(request)
        )
        stream = self._streams[request.id] = _Stream(group)
        self._choices += request.n
        self.engine.submit(group)
        return stream

    def _thinking(self, request: GenerateRequest) -> ThinkingRules | None:
        """None where nothing bounds the thoughts and no grammar waits for their end."""
        thinking, waits = request.thinking, request.grammar is not None
        if thinking is None or not (waits or thinking.budget is not None):
            return None
        from tailrace.engine.grammar.thinking import ThinkingRules  # noqa: PLC0415 - few requests need it

        return ThinkingRules(thinking, self._tokenizer, self.caps.vocab_size, forced=waits)

    def _search(self, request: GenerateRequest) -> Search | None:
        return None if request.beams is None else Search(request, self._tokenizer.end_ids, self.caps.vocab_size)

    def _free_blocks(self) -> int:
        """What is left when all accepted have started, by the scheduler's own rule: blocks for what is known, and one
        for each running sequence. Read while the engine works, so a start may be counted twice for a moment; the first
        events of what starts wake whoever waits for room."""
        kv, running = self._scheduler.kv, len(self._scheduler.running)
        if running == self._choices:  # nobody waits there
            return kv.available - running
        pledged = 0
        for stream in self._streams.values():
            for sequence in stream.group.sequences:
                if sequence.state is State.WAITING:
                    pledged += 1 if sequence.table is not None else kv.blocks_for(sequence.known) + 1
                elif sequence.state is State.HELD:
                    pledged += 1
        return kv.available - running - pledged

    async def _wait(self, stream: _Stream, request_id: str, deadline: float) -> None:
        try:
            await asyncio.wait_for(stream.ready(), max(0.0, deadline - self._clock.now()))
        except TimeoutError:
            self.engine.abort(request_id)
            if not stream.events:
                await stream.ready()

    async def _emptied(self, seconds: float) -> bool:
        if not self._streams:
            return True
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _set_up(self, scheduler: Scheduler, runner: Runner, turns: Turns | None) -> None:
        """An engine with these, not started yet."""
        self._scheduler, self._turns = scheduler, turns
        deliver = partial(self._deliver, self._generation)
        self.engine: EngineLoop = self._make(scheduler, runner, deliver=deliver, turns=turns)

    def _deliver(self, generation: int, delivery: Delivery) -> None:
        """In the engine's thread: hand a step's events to asyncio."""
        assert self._asyncio is not None
        self._asyncio.call_soon_threadsafe(self._dispatch, generation, delivery)

    def _dispatch(self, generation: int, delivery: Delivery) -> None:
        if generation != self._generation:  # of an engine that hung: its requests have ended
            return
        ended, begun = 0, False
        for request_id, events in delivery.items():
            stream = self._streams[request_id]
            begun |= not stream.begun
            ended += stream.push(events)
            if not stream.left:
                del self._streams[request_id]
        if not (ended or begun):
            return
        self._choices -= ended
        if not self._streams:
            self._empty.set()
        for wake in self._wakes:
            wake()
