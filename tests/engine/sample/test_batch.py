"""Per-slot sampling arrays: written on entry, gathered by step, following histories and minimum lengths."""

from __future__ import annotations

import numpy as np

from tailrace.engine.sample.batch import Parameters, SamplingBatch, forced
from tailrace.engine.sample.keys import sampling_key
from tailrace.engine.sequence import Group, Sequence
from tailrace.types import SamplingParams, StopConditions
from tests.engine.support import request

END = frozenset({2})


def sequence(slot: int, sampling: SamplingParams | None = None, stop: StopConditions | None = None) -> Sequence:
    one = Group(request(tokens=np.array([9, 8, 9], np.int32), sampling=sampling, stop=stop, max_tokens=50), 0, 11)
    one.sequences[0].slot = slot
    return one.sequences[0]


def bias(parameters: Parameters, row: int) -> dict[int, float]:
    part = slice(parameters.bias_starts[row], parameters.bias_starts[row + 1])
    return dict(zip(parameters.bias_ids[part].tolist(), parameters.bias_values[part].tolist(), strict=True))


def history(parameters: Parameters, row: int) -> dict[int, int]:
    part = slice(parameters.history_starts[row], parameters.history_starts[row + 1])
    ids, counts = parameters.history_ids[part], parameters.history_counts[part]
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def test_values_arrive_in_the_order_of_the_samplers() -> None:
    batch = SamplingBatch(4, END)
    first = sequence(
        3, SamplingParams(0.5, top_k=7, top_p=0.25, min_p=0.125, typical_p=0.75, logprobs=2, presence_penalty=0.5)
    )
    second = sequence(1, SamplingParams(0.0))
    found = batch.parameters([first, second])
    assert found.temperature.tolist() == [0.5, 0.0]
    assert found.top_k.tolist() == [7, 0]
    assert found.top_p.tolist() == [0.25, 1.0]
    assert found.min_p.tolist() == [0.125, 0.0]
    assert found.typical_p.tolist() == [0.75, 1.0]
    assert found.logprobs.tolist() == [2, -1]
    assert found.penalties.tolist() == [[0.5, 0.0, 1.0], [0.0, 0.0, 1.0]]
    assert found.key.tolist() == [sampling_key(11, 0)] * 2
    assert batch.parameters([second, first]).temperature.tolist() == [0.0, 0.5]


def test_a_value_beyond_its_arrays_type_becomes_the_nearest_one() -> None:
    one = sequence(0, SamplingParams(top_k=2**40, top_p=1e-320, repetition_penalty=1e-320))
    found = SamplingBatch(1, END).parameters([one])
    assert found.top_k.tolist() == [2**31 - 1]
    assert found.top_p[0] > 0
    assert found.penalties[0, 2] > 0


def test_the_dtypes_are_those_of_the_native_call() -> None:
    found = SamplingBatch(1, END).parameters([sequence(0)])
    floats = {"temperature", "top_p", "min_p", "typical_p", "penalties", "bias_values"}
    for name, array in found._asdict().items():
        expected = np.float32 if name in floats else np.uint64 if name == "key" else np.int32
        assert array.dtype == expected, name
        assert array.flags.c_contiguous, name


def test_the_position_is_that_of_the_token_to_come() -> None:
    batch, one = SamplingBatch(1, END), sequence(0)
    assert batch.parameters([one]).position.tolist() == [3]
    one.append(5)
    assert batch.parameters([one]).position.tolist() == [4]


def test_a_choice_that_has_not_started_is_at_its_prompts_end() -> None:
    group = Group(request(tokens=7, n=2), 0, 11)
    for slot, one in enumerate(group.sequences):
        one.slot = slot
    found = SamplingBatch(2, END).parameters(group.sequences)
    assert found.position.tolist() == [7, 7]
    assert found.key.tolist() == [sampling_key(11, 0), sampling_key(11, 1)]


def test_a_new_owner_of_a_slot_brings_its_own_values() -> None:
    batch = SamplingBatch(1, END)
    batch.parameters([sequence(0, SamplingParams(0.5, logit_bias=((4, 2.0),)))])
    found = batch.parameters([sequence(0, SamplingParams(0.25))])
    assert found.temperature.tolist() == [0.25]
    assert bias(found, 0) == {}


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    batch, one = SamplingBatch(2, END), sequence(1, SamplingParams(frequency_penalty=1.0))
    other = sequence(0)
    assert history(batch.parameters([other, one]), 1) == {}
    for token in (9, 5, 5):
        one.append(token)
    found = batch.parameters([other, one])
    assert history(found, 0) == {}
    assert history(found, 1) == {9: 1, 5: 2}


def test_repetition_also_counts_the_prompts() -> None:
    batch, one = SamplingBatch(1, END), sequence(0, SamplingParams(repetition_penalty=1.5))
    assert history(batch.parameters([one]), 0) == {8: 0, 9: 0}
    one.append(8)
    assert history(batch.parameters([one]), 0) == {8: 1, 9: 0}


def test_a_history_is_rebuilt_for_a_sequence_that_returns_to_another_slot() -> None:
    batch, one = SamplingBatch(2, END), sequence(0, SamplingParams(presence_penalty=1.0))
    one.append(5)
    batch.parameters([one])
    one.append(6)
    one.slot = 1
    assert history(batch.parameters([one]), 0) == {5: 1, 6: 1}


def test_end_tokens_are_forbidden_below_min_tokens_only() -> None:
    batch = SamplingBatch(1, END)
    stop = StopConditions(50, min_tokens=2, token_ids=(7,))
    one = sequence(0, SamplingParams(logit_bias=((7, 3.0), (4, 1.0))), stop)
    forbidden = {2: -np.inf, 7: -np.inf, 4: 1.0}
    assert bias(batch.parameters([one]), 0) == forbidden
    one.append(5)
    assert bias(batch.parameters([one]), 0) == forbidden
    one.append(5)
    assert bias(batch.parameters([one]), 0) == {7: 3.0, 4: 1.0}


def test_ignore_eos_leaves_the_models_end_tokens_alone() -> None:
    stop = StopConditions(50, min_tokens=2, token_ids=(7,), ignore_eos=True)
    assert bias(SamplingBatch(1, END).parameters([sequence(0, stop=stop)]), 0) == {7: -np.inf}


def test_forced_tokens_are_the_only_bias() -> None:
    found = forced(np.array([5, 6], np.int32), 3)
    assert [list(bias(found, row)) for row in range(2)] == [[5], [6]]
    assert found.logprobs.tolist() == [3, 3]
    assert found.temperature.tolist() == [0.0, 0.0]


def test_rows_behind_guesses_are_sampled_as_if_those_had_been_generated() -> None:
    batch = SamplingBatch(2, END)
    stop = StopConditions(max_tokens=20, min_tokens=3)
    sampling = SamplingParams(presence_penalty=0.5, repetition_penalty=1.25)
    one, other = sequence(0, sampling, stop), sequence(1, SamplingParams())
    one.append(7)
    one.tokens[4:6] = 9, 6
    found = batch.parameters([one, other, one, one], [0, 0, 1, 2])
    assert found.position.tolist() == [4, 3, 5, 6]
    assert [history(found, row) for row in range(4)] == [
        {8: 0, 9: 0, 7: 1}, {}, {8: 0, 9: 1, 7: 1}, {8: 0, 9: 1, 7: 1, 6: 1}
    ]  # fmt: skip
    assert [bias(found, row) for row in range(4)] == [{2: -np.inf}, {}, {2: -np.inf}, {}]
    one.append(8)
    assert history(batch.parameters([one]), 0) == {8: 1, 9: 0, 7: 1}
