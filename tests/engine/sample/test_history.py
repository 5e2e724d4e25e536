"""Token histories as the penalties read them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engine.sample.history import History

tokens = st.lists(st.integers(0, 300), max_size=200)


@given(tokens, tokens)
def test_each_id_once_with_its_generated_count(prompt: list[int], generated: list[int]) -> None:
    history = History(np.array(prompt, np.int32))
    for token in generated:
        history.push(token)
    found = dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True))
    assert len(found) == len(history.ids)
    assert found == {token: generated.count(token) for token in {*prompt, *generated}}
    assert history.generated == len(generated)


@given(tokens, tokens, tokens)
def test_looking_ahead_is_as_pushing_and_changes_nothing(prompt: list[int], before: list[int], more: list[int]) -> None:
    history, pushed = History(np.array(prompt, np.int32)), History(np.array(prompt, np.int32))
    for token in before:
        history.push(token)
    for token in before + more:
        pushed.push(token)
    ids, counts = history.ahead(more)
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == dict(
        zip(pushed.ids.tolist(), pushed.counts.tolist(), strict=True)
    )
    assert len(ids) == len(set(ids.tolist()))
    assert (ids.dtype, counts.dtype) == (np.int32, np.int32)
    assert history.counts.sum() == len(before)
