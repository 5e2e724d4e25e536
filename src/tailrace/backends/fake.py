"""A backend without a model: deterministic answers, bounded slots, steps that a test can take one by one.

Follows the contract of `base` in everything a client can see (slots, prefix hits, stops, log-probabilities, aborts), so
that the serving plane can be built and tested without an engine. Its tokens are single bytes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from zlib import crc32

import numpy as np

from tailrace.backends.base import no_grammars
from tailrace.clock import Clock, SystemClock
from tailrace.errors import InvalidRequest, TailraceError, Unsupported
from tailrace.figures.buckets import StepTally
from tailrace.text.pretokenizers import PRE_TOKENIZERS
from tailrace.text.stream import TextStream
from tailrace.text.tokenizer import Tokenizer, Vocabulary
from tailrace.types import (
    Accelerator,
    Capabilities,
    EngineFacts,
    FinishReason,
    Formats,
    GenerateRequest,
    Health,
    Inspection,
    LoadReport,
    Outlook,
    Prefill,
    Pulse,
    StepCosts,
    TokenEvent,
    TokenLogprob,
    Tokens,
    Vector,
)

END, START, TURN_END = 256, 257, 258
BLOCK = 16  # tokens in a KV block of the fake
EMBEDDING = 32  # numbers in its vectors
_WORDS = ("river", "stone", "lamp", "쌈밥", "Žďár", "ไทย", "𠮷野家", "👩🏽‍🚀", "the", "and", "over", "green", "slow")

Script = Callable[[GenerateRequest, int], Iterable[int]]


def fake_tokenizer() -> Tokenizer:
    """One token for each byte, an end token, a start token that prompts do not get by themselves, a turn's end."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    alphabet = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    tokens = [*alphabet, "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    kinds = [1] * 256 + [3] * 3
    vocabulary = Vocabulary(tokens, kinds, [], eos_id=END, end_ids=frozenset((END, TURN_END)))
    return Tokenizer(vocabulary, PRE_TOKENIZERS["gpt-2"])


def babble(request: GenerateRequest, index: int) -> Iterable[int]:
    """The default script: words that depend on the prompt alone (greedy) or on seed and choice too."""
    key: object = crc32(request.prompt.tobytes())
    if request.sampling.temperature > 0:
        key = f"{key} {request.sampling.seed} {index}"
    rng = random.Random(str(key))
    return " ".join(rng.choices(_WORDS, k=24)).encode()


def say(text: str) -> Script:
    """A script that answers everything with this text."""
    return lambda request, index: text.encode()


def letters(request: GenerateRequest) -> Vector:
    """A prompt's vector: how often each byte is in it, modulo EMBEDDING."""
    counts = np.bincount(request.prompt[request.prompt < 256] % EMBEDDING, minlength=EMBEDDING)
    return counts.astype(np.float32)


@dataclass(slots=True)
class _Choice:
    index: int
    tokens: Iterable[int]
    stream: TextStream
    open: bool = True
    first_token: float | None = None


@dataclass(slots=True)
class _Job:
    request: GenerateRequest
    choices: list[_Choice]
    started: float | None = None
    cached: int = 0
    aborted: bool = False
    error: Exception | None = None
    first: bool = True
    steps_due: int = 0
    ticked: asyncio.Event = field(default_factory=asyncio.Event)
    open: int = field(init=False)  # choices that have not ended

    def __post_init__(self) -> None:
        self.open = len(self.choices)


class FakeBackend:
    """`manual`: nothing moves until `step()`. Otherwise a step takes `step_seconds`. `kv_blocks` 0: enough for all."""

    name = "fake"

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        script: Script = babble,
        clock: Clock | None = None,
        max_context: int = 512,
        max_sequences: int = 4,
        kv_blocks: int = 0,
        step_seconds: float = 0.0,
        manual: bool = False,
    ) -> None:
        self.tokenizer = tokenizer or fake_tokenizer()
        self.caps = Capabilities(
            ("fake",), max_context, self.tokenizer.vocab_size, max_sequences, block_tokens=BLOCK, embedding=EMBEDDING,
            formats=Formats("bytes", "none"),
        )  # fmt: skip
        self._blocks_total = kv_blocks or max_sequences * -(-max_context // BLOCK)
        self.healthy = Health(True)
        self.beat = Pulse()  # what a watchdog sees
        self.broken: Exception | None = None  # why it cannot be restarted
        self.restarts = 0
        self.accelerators: tuple[Accelerator, ...] = ()  # what it says to have
        self.started_ids: list[str] = []  # every request that was given a slot, in order
        self.prompts: list[Tokens] = []  # the prompts it was given, in order
        self._script = script
        self._clock = clock or SystemClock()
        self._step_seconds = step_seconds
        self._manual = manual
        self._jobs: list[_Job] = []  # in order of arrival, started or not
        self._aborts = 0
        self._tally = StepTally()
        self._no_jobs = asyncio.Event()
        self._no_jobs.set()
        self._prefixes: set[bytes] = set()
        self._wakes: list[Callable[[], None]] = []

    # --- the contract

    async def generate(
        self, request: GenerateRequest, *, deadline: float | None = None
    ) -> AsyncIterator[Sequence[TokenEvent]]:
        self._refuse(request)
        job = _Job(request, [self._choice(request, i) for i in range(request.n)])
        self.prompts.append(request.prompt)
        self._jobs.append(job)
        self._no_jobs.clear()
        self._start_waiting()
        try:
            while job.open:
                await self._next_step(job)
                if events := self._advance(job):
                    yield events
        finally:
            self._jobs.remove(job)
            if job.open or job.aborted:
                self._aborts += 1
                self._tally.cancel.add(0.0)
            if not self._jobs:
                self._no_jobs.set()
            self._room_changed()

    async def check(self, request: GenerateRequest) -> None:
        if request.grammar is not None:
            raise no_grammars(request.grammar)
        if request.thinking is not None and request.thinking.budget is not None:
            raise Unsupported("what serves this model cannot bound its thoughts", param="thinking_token_budget")

    async def abort(self, request_id: str) -> None:
        for job in self._jobs:
            if job.request.id == request_id:
                job.aborted = True
                job.ticked.set()

    def load(self) -> LoadReport:
        running = waiting = prompts = pledged = 0
        for job in self._jobs:
            if job.started is not None:
                running += job.open
                continue
            waiting += job.open
            prompts += len(job.request.prompt)
            pledged += self._prompt_blocks(job) + job.open
        free = self._blocks_free()
        return LoadReport(
            running=running,
            waiting=waiting,
            prompt_tokens_waiting=prompts,
            kv_blocks_free=max(0, free),
            kv_blocks_total=self._blocks_total,
            step_seconds=self._step_seconds,
            free_slots=self.caps.max_sequences - running - waiting,
            free_blocks=free - running - pledged,
            aborts=self._aborts,
        )

    def outlook(self) -> Outlook:
        """A step takes the same whatever is in it, and any prompt fits one."""
        begun = [job for job in self._jobs if job.started is not None]
        decodes = sum(job.open for job in begun if not job.first)
        prefills = tuple(Prefill(len(job.request.prompt)) for job in begun if job.first)
        chunk = self.caps.max_context * self.caps.max_sequences
        return Outlook(0.0, prefills, decodes, 0, StepCosts(self._step_seconds, 0.0, 0.0, 0.0, 0.0), chunk, chunk)

    def inspect(self) -> Inspection:
        free = max(self._blocks_free(), 0)
        return Inspection(free, 0, self._blocks_total - free, tally=self._tally, accelerators=self.accelerators)

    def pulse(self) -> Pulse:
        return self.beat

    async def restart(self, error: TailraceError) -> None:
        self.restarts += 1
        for job in self._jobs:
            job.error = error
            job.ticked.set()
        if self.broken is not None:
            raise self.broken
        self.beat = Pulse(self.beat.beats + 1)
        self._room_changed()

    def match_prefix(self, tokens: Tokens, salt: bytes = b"") -> int:
        matched = 0
        while matched + BLOCK < len(tokens) and salt + tokens[: matched + BLOCK].tobytes() in self._prefixes:
            matched += BLOCK
        return matched

    def on_room(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)

    async def health(self) -> Health:
        return self.healthy

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109 - the contract's name
        try:
            async with asyncio.timeout(timeout):
                await self._no_jobs.wait()
        except TimeoutError:
            for job in list(self._jobs):
                await self.abort(job.request.id)

    # --- for tests

    def step(self, times: int = 1) -> None:
        """Let every request take steps (with `manual`)."""
        for job in self._jobs:
            job.steps_due += times
            job.ticked.set()

    # --- inside

    def _refuse(self, request: GenerateRequest) -> None:
        if request.n > self.caps.max_sequences:
            raise InvalidRequest(f"n is {request.n}; at most {self.caps.max_sequences} run at once", param="n")
        if len(request.prompt) + request.stop.max_tokens > self.caps.max_context:
            raise InvalidRequest(f"{len(request.prompt)} tokens and the answer do not fit", param="prompt")

    def _choice(self, request: GenerateRequest, index: int) -> _Choice:
        script = list(self._script(request, index))
        tokens = chain(script, [END]) if not request.stop.ignore_eos else chain.from_iterable(repeat([*script, END]))
        stream = TextStream(self.tokenizer, request.stop, self.tokenizer.end_ids, shown=request.shown_ids)
        return _Choice(index, iter(tokens), stream)

    async def _next_step(self, job: _Job) -> None:
        if not self._manual:
            await asyncio.sleep(self._step_seconds)
            return
        while not (job.steps_due or job.aborted or job.error):
            job.ticked.clear()
            await job.ticked.wait()
        job.steps_due = max(job.steps_due - 1, 0)

    def _start_waiting(self) -> None:
        """Give slots and blocks to jobs in order of arrival; a large one is not overtaken."""
        for job in self._jobs:
            if job.started is not None:
                continue
            running = sum([other.open for other in self._jobs if other.started is not None])
            need = self._prompt_blocks(job) + job.open - 1 + running if running else 0
            if job.open > self.caps.max_sequences - running or need > self._blocks_free():
                return
            job.started = self._clock.now()
            self.started_ids.append(job.request.id)

    def _room_changed(self) -> None:
        self._start_waiting()
        for wake in self._wakes:
            wake()

    def _advance(self, job: _Job) -> list[TokenEvent]:
        """One step: one token for each open choice."""
        open_before = job.open
        if job.error is not None:
            failed = [TokenEvent(c.index, error=job.error) for c in job.choices if c.open]
            events = [self._end(job, job.choices[e.index], FinishReason.ERROR, e) for e in failed]
        elif job.aborted:
            events = [self._end(job, c, FinishReason.ABORT) for c in job.choices if c.open]
        elif job.started is None:
            return []
        else:
            if job.first:
                self._prefill(job)
            events = [self._decode(job, choice) for choice in job.choices if choice.open]
            self._mark_first(job, events)
        if job.open != open_before:
            self._room_changed()
        return events

    def _prefill(self, job: _Job) -> None:
        request = job.request
        if request.prompt_logprobs is None:
            job.cached = self.match_prefix(request.prompt, request.cache_key)
        for end in range(BLOCK, len(request.prompt) + 1, BLOCK):
            self._prefixes.add(request.cache_key + request.prompt[:end].tobytes())

    def _mark_first(self, job: _Job, events: list[TokenEvent]) -> None:
        if not job.first:
            return
        job.first = False
        for event in events:
            event.cached_tokens = job.cached
        wanted = job.request.prompt_logprobs
        if wanted is not None:
            ids = job.request.prompt.tolist()
            rest = tuple(self._logprob(token, wanted) for token in ids[1:])
            events[0].prompt_logprobs = (TokenLogprob(ids[0], self._bytes(ids[0]), None), *rest)

    def _decode(self, job: _Job, choice: _Choice) -> TokenEvent:
        stop = job.request.stop
        if job.request.pooling is not None:
            return self._end(job, choice, FinishReason.LENGTH, TokenEvent(choice.index, embedding=letters(job.request)))
        if stop.max_tokens == 0:
            return self._end(job, choice, FinishReason.LENGTH)
        token = next(iter(choice.tokens))
        if choice.first_token is None:
            choice.first_token = self._clock.now()
        wanted = job.request.sampling.logprobs
        logprobs = () if wanted is None else (self._logprob(token, wanted),)
        pushed = choice.stream.push(token)
        event = TokenEvent(choice.index, pushed.text, (token,), logprobs)
        if pushed.finished:
            event.stop_reason = pushed.stop_reason
            return self._end(job, choice, FinishReason.STOP, event)
        if choice.stream.generated >= stop.max_tokens:
            event.text += choice.stream.finish()
            return self._end(job, choice, FinishReason.LENGTH, event)
        return event

    def _end(self, job: _Job, choice: _Choice, reason: FinishReason, event: TokenEvent | None = None) -> TokenEvent:
        choice.open = False
        job.open -= 1
        event = event or TokenEvent(choice.index)
        event.finish = reason
        event.facts = EngineFacts(
            finished=self._clock.now(),
            started=job.started,
            first_token=choice.first_token,
            cached_tokens=job.cached,
            computed_prompt_tokens=len(job.request.prompt) - job.cached,
            kv_blocks=self._blocks(job, job.choices),
        )
        return event

    def _logprob(self, token: int, wanted: int) -> TokenLogprob:
        others = [(token + k) % 256 for k in range(wanted)]
        top = tuple((other, self._bytes(other), -0.5 - k) for k, other in enumerate(others))
        return TokenLogprob(token, self._bytes(token), -0.5, top)

    def _bytes(self, token: int) -> bytes:
        return self.tokenizer.token_bytes(token, special=True)

    def _prompt_blocks(self, job: _Job) -> int:
        return -(-len(job.request.prompt) // BLOCK)

    def _blocks_free(self) -> int:
        """Below 0 when answers have grown beyond the memory: a fake needs none to go on."""
        free = self._blocks_total
        for job in self._jobs:
            if job.started is not None:
                free -= self._blocks(job, [choice for choice in job.choices if choice.open])
        return free

    def _blocks(self, job: _Job, choices: Sequence[_Choice]) -> int:
        """The prompt's, shared by these choices, and what each has written behind it."""
        prompt, shared = len(job.request.prompt), self._prompt_blocks(job)
        grown = [-(-(prompt + choice.stream.generated) // BLOCK) - shared for choice in choices]
        return shared + sum(grown) if grown else 0
