"""A request's tokens do not depend on what ran beside it, how it was chunked, cached, preempted or forked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tailrace.types import SamplingParams
from tests.engine.support import Rig, by_definition, prompt, request, seeded

GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize("sampling", [GREEDY, seeded()], ids=["greedy", "seeded"])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_alone_is_what_the_definition_says(sampling: SamplingParams, length: int) -> None:
    one = request(tokens=length, max_tokens=70, sampling=sampling)
    assert Rig().run(one).tokens() == by_definition(one)


@pytest.mark.parametrize("chunk", [1, 16, 64, 512])
def test_in_a_batch_of_32_with_any_chunk(chunk: int) -> None:
    many = [
        request(f"r{i}", prompt(20 + 9 * i, seed=i % 5), 5 + i, sampling=seeded(i) if i % 2 else GREEDY)
        for i in range(32)
    ]
    rig = Rig(blocks=400, chunk=chunk).run(*many)
    assert [rig.tokens(one.id) for one in many] == [by_definition(one) for one in many]


def test_with_and_without_a_prefix_hit() -> None:
    one = request(tokens=300, max_tokens=20, sampling=seeded())
    rig = Rig(chunk=64).run(one)
    again = rig.run(replace(one, id="again"))
    assert again.tokens("again") == rig.tokens() == by_definition(one)
    assert rig.events["r"][0].cached_tokens == 0
    assert rig.events["again"][0].cached_tokens == 256
    uncached = Rig(prefix_cache=False).run(one, replace(one, id="again"))
    assert uncached.tokens() == uncached.tokens("again") == by_definition(one)


def test_hitting_an_answer_as_the_next_prompt() -> None:
    """A conversation's next turn finds the blocks that decoding filled."""
    first = request(tokens=60, max_tokens=80)
    rig = Rig().run(first)
    longer = np.concatenate([first.prompt, np.array(rig.tokens(), np.int32), prompt(5)])
    rig.run(request("next", longer, 10))
    assert rig.events["next"][0].cached_tokens == 128
    assert rig.tokens("next") == by_definition(request(tokens=longer, max_tokens=10))


def test_after_preemption() -> None:
    many = [request(f"r{i}", prompt(100, seed=i), 200, sampling=seeded(i)) for i in range(6)]
    rig = Rig(blocks=12, chunk=64, max_preemptions=50)
    rig.run(*many)
    assert rig.loop.stats.preemptions > 0
    assert rig.loop.stats.recomputed_tokens > 0
    assert [rig.tokens(one.id) for one in many] == [by_definition(one) for one in many]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("blocks", [64, 9])
def test_choices_of_one_prompt(length: int, blocks: int) -> None:
    """Forked at a block boundary or inside a block, with room or under preemption: each as if alone."""
    one = request(tokens=length, max_tokens=100, sampling=seeded(), n=4)
    rig = Rig(blocks=blocks, max_preemptions=50).run(one)
    for index in range(4):
        assert rig.tokens("r", index) == by_definition(one, index)
    assert len({tuple(rig.tokens("r", index)) for index in range(4)}) == 4
    facts = [rig.choice("r", index).ends[0].facts for index in range(4)]
    assert [fact.computed_prompt_tokens for fact in facts if fact] == [length] * 4
