from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest, ModelFileError
from tailrace.text.tokenizer import Tokenizer, clean_text
from tests.text.vocabularies import END_OF_TEXT, IM_END, IM_START, tiny, tiny_metadata

texts = st.text(st.characters(exclude_categories=("Cs",)))


def test_facts_of_the_vocabulary(smollm2: Tokenizer) -> None:
    tokenizer = smollm2
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_id, tokenizer.wants_bos) == (1, False)
    assert tokenizer.end_ids == {0, 2}  # <|endoftext|> and <|im_end|>
    assert tokenizer.special_ids == set(range(17))
    assert tokenizer.max_token_bytes == 81
    assert sorted(tokenizer.missing_bytes)[:8] == [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1]


@given(texts)
def test_every_text_comes_back(text: str) -> None:
    tokenizer = tiny()
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()
    assert tokenizer.fewest_tokens(len(text.encode())) <= len(ids)


@given(text=texts)
def test_text_comes_back_but_for_characters_that_the_vocabulary_lacks(smollm2: Tokenizer, text: str) -> None:
    tokenizer = smollm2
    kept = "".join(char for char in text if not tokenizer.missing_bytes & set(char.encode()))
    assert tokenizer.decode(tokenizer.encode(kept, add_special=False, parse_special=False)) == kept


def test_special_tokens_are_parsed_only_when_asked_and_have_no_text_of_their_own() -> None:
    tokenizer = tiny()
    parsed = tokenizer.encode("<|im_end|>", add_special=False, parse_special=True)
    assert parsed.tolist() == [IM_END]
    assert IM_END not in tokenizer.encode("<|im_end|>", add_special=False, parse_special=False)
    assert (tokenizer.is_special(IM_END), tokenizer.is_special(50)) == (True, False)
    assert tokenizer.token_bytes(IM_END) == b""
    assert tokenizer.token_bytes(IM_END, special=True) == b"<|im_end|>"
    assert tokenizer.token_name(IM_END) == "<|im_end|>"
    assert tokenizer.decode([IM_END]) == "<|im_end|>"
    assert tokenizer.decode([IM_END], skip_special=True) == ""


@pytest.mark.parametrize("text", ["hello", "<|im_start|>hello", "", "<|im_start|><|im_start|>"])
def test_a_start_token_is_never_doubled_and_never_missing(text: str) -> None:
    wanting = Tokenizer.from_gguf(tiny_metadata(add_bos_token=True))
    plain = tiny().encode_rendered(text).tolist()
    ids = wanting.encode_rendered(text).tolist()
    assert ids == (plain if text.startswith("<|im_start|>") else [IM_START, *plain])
    assert wanting.encode(text, add_special=True, parse_special=True).tolist() == ids


def test_a_model_that_wants_no_start_token_gets_none() -> None:
    assert tiny().wants_bos is False
    assert IM_START not in tiny().encode_rendered("hello")


def test_the_end_token_is_added_on_request_only_to_encoded_text_not_to_prompts() -> None:
    tokenizer = Tokenizer.from_gguf(tiny_metadata(add_eos_token=True))
    assert tokenizer.encode("hello", add_special=True, parse_special=True)[-1] == IM_END
    assert tokenizer.encode("hello<|im_end|>", add_special=True, parse_special=True).tolist().count(IM_END) == 1
    assert IM_END not in tokenizer.encode_rendered("hello")


def test_a_space_prefix_is_added_once() -> None:
    tokenizer = Tokenizer.from_gguf(tiny_metadata(add_space_prefix=True))
    assert tokenizer.decode(tokenizer.encode_rendered("hello")) == " hello"
    assert tokenizer.decode(tokenizer.encode_rendered(" hello")) == " hello"


def test_user_defined_tokens_are_recognized_always_and_are_text() -> None:
    plain = tiny_metadata()
    tokens, kinds = plain["tokenizer.ggml.tokens"], plain["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_gguf(tiny_metadata(tokens=[*tokens, "<think>"], token_type=[*kinds, 4]))
    ids = tokenizer.encode("a<think>b", add_special=False, parse_special=False).tolist()
    assert ids[1] == len(tokens)
    assert tokenizer.token_bytes(len(tokens)) == b"<think>"
    assert not tokenizer.is_special(len(tokens))


def test_byte_tokens_and_tokens_outside_the_alphabet() -> None:
    plain = tiny_metadata()
    tokens, kinds = plain["tokenizer.ggml.tokens"], plain["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer.from_gguf(
        tiny_metadata(tokens=[*tokens, "<0xE2>", "漢", "a\nb"], token_type=np.array([*kinds, 6, 1, 1], np.int32))
    )
    first = len(tokens)
    assert [tokenizer.token_bytes(first + i) for i in range(3)] == [b"\xe2", "漢".encode(), b"a\nb"]


def test_end_tokens_are_those_of_the_file_and_control_tokens_that_end_turns() -> None:
    assert tiny().end_ids == {END_OF_TEXT, IM_END}
    named = Tokenizer.from_gguf(tiny_metadata(eos_token_id=None, eot_token_id=40, eom_token_id=41))
    assert named.end_ids == {END_OF_TEXT, IM_END, 40, 41}
    as_text = Tokenizer.from_gguf(tiny_metadata(token_type=None, eos_token_id=7))
    assert as_text.end_ids == {7}  # a normal token of that name ends nothing


def test_half_a_surrogate_pair_is_the_clients_mistake() -> None:
    assert clean_text("naïve 🙂", field="prompt") == "naïve 🙂"
    with pytest.raises(InvalidRequest, match=r"prompt .*U\+D800 at character 1") as caught:
        clean_text("a\ud800b", field="prompt")
    assert caught.value.param == "prompt"
    with pytest.raises(InvalidRequest, match="U\\+DC00"):
        tiny().encode_rendered("\udc00")


@pytest.mark.parametrize("bad", [-1, 10**7])
def test_an_unknown_id_is_the_clients_mistake(bad: int) -> None:
    with pytest.raises(InvalidRequest, match="token ids go from 0 to"):
        tiny().decode([5, bad])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "tokenizer.ggml.model is 'rwkv'; known: \"gpt2\""),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"pre": "dolphin"}, "tokenizer.ggml.pre is 'dolphin'; known: bailingmoe, bloom, command-r, "),
        ({"pre": None}, "tokenizer.ggml.pre is None"),
        ({"tokens": None}, "tokenizer.ggml.tokens must be a list of strings, not NoneType"),
        ({"tokens": []}, "tokenizer.ggml.tokens is empty"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens must be a list of strings"),
        ({"merges": None}, "tokenizer.ggml.merges must be a list of strings"),
        ({"merges": ["no such"]}, "tokenizer.ggml.merges does not fit the vocabulary"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type must have one entry for each"),
        ({"bos_token_id": 10**6}, "tokenizer.ggml.bos_token_id is 1000000; the vocabulary has"),
        ({"eos_token_id": "x"}, "tokenizer.ggml.eos_token_id is 'x'"),
        ({"bos_token_id": False}, "tokenizer.ggml.bos_token_id is False; the vocabulary has"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_was_found(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_gguf(tiny_metadata(**changes))
    assert message in caught.value.message


def test_smollm_takes_digits_one_by_one_and_gpt2_does_not() -> None:
    tokens = tiny_metadata()["tokenizer.ggml.tokens"]
    grown = {"tokens": [*tokens, "12"], "merges": ["1 2"], "token_type": None}
    smollm, gpt2 = (Tokenizer.from_gguf(tiny_metadata(pre=pre, **grown)) for pre in ("smollm", "gpt-2"))
    assert [len(tokenizer.encode_rendered("12")) for tokenizer in (smollm, gpt2)] == [2, 1]
