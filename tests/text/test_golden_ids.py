"""Real vocabularies against ids that another implementation gave for the same file (tests/data)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tailrace.config import load, store_root
from tailrace.engine.store.store import Store
from tailrace.engine.weights.gguf import GgufFile
from tailrace.text.pretokenizers import scheme_of
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.vocabulary import NORMAL, read_vocabulary
from tests.text.test_pieces import plainly

MODELS = {"smollm2:135m": "smollm2-135m-instruct.q4_1", "gemma3:270m": "gemma-3-270m.q4_k_m"}
REPEATING = ["n" * 70, "a" * 23, "abab" * 9, "====-==-=" * 5, " -- -" * 20, "the thethe" * 7]


@cache
def metadata(model: str) -> dict[str, Any]:
    """Of the model in the store, fetched on first use. A test that cannot have it fails with the store's own error."""
    return GgufFile(Store(store_root(load().config.engine)).pull(model)).metadata


@cache
def tokenizer(model: str) -> Tokenizer:
    return Tokenizer.from_gguf(metadata(model))


def golden(model: str) -> list[dict[str, Any]]:
    path = Path(__file__).parents[1] / "data" / f"{MODELS[model]}.json"
    texts: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["tokenize"]
    return texts


@pytest.mark.parametrize("model", MODELS)
def test_every_text_has_the_same_ids_and_comes_back(model: str) -> None:
    ours = tokenizer(model)
    assert len(golden(model)) >= 25
    for entry in golden(model):
        text = entry["text"]
        parsed = ours.encode(text, add_special=False, parse_special=True)
        assert parsed.tolist() == entry["ids"]
        plain = ours.encode(text, add_special=True, parse_special=False)
        assert plain.tolist() == entry["ids_add_special_no_parse"]
        assert ours.decode(parsed) == text


def test_facts_of_a_vocabulary_of_pieces() -> None:
    ours = tokenizer("gemma3:270m")
    assert (ours.vocab_size, ours.bos_id, ours.wants_bos, ours.missing_bytes) == (262144, 2, True, frozenset())
    assert ours.end_ids == {1, 106}  # <eos> and <end_of_turn>
    assert ours.encode_rendered("Hello").tolist() == [2, 9259]


@pytest.mark.parametrize("text", REPEATING)
def test_ranked_pairs_merge_as_scores_do_on_text_that_repeats(text: str) -> None:
    found = metadata("gemma3:270m")
    vocabulary = read_vocabulary(found, scheme_of(found))
    scores = {vocabulary.tokens[i]: vocabulary.scores[i] for i in vocabulary.of_kind(NORMAL)}
    for whole in (text, f"x{text}y"):
        ids = tokenizer("gemma3:270m").encode(whole, add_special=False, parse_special=False)
        assert [vocabulary.tokens[i] for i in ids] == plainly(whole, scores)
