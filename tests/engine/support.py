"""An engine without weights, driven step by step: requests, a rig over FakeRunner, and what came out of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from tailrace.clock import ManualClock
from tailrace.engine.beams import Search
from tailrace.engine.budget import ChunkBudget, FixedBudget
from tailrace.engine.cost import CostModel
from tailrace.engine.fake_runner import FakeRunner
from tailrace.engine.grammar.compiler import LIMITS
from tailrace.engine.grammar.masks import MaskMaker
from tailrace.engine.grammar.thinking import ThinkingRules
from tailrace.engine.grammar.workshop import CompiledGrammar, Workshop
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.limits import Limits
from tailrace.engine.loop import Delivery, EngineLoop, _Abort, _Submit
from tailrace.engine.parts import EngineParts
from tailrace.engine.runner import Runner
from tailrace.engine.sample.keys import sampling_key
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.sequence import Group, Sequence
from tailrace.engine.spec.draft import Drafter
from tailrace.engine.step import Work
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import FinishReason, GenerateRequest, Grammar, SamplingParams, StopConditions, TokenEvent
from tests.tiny import IM_END, IM_START, SPECIAL_TOKENS, tiny_tokenizer, tiny_vocab_size

VOCAB = tiny_vocab_size()


@cache
def tokenizer() -> Tokenizer:
    """The tiny model's tokenizer, without its file."""
    tokens, merges = tiny_tokenizer()
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": IM_START,
            "tokenizer.ggml.eos_token_id": IM_END,
        }
    )


def prompt(length: int, seed: int = 0) -> np.ndarray:
    """Ordinary tokens, the same for the same arguments; a longer one begins with a shorter one."""
    return np.random.default_rng(seed).integers(3, 259, 4096).astype(np.int32)[:length]


def request(
    id: str = "r",
    tokens: np.ndarray | int = 8,
    max_tokens: int = 4,
    *,
    sampling: SamplingParams | None = None,
    stop: StopConditions | None = None,
    **fields: object,
) -> GenerateRequest:
    """Greedy and blind to end tokens unless told otherwise."""
    if isinstance(tokens, int):
        tokens = prompt(tokens)
    stop = stop or StopConditions(max_tokens=max_tokens, ignore_eos=True)
    return GenerateRequest(id, "m", tokens, sampling or SamplingParams(temperature=0.0), stop, **fields)  # type: ignore[arg-type]


def seeded(seed: int = 7) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed)


def parts(
    *,
    blocks: int = 64,
    slots: int = 32,
    chunk: int | ChunkBudget = 512,
    context: int = 1024,
    prefix_cache: bool = True,
    runner: Runner | None = None,
    drafter: Drafter | None = None,
    **limits: int,
) -> EngineParts:
    """Grammars need no drafter; GrammarDrafter drafts what they force."""
    kv = KvManager(blocks, max_blocks=-(-context // 64), prefix_cache=prefix_cache)
    budget = FixedBudget(chunk) if isinstance(chunk, int) else chunk
    bounds = Limits(max_sequences=slots, max_context=context, vocab_size=VOCAB, **limits)
    runner = runner or FakeRunner(blocks, vocab=VOCAB, masks=MaskMaker(VOCAB, tokenizer().end_ids))
    return EngineParts(Scheduler(kv, bounds, budget, drafter), runner, tokenizer(), CostModel())


class NoGuard:
    """Takes every grammar; no process."""

    def refusal(self, grammar: str) -> str | None:
        return None

    def close(self) -> None:
        pass


@cache
def workshop() -> Workshop:
    return Workshop(tokenizer(), VOCAB, LIMITS, NoGuard())


@cache
def compiled(grammar: Grammar) -> CompiledGrammar:
    return workshop().compile(grammar.kind, grammar.source)


@dataclass
class Choice:
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    ends: list[TokenEvent] = field(default_factory=list)

    @property
    def finish(self) -> FinishReason | None:
        assert len(self.ends) <= 1, "a choice ends once"
        return self.ends[0].finish if self.ends else None


class Rig:
    """The engine loop on the test's own thread and clock; a second, or `pause`, passes before every step."""

    def __init__(self, engine: EngineParts | None = None, pause: float = 1.0, **fields: object) -> None:
        self._pause = pause
        engine = engine or parts(**fields)  # type: ignore[arg-type]
        self.clock = ManualClock()
        self.scheduler = engine.scheduler
        self.runner = engine.runner
        self.events: dict[str, list[TokenEvent]] = defaultdict(list)
        self.choices: dict[tuple[str, int], Choice] = defaultdict(Choice)
        self.deliveries: list[Delivery] = []
        self.loop = EngineLoop(
            engine.scheduler,
            engine.runner,
            tokenizer=engine.tokenizer,
            cost=engine.cost,
            clock=self.clock,
            deliver=self._take,
        )
        self._arrivals = 0

    def submit(self, *requests: GenerateRequest) -> list[Group]:
        groups = []
        for one in requests:
            self.scheduler.validate(one)
            grammar = None if one.grammar is None else compiled(one.grammar)
            rules = None
            if one.thinking is not None:
                rules = ThinkingRules(one.thinking, tokenizer(), VOCAB, forced=grammar is not None)
            search = None if one.beams is None else Search(one, tokenizer().end_ids, VOCAB)
            groups.append(Group(one, self._arrivals, one.sampling.seed or 0, grammar, rules, search=search))
            self._arrivals += 1
        self.step(_Submit(group) for group in groups)
        return groups

    def abort(self, request_id: str) -> None:
        self.step([_Abort(request_id, self.clock.now())])

    def step(self, commands: Iterable[_Submit | _Abort] = ()) -> None:
        self.clock.advance(self._pause)
        self.loop.turn(commands)
        self.scheduler.kv.check(self.scheduler.live_tables())

    def run(self, *requests: GenerateRequest, most: int = 10_000) -> Rig:
        """Submit, and step until everything has ended."""
        self.submit(*requests)
        for _ in range(most):
            if not self.scheduler.has_work:
                return self
            self.step()
        raise AssertionError("it does not end")

    def choice(self, request_id: str = "r", index: int = 0) -> Choice:
        return self.choices[request_id, index]

    def tokens(self, request_id: str = "r", index: int = 0) -> list[int]:
        return self.choice(request_id, index).tokens

    def _take(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        for request_id, events in delivery.items():
            self.events[request_id] += events
            for event in events:
                choice = self.choices[request_id, event.index]
                assert not choice.ends, "nothing comes after the end"
                choice.text += event.text
                choice.tokens += event.token_ids
                choice.logprobs += [entry.logprob for entry in event.logprobs]
                if event.finish is not None:
                    choice.ends.append(event)


def alone(one: GenerateRequest, **fields: object) -> Rig:
    """The request on an engine of its own, in one chunk, with room for everything and nothing cached."""
    return Rig(**({"blocks": 256} | fields)).run(replace(one))


class Oracle:
    """A drafter that knows FakeRunner's answers, and says `right` of a hundred guesses as they are."""

    def __init__(self, seed: int = 0, right: int = 80, most: int = 9) -> None:
        self._rng = np.random.default_rng(seed)
        self._right = right
        self._most = most
        self.asked: list[Work] = []

    def draft(self, sequences: Seq[Sequence], work: Work) -> list[list[int]]:
        self.asked.append(work)
        return [self._guesses(sequence) for sequence in sequences]

    def _guesses(self, sequence: Sequence) -> list[int]:
        size = int(self._rng.integers(0, self._most + 1))
        truth = by_definition(sequence.group.request, sequence.index)[sequence.generated :][:size]
        return [token if self._rng.integers(100) < self._right else (token + 1) % VOCAB for token in truth]


def by_definition(one: GenerateRequest, index: int = 0) -> list[int]:
    """The tokens FakeRunner must give whatever the engine does with blocks, chunks and slots."""
    key = None if one.sampling.temperature == 0 else sampling_key(one.sampling.seed or 0, index)
    return FakeRunner(1, vocab=VOCAB).continuation(one.prompt.tolist(), key, one.stop.max_tokens)
