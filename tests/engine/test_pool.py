"""Prompts that become vectors: the same in any chunks, beside answers, cached or not; whole where they must be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tailrace.engine.budget import FixedBudget
from tailrace.engine.cost import CostModel
from tailrace.engine.fake_runner import HIDDEN, FakeRunner
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.limits import Limits
from tailrace.engine.parts import EngineParts
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.share import Want, whole
from tailrace.errors import InternalError
from tailrace.types import FinishReason, GenerateRequest, Pooling, StopConditions
from tests.engine.support import VOCAB, Rig, by_definition, prompt, request, tokenizer

F32 = npt.NDArray[np.float32]


def vector_of(rig: Rig, name: str = "v") -> F32:
    (event,) = rig.events[name]
    assert (event.finish, event.token_ids, event.text) == (FinishReason.LENGTH, (), "")
    assert event.embedding is not None
    return event.embedding


def asked(name: str = "v", tokens: int = 200, pooling: Pooling = Pooling.MEAN, seed: int = 0) -> GenerateRequest:
    return request(name, prompt(tokens, seed), stop=StopConditions(max_tokens=0), pooling=pooling)


def alone(one: GenerateRequest) -> F32:
    return vector_of(Rig(blocks=64, chunk=1024).run(one), one.id)


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("chunk", [1, 7, 64, 199])
def test_chunks_change_no_bit(pooling: Pooling, chunk: int) -> None:
    one = asked(pooling=pooling)
    assert np.array_equal(vector_of(Rig(blocks=64, chunk=chunk).run(one)), alone(one))


def test_each_pooling_takes_its_tokens() -> None:
    """The mean of a text is that of the last states of its beginnings."""
    lasts = [alone(asked(tokens=n, pooling=Pooling.LAST)) for n in range(1, 6)]
    assert np.array_equal(alone(asked(tokens=5, pooling=Pooling.FIRST)), lasts[0])
    assert np.array_equal(alone(asked(tokens=5)), np.mean(lasts, axis=0, dtype=np.float64).astype(np.float32))
    assert lasts[0].shape == (HIDDEN,)


def test_beside_answers_nobody_changes() -> None:
    answers = [request(f"r{i}", prompt(20 + i, i), max_tokens=12) for i in range(3)]
    vectors = [asked(f"v{i}", 90 + 31 * i, list(Pooling)[i], seed=10 + i) for i in range(3)]
    rig = Rig(blocks=64, chunk=16).run(answers[0], vectors[0], answers[1], vectors[1], vectors[2], answers[2])
    for one in answers:
        assert rig.tokens(one.id) == by_definition(one)
    for one in vectors:
        assert np.array_equal(vector_of(rig, one.id), alone(one))


def test_a_cached_prefix_serves_the_last_token_and_never_the_mean() -> None:
    rig = Rig(blocks=64)
    rig.run(asked("first"))
    for pooling, cached in ((Pooling.LAST, 192), (Pooling.MEAN, 0)):
        one = asked(pooling.value, pooling=pooling)
        assert np.array_equal(vector_of(rig.run(one), one.id), alone(one))
        assert rig.events[one.id][0].cached_tokens == cached


def test_a_prompt_that_gave_way_begins_again_and_counts_once() -> None:
    """Blocks run out under it: three answers grow while it is computed a token at a time."""
    one = asked(tokens=130)
    low = GenerateRequest(**{name: getattr(one, name) for name in one.__slots__} | {"priority": -1})
    rig = Rig(blocks=8, chunk=3)
    rig.submit(low)
    for _ in range(20):
        rig.step()
    rig.run(*(request(f"r{i}", prompt(60, i + 1), max_tokens=70) for i in range(3)))
    facts = rig.events["v"][0].facts
    assert facts is not None
    assert facts.preemptions > 0
    assert np.array_equal(vector_of(rig), alone(one))


def test_numbers_that_are_none_fail_their_own_request() -> None:
    class Broken(FakeRunner):
        def _hidden(self, plan: object) -> tuple:  # type: ignore[type-arg]
            found = super()._hidden(plan)  # type: ignore[arg-type]
            for hidden in found:
                if hidden.sequence.group.request.id == "bad":
                    hidden.rows[:] = np.nan
            return found

    rig = Rig(blocks=64, runner=Broken(64, vocab=VOCAB)).run(asked("bad"), asked("v"), request("r", 8, 4))
    assert [event.finish for event in rig.events["bad"]] == [FinishReason.ERROR]
    assert isinstance(rig.events["bad"][0].error, InternalError)
    assert np.array_equal(vector_of(rig), alone(asked()))
    assert rig.choice("r").finish is FinishReason.LENGTH


def whole_prompts(budget: int) -> EngineParts:
    kv = KvManager(64, max_blocks=8, prefix_cache=False)
    limits = Limits(max_sequences=8, max_context=512, vocab_size=VOCAB, whole_prompts=True)
    return EngineParts(
        Scheduler(kv, limits, FixedBudget(budget)), FakeRunner(64, vocab=VOCAB), tokenizer(), CostModel(), embedding=4
    )


@pytest.mark.parametrize(("budget", "steps"), [(64, 4), (250, 2), (1000, 1)])
def test_whole_prompts_are_computed_in_one_step_each(budget: int, steps: int) -> None:
    rig = Rig(whole_prompts(budget))
    texts = [asked(f"v{i}", tokens, seed=i) for i, tokens in enumerate((200, 100, 150, 1))]
    rig.run(*texts)
    for one in texts:
        assert np.array_equal(vector_of(rig, one.id), alone(one))
    assert rig.loop.stats.steps == steps
    assert rig.loop.stats.prefill_tokens == 451


def test_whole_grants() -> None:
    wants = [Want(50), Want(30), Want(80), Want(10, background=True)]
    assert whole(90, wants) == [50, 30, 0, 10]
    assert whole(20, wants) == [50, 0, 0, 0]
    assert whole(20, [Want(50, served=2.0), Want(15, group=1, served=1.0)]) == [0, 15]
    assert whole(10, []) == []
