"""Model.sample: the sampler on a model's own logits."""

from dataclasses import replace

import numpy as np
import pytest

from tailrace import _native
from tests.native.test_sampler import Row, columns, mask_of, sample
from tests.native.tiny import Dims, Session, native_model, random_weights


@pytest.fixture(scope="module")
def model() -> _native.Model:
    model = native_model("portable", random_weights(Dims()), threads=2)
    Session(model, _native.KvCache(model, 1), [0]).feed([5, 9, 2, 40])
    return model


def rows_of_interest() -> list[Row]:
    kinds = [
        Row(temperature=0, logprobs=5),
        Row(),
        Row(top_p=0.7, logprobs=0),
        Row(top_k=4, bias={3: 4.0}),
        Row(min_p=0.1, history={7: 2}, penalties=(1, 1, 1.3)),
    ]
    return [replace(kinds[i % 5], source=i % 4, key=i, position=i) for i in range(20)]


def test_it_is_the_sampler_on_the_last_logits(model: _native.Model) -> None:
    rows = rows_of_interest()
    mask = np.repeat(mask_of(np.arange(77) % 3 > 0), len(rows), axis=0)
    for given in (None, mask):
        ours = model.sample(**columns(rows), mask=given)
        for a, b in zip(ours, sample(model.logits(), rows, given), strict=True):
            np.testing.assert_array_equal(a, b)
    assert ours[0].dtype == ours[2].dtype == np.int32
    assert ours[1].dtype == ours[3].dtype == np.float32


def test_greedy_is_the_argmax_of_the_logits(model: _native.Model) -> None:
    tokens = model.sample(**columns([Row(temperature=0, source=r) for r in range(4)]))[0]
    assert tokens.tolist() == model.logits().argmax(1).tolist()


def test_rows_beyond_the_last_forward_are_refused(model: _native.Model) -> None:
    with pytest.raises(ValueError, match="rows"):
        model.sample(**columns([Row(source=4)]))


def test_its_time_is_counted(model: _native.Model) -> None:
    model.counters()
    model.sample(**columns([Row()]))
    assert model.counters()["sample"] > 0
    assert model.counters()["sample"] == 0
