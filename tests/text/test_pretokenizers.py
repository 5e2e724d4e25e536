from __future__ import annotations

import pytest

from tailrace.errors import ModelFileError
from tailrace.text.pretokenizers import PRE_TOKENIZERS, scheme_of
from tailrace.text.tokenizer import Tokenizer
from tests.text.vocabularies import tiny_metadata
from tests.tiny import byte_alphabet

TEXT = "I'VE 12345 HTMLword naïve\u0301!?\n\n  x我们"


def words(name: str, text: str = TEXT) -> list[str]:
    """What the text is cut into, read back from the alphabet of bytes."""
    value = {char: byte for byte, char in enumerate(byte_alphabet())}
    pieces = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    return [bytes(value[char] for char in piece).decode() for piece, _ in pieces]


GPT2 = ["I", "'", "VE", " 12345", " HTMLword", " naïve", "\u0301!?", "\n\n ", " x我们"]
GPT4 = ["I", "'VE", " ", "123", "45", " HTMLword", " naïve", "\u0301!?\n\n", " ", " x我们"]
SINGLE = ["I", "'VE", " ", *"12345", " HTMLword", " naïve", "\u0301!?\n\n", " ", " x我们"]
DIGITS = ["I", "'", "VE", " ", *"12345", " HTMLword", " naïve", "\u0301!?", "\n\n ", " x我们"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", GPT2),
        ("llama-bpe", GPT4),
        ("dbrx", GPT4),
        ("qwen2", SINGLE),
        ("deepseek-r1-qwen", SINGLE),
        ("qwen35", [*SINGLE[:9], " naïve\u0301", "!?\n\n", " ", " x我们"]),
        ("starcoder", DIGITS),
        ("command-r", DIGITS),
        ("seed-coder", [*SINGLE[:10], "\u0301!?", "\n\n", " ", " x我们"]),
        ("bailingmoe", SINGLE),
        ("gpt-4o", ["I'VE", " ", "123", "45", " HTMLword", " naïve\u0301", "!?\n\n", " ", " x我们"]),
        ("tekken", ["I", "'VE", " ", *"12345", " HTMLword", " naïve\u0301", "!?\n\n", " ", " x我们"]),
        ("deepseek-coder", [*DIGITS[:10], " naïve", "\u0301", "!?", "\n", "\n", " ", " x", "我们"]),
        # The second expression's range of punctuation has the letters from a to z in it.
        ("deepseek-llm", [*DIGITS[:10], *(" na", "ï", "ve"), "\u0301", "!?", "\n", "\n", " ", " x", "我们"]),
        ("deepseek-v3", ["I", "'VE", " ", "123", "45", " HTMLword", " naïve\u0301", "!?\n\n", " ", " x", "我们"]),
        ("falcon", ["I", "'", "VE", " ", "123", "45", " HTMLword", " naïve", "\u0301", "!?", "\n\n ", " x我们"]),
        ("default", ["I", "'", "VE", " ", "123", "45", " HTMLword", " naïve", "\u0301", "!?", "\n\n ", " x我们"]),
        ("bloom", ["I'VE", " 12345", " HTMLword", " naïve\u0301", "!?\n\n ", " x我们"]),
        ("viking", ["I'VE", " ", *"12345", " HTMLword", " naïve\u0301", "!?\n\n ", " x我们"]),
    ],
)
def test_words(name: str, expected: list[str]) -> None:
    assert words(name) == expected


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_no_text_is_lost(name: str) -> None:
    for text in (TEXT, "", " ", "\n \n", " \t 1 \u3000。", "a" * 50 + " " * 50 + "7"):
        assert "".join(words(name, text)) == text


def test_trailing_white_space_is_one_word_and_any_run_inside_is_read_once() -> None:
    assert words("deepseek-llm", "7  7   ") == ["7", "  ", "7", "   "]
    assert words("deepseek-llm", " " * 200_000 + "7") == [" " * 200_000, "7"]  # by trying each space: minutes


def test_the_same_letter_in_one_character_or_two_is_the_same_where_the_model_composes() -> None:
    one, two = "\u00e9", "e\u0301"
    for name, same in (("qwen2", True), ("gpt-2", False)):
        tokenizer = Tokenizer.from_gguf(tiny_metadata(pre=name))
        assert (tokenizer.encode_rendered(one).tolist() == tokenizer.encode_rendered(two).tolist()) == same
    composing = Tokenizer.from_gguf(tiny_metadata(pre="qwen2"))
    text = "\u1112\u1161\u11ab" * 50  # three letters of Hangul, which become one syllable
    assert composing.fewest_tokens(len(text.encode())) <= len(composing.encode_rendered(text))


def test_a_word_that_is_a_token_is_taken_whole_where_the_model_says_so() -> None:
    tokens = tiny_metadata()["tokenizer.ggml.tokens"]
    grown = {"tokens": [*tokens, "abc"], "merges": [], "token_type": None}
    for name, count in (("llama-bpe", 1), ("dbrx", 3)):
        tokenizer = Tokenizer.from_gguf(tiny_metadata(pre=name, add_bos_token=False, **grown))
        assert len(tokenizer.encode_rendered("abc")) == count


def test_some_models_want_a_start_token_when_the_file_does_not_say() -> None:
    assert Tokenizer.from_gguf(tiny_metadata(pre="llama-bpe")).wants_bos
    assert not Tokenizer.from_gguf(tiny_metadata(pre="qwen2")).wants_bos


def test_what_is_not_known_is_refused_with_all_that_is() -> None:
    with pytest.raises(ModelFileError, match=r"'wordpiece'; known: .*llama-bpe.*qwen2"):
        scheme_of({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "wordpiece"})
    with pytest.raises(ModelFileError, match="'bert'; known: \"gpt2\""):
        scheme_of({"tokenizer.ggml.model": "bert"})
