"""Beam search: the answers of a plain reference, whatever else runs, and blocks that add up."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tailrace import _native
from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.fake_runner import FakeRunner, _hashes
from tailrace.engine.step_draft import StepDraft
from tailrace.errors import ContextLengthExceeded
from tailrace.types import (
    BeamSearch,
    FinishReason,
    GenerateRequest,
    Grammar,
    GrammarKind,
    SamplingParams,
    StopConditions,
)
from tests.engine.beam_reference import Found, beam_search
from tests.engine.support import VOCAB, Oracle, Rig, request, seeded, tokenizer
from tests.tiny import write_tiny_gguf

ENDS = tuple(range(0, VOCAB, 4))  # a quarter of the vocabulary, so that answers end
FAKE = FakeRunner(1, vocab=VOCAB)
Answers = list[tuple[list[int], FinishReason | None]]


def beams(
    id: str = "r",
    tokens: int = 70,
    width: int = 4,
    most: int = 12,
    rule: BeamSearch = BeamSearch(),  # noqa: B008 - frozen
    ends: tuple[int, ...] = ENDS,
    least: int = 0,
) -> GenerateRequest:
    stop = StopConditions(most, least, token_ids=ends, ignore_eos=True)
    sampling = SamplingParams(temperature=0.0, logprobs=2)
    return request(id, tokens, sampling=sampling, stop=stop, n=width, beams=rule)


def fake_logprobs(tokens: list[int]) -> npt.NDArray[np.float32]:
    context = int(_hashes(np.array(tokens, np.int32), 0).sum())
    return np.array([FAKE._logprob(context, token) for token in range(VOCAB)], np.float32)


def expected(one: GenerateRequest) -> list[Found]:
    assert one.beams is not None
    return beam_search(
        fake_logprobs, one.prompt.tolist(), one.n, one.stop.max_tokens, frozenset(one.stop.token_ids),
        one.beams.length_penalty, one.beams.early_stopping, one.stop.min_tokens,
    )  # fmt: skip


def answers(rig: Rig, one: GenerateRequest) -> Answers:
    found = [rig.choice(one.id, index) for index in range(one.n)]
    return [(choice.tokens, choice.finish) for choice in found]


def as_answers(found: list[Found]) -> Answers:
    return [(one.tokens, FinishReason.STOP if one.ended else FinishReason.LENGTH) for one in found]


RULES = [BeamSearch(penalty, early) for penalty, early in product((0.0, 1.0, -0.5, 2.5), (False, True, None))]


@pytest.mark.parametrize("place", range(len(RULES)), ids=lambda place: str(RULES[place]))
def test_it_finds_what_the_reference_finds(place: int) -> None:
    width, most = [(2, 12), (1, 9), (5, 8), (3, 10)][place % 4]
    one = beams(width=width, most=most, rule=RULES[place])
    assert answers(Rig(blocks=256).run(one), one) == as_answers(expected(one))


@pytest.mark.parametrize("length", [1, 63, 64, 65])
def test_beams_cross_block_borders(length: int) -> None:
    one = beams(tokens=length, width=3, most=8, ends=())
    rig = Rig(blocks=256).run(one)
    assert answers(rig, one) == as_answers(expected(one))
    assert {finish for _, finish in answers(rig, one)} == {FinishReason.LENGTH}


def test_no_end_counts_before_min_tokens() -> None:
    one = beams(most=8, least=6)
    found = answers(Rig(blocks=256).run(one), one)
    assert found == as_answers(expected(one))
    assert {len(tokens) for tokens, _ in found} <= {6, 7, 8}


def test_what_an_answer_carries() -> None:
    one = beams()
    rig = Rig(blocks=256).run(one)
    found = expected(one)
    assert [len(rig.events["r"]), len(found)] == [one.n, one.n]
    for index, (event, wanted) in enumerate(zip(rig.events["r"], found, strict=True)):
        assert event.index == index
        logprobs = [entry.logprob for entry in event.logprobs]
        assert sum(value for value in logprobs if value is not None) / len(logprobs) == pytest.approx(wanted.score)
        assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
        assert all(len(entry.top) == 2 for entry in event.logprobs)
        shown = wanted.tokens[:-1] if wanted.ended else wanted.tokens
        assert event.text == tokenizer().decode(shown)
        assert event.facts is not None and event.facts.first_token is not None
    assert [event.cached_tokens for event in rig.events["r"]] == [0] * one.n


@cache
def crowd() -> list[GenerateRequest]:
    """Searches of several shapes and ordinary requests among them."""
    searches = [beams(f"b{i}", 40 + 31 * i, 1 + i % 4, 4 + 4 * i, RULES[i], () if i % 2 else ENDS) for i in range(6)]
    return [*searches, *(request(f"o{i}", 30 + 9 * i, 20 + i, sampling=seeded(i)) for i in range(8))]


@cache
def crowd_answers() -> dict[str, Answers]:
    return {one.id: as_answers(expected(one)) for one in crowd() if one.beams is not None}


def check_crowd(rig: Rig) -> None:
    found = {one.id: answers(rig, one) for one in crowd() if one.beams is not None}
    assert found == crowd_answers()
    assert not rig.scheduler.running and rig.scheduler.free_slots == rig.scheduler.limits.max_sequences
    assert rig.scheduler.kv.pool.free + len(rig.scheduler.kv.tree.idle) == rig.scheduler.kv.pool.total
    assert not rig.scheduler._searches


@pytest.mark.parametrize(("chunk", "prefix_cache"), [(16, True), (512, False)])
def test_company_changes_nothing(chunk: int, prefix_cache: bool) -> None:
    check_crowd(Rig(blocks=400, slots=24, chunk=chunk, prefix_cache=prefix_cache, drafter=Oracle()).run(*crowd()))


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_with_too_little_memory_for_all(prefix_cache: bool) -> None:
    """Searches grow out of their blocks together, and take each other's."""
    searches = [beams(f"s{i}", 56 + i, 3, 16, BeamSearch(), ()) for i in range(3)]
    rig = Rig(blocks=9 + 3 * (not prefix_cache), slots=24, prefix_cache=prefix_cache).run(*searches)
    assert [answers(rig, one) for one in searches] == [as_answers(expected(one)) for one in searches]
    assert rig.loop.stats.recomputed_tokens > 0, "somebody was preempted"


@pytest.mark.parametrize("park", [True, False])
def test_beams_that_are_preempted_at_any_time(park: bool) -> None:
    """Every third step somebody gives way, beams that wait for their search's others too."""
    rig = Rig(blocks=400, slots=24)
    rig.submit(*crowd())
    turn = 0
    while rig.scheduler.has_work:
        turn += 1
        rig.step()
        running = rig.scheduler.running
        if turn % 3 == 0 and running:
            rig.scheduler._preempt(StepDraft(), running[turn // 3 * 5 % len(running)], "test", park=park)
    check_crowd(rig)


@pytest.mark.parametrize("after", [1, 2, 5])
def test_an_aborted_search_leaves_nothing(after: int) -> None:
    rig = Rig(blocks=256)
    rig.submit(beams(most=40, ends=()))
    for _ in range(after):
        rig.step()
    rig.abort("r")
    assert {rig.choice("r", index).finish for index in range(4)} == {FinishReason.ABORT}
    assert not rig.scheduler.has_work and rig.scheduler.kv.available == 256
    assert rig.scheduler.free_slots == 32


def test_a_search_that_cannot_fit_is_refused() -> None:
    """Its beams advance together, so that all must fit: 1 shared block, and 2 for each with one to grow into."""
    one = beams(tokens=100, width=4, most=60, ends=())
    Rig(blocks=13).run(one)
    with pytest.raises(ContextLengthExceeded, match="in 4 beams need 832 tokens"):
        Rig(blocks=12).run(one)


# ---- on real arithmetic


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_gguf(folder / "tiny.gguf")
    return folder


def native(folder: Path) -> Rig:
    config = EngineConfig(isa=_native.test_variants()[0], threads=1, kv="bf16", kv_memory=200 * 64 * 2 * 2 * 32 * 2)
    return Rig(build_engine(folder / "tiny.gguf", config, SystemClock(), cache_dir=folder / "cache"))


class Model:
    """The model's own log-probabilities of whatever may come next, over what is allowed."""

    def __init__(self, rig: Rig, allowed: tuple[int, ...] = ()) -> None:
        self.rig = rig
        self._allowed = allowed
        self._known: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}

    def __call__(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self._compute(tokens)
        return self._known[key]

    def _compute(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        name = f"ask {len(self._known)}"
        sampling = SamplingParams(temperature=0.0, logprobs=VOCAB)
        self.rig.run(request(name, np.array(tokens, np.int32), 1, sampling=sampling))
        row = np.full(VOCAB, -np.inf)
        for token, _, logprob in self.rig.events[name][0].logprobs[0].top:
            row[token] = logprob
        if self._allowed:
            kept = row[list(self._allowed)]
            row[:] = -np.inf
            row[list(self._allowed)] = kept - np.log(np.exp(kept).sum())
        return row.astype(np.float32)


def test_the_models_most_likely_answers(folder: Path) -> None:
    model = Model(native(folder))
    ends = tuple(range(3, VOCAB, 5))
    for rule in (BeamSearch(), BeamSearch(0.5, None), BeamSearch(2.0, early_stopping=True)):
        one = beams(f"r {rule}", 5, 3, 6, rule, ends)
        found = beam_search(model, one.prompt.tolist(), 3, 6, frozenset(ends), rule.length_penalty, rule.early_stopping)
        assert answers(model.rig.run(one), one) == as_answers(found)


def test_enough_beams_find_the_best_of_all_answers(folder: Path) -> None:
    """Three tokens may come, four times: with 27 beams nothing is missed of 81 answers."""
    allowed = (40, 77, 130)
    model = Model(native(folder), allowed)
    one = beams(tokens=5, width=27, most=4, ends=())
    one = replace(one, sampling=replace(one.sampling, allowed_token_ids=allowed))

    def total(tokens: tuple[int, ...]) -> float:
        said = one.prompt.tolist()
        return sum(float(model(said + list(tokens[:at]))[token]) for at, token in enumerate(tokens))

    best = sorted(product(allowed, repeat=4), key=lambda tokens: -total(tokens))[:27]
    model.rig.run(one)
    assert [tuple(model.rig.tokens("r", index)) for index in range(27)] == best
    shown = [sum(value or 0.0 for value in model.rig.choice("r", index).logprobs) for index in range(27)]
    assert shown == pytest.approx([total(tokens) for tokens in best], abs=1e-4)


def test_one_beam_that_stops_early_is_greedy(folder: Path) -> None:
    rig = native(folder)
    greedy = request("g", 9, 30, sampling=SamplingParams(temperature=0.0, logprobs=0))
    one = beams("b", 9, 1, 30, BeamSearch(early_stopping=True), ())
    rig.run(greedy, one)
    assert rig.tokens("b") == rig.tokens("g")
    assert rig.choice("b").logprobs == rig.choice("g").logprobs


def test_bits_are_the_same_in_company_and_after_preemption(folder: Path) -> None:
    one = replace(
        beams("b", 130, 4, 20, BeamSearch(), ()), sampling=SamplingParams(0.0, repetition_penalty=1.2, logprobs=1)
    )
    alone = native(folder).run(one)
    busy = native(folder)
    others = [request(f"o{i}", 20 + 7 * i, 30, sampling=seeded(i)) for i in range(8)]
    busy.submit(*others, one)
    turn = 0
    while busy.scheduler.has_work:
        turn += 1
        busy.step()
        if turn % 4 == 0 and busy.scheduler.running:
            victim = busy.scheduler.running[turn % len(busy.scheduler.running)]
            busy.scheduler._preempt(StepDraft(), victim, "test")
            busy.scheduler.kv.clear_cache()
    for index in range(4):
        assert busy.choice("b", index) == replace(alone.choice("b", index), ends=busy.choice("b", index).ends)
    assert len({tuple(alone.tokens("b", index)) for index in range(4)}) == 4


def test_a_grammar_holds_for_every_beam(folder: Path) -> None:
    rig = native(folder)
    grammar = Grammar(GrammarKind.REGEX, "(yes|no|never)")
    one = replace(
        beams("b", 9, 4, 30), grammar=grammar, stop=StopConditions(30), sampling=SamplingParams(0.0, logprobs=0)
    )
    rig.run(one)
    assert {rig.choice("b", index).text for index in range(4)} <= {"yes", "no", "never"}
    assert len({tuple(rig.tokens("b", index)) for index in range(4)}) == 4, "split into tokens in several ways"
    assert {rig.choice("b", index).finish for index in range(4)} == {FinishReason.STOP}


def test_choices_beyond_all_answers_have_no_tokens(folder: Path) -> None:
    rig = native(folder)
    one = beams("b", 9, 4, 1, ends=())
    rig.run(replace(one, sampling=replace(one.sampling, allowed_token_ids=(40, 77))))
    assert {tuple(rig.tokens("b", index)) for index in range(2)} == {(40,), (77,)}
    assert [rig.tokens("b", index) for index in (2, 3)] == [[], []]
