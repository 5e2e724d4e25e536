"""Both kinds of vocabulary as grammars see them: the bytes of tokens, how forced text is cut, and which tokens end."""

from __future__ import annotations

import json
import random
import re

import jsonschema
import llguidance
import numpy as np
import pytest

from tailrace.engine.grammar.compiler import LIMITS
from tailrace.engine.grammar.vocabulary import make_vocabulary
from tailrace.engine.grammar.workshop import CompiledGrammar, Workshop
from tailrace.errors import InvalidRequest
from tailrace.protocol.structured import grammar_of
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import Grammar
from tests.engine.support import VOCAB, NoGuard, tokenizer
from tests.text.test_pieces import example, metadata

PADDED = 7  # logits behind the last token
FORCED = {"properties": {"abab cab": {"const": "a bb é"}}, "required": ["abab cab"], "type": "object"}


def vocabularies() -> list[Tokenizer]:
    return [tokenizer(), example(space_prefix=True)[0], example(space_prefix=False)[0]]


@pytest.fixture(params=range(3), ids=["bytes", "pieces, space in front", "pieces"])
def vocabulary(request: pytest.FixtureRequest) -> Tokenizer:
    found = vocabularies()[request.param]
    assert isinstance(found, Tokenizer)
    return found


def compiled(vocabulary: Tokenizer, **fields: object) -> CompiledGrammar:
    grammar = grammar_of(fields)
    assert isinstance(grammar, Grammar)
    shop = Workshop(vocabulary, vocabulary.vocab_size + PADDED, LIMITS, NoGuard())
    return shop.compile(grammar.kind, grammar.source)


def allowed(matcher: llguidance.LLMatcher) -> list[int]:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def walk(vocabulary: Tokenizer, grammar: CompiledGrammar, seed: int) -> str:
    """A random answer, whose every token has a text but the last."""
    dice, matcher, data = random.Random(seed), grammar.matcher(), b""
    while True:
        choices = allowed(matcher)
        assert choices
        assert set(choices) <= set(range(vocabulary.vocab_size))
        assert not set(choices) & (vocabulary.special_ids - vocabulary.end_ids)
        token = dice.choice(choices)
        assert matcher.consume_token(token)
        if token in vocabulary.end_ids:
            return data.decode()
        data += vocabulary.token_bytes(token)


@pytest.mark.parametrize("seed", range(6))
def test_random_answers_are_of_the_grammar(vocabulary: Tokenizer, seed: int) -> None:
    assert re.fullmatch("[abc ]{3,9}é?", walk(vocabulary, compiled(vocabulary, guided_regex="[abc ]{3,9}é?"), seed))
    schema = {"type": "array", "items": {"enum": ["ab", "cab aab", 17, "naïve"]}, "maxItems": 3}
    jsonschema.validate(json.loads(walk(vocabulary, compiled(vocabulary, guided_json=schema), seed)), schema)


def test_what_is_forced_is_cut_as_text_that_goes_on(vocabulary: Tokenizer) -> None:
    """No space that the tokenizer would put in front of a text of its own."""
    matcher = compiled(vocabulary, guided_json=FORCED).matcher()
    data = b""
    while forced := matcher.compute_ff_tokens():
        data += b"".join(vocabulary.token_bytes(token) for token in forced)
        assert matcher.consume_tokens(forced)
    while not matcher.is_stopped():  # what may be cut in several ways is left to the model
        token = max(allowed(matcher), key=lambda token: len(vocabulary.token_bytes(token)))
        assert matcher.consume_token(token)
        data += vocabulary.token_bytes(token)
    assert json.loads(data) == {"abab cab": "a bb é"}


def test_it_ends_with_any_of_the_models_end_tokens(vocabulary: Tokenizer) -> None:
    matcher = compiled(vocabulary, guided_choice=["ab"]).matcher()
    data = b""
    while data != b"ab":
        token = allowed(matcher)[0]
        assert matcher.consume_token(token)
        data += vocabulary.token_bytes(token)
    assert allowed(matcher) == sorted(vocabulary.end_ids)


def test_a_model_without_an_end_token_cannot_end_an_answer() -> None:
    endless = Tokenizer.from_gguf(
        metadata(["a"], [0.0], eos_token_id=None, tokens=None)
        | {"tokenizer.ggml.tokens": ["<unk>", "<s>", "<other>", *(f"<0x{byte:02X}>" for byte in range(256)), "a"]}
    )
    assert not endless.end_ids
    with pytest.raises(InvalidRequest, match="no end token"):
        make_vocabulary(endless, endless.vocab_size)


def test_the_rest_of_the_logits_is_never_allowed() -> None:
    made = make_vocabulary(tokenizer(), VOCAB + 40)
    assert made.vocab_size == VOCAB + 40
    assert all(made.is_special_token(token) for token in range(VOCAB, VOCAB + 40))
