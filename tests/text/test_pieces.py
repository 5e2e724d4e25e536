"""Score-merged BPE against the plain way of doing it, on vocabularies that were trained and on ones with ties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace._native import Pieces
from tailrace.errors import InvalidRequest, ModelFileError
from tailrace.text.stream import TextStream
from tailrace.text.tokenizer import Tokenizer
from tailrace.text.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from tailrace.types import StopConditions

SPACE = "\u2581"
UNK, BOS, EOS = range(3)
FIRST_PIECE = 3 + 256
TRAINING = "aababcab abab ba cab  aab aaaa abba  bab caba aaaaaaaa naïve ab  ab   cc" * 3


def trained(text: str, count: int) -> list[str]:
    """Single characters, then merges by frequency, as a trainer makes them: each piece after its parts."""
    symbols = list(text.replace(" ", SPACE))
    pieces = sorted(set(symbols) - {"ï"})
    for _ in range(count):
        pairs = Counter(left + right for left, right in pairwise(symbols) if "ï" not in left + right)
        best = max(pairs, key=lambda piece: (pairs[piece], piece))
        pieces.append(best)
        joined: list[str] = []
        for symbol in symbols:
            if joined and joined[-1] + symbol == best:
                joined[-1] = best
            else:
                joined.append(symbol)
        symbols = joined
    return list(dict.fromkeys(pieces))


def metadata(pieces: Sequence[str], scores: Sequence[float], **changes: Any) -> dict[str, Any]:
    """A file with these pieces from FIRST_PIECE on. `changes` are keys without their prefix; None takes a key out."""
    values: dict[str, Any] = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces],
        "scores": [0.0] * FIRST_PIECE + list(scores),
        "token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "unknown_token_id": UNK,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


@cache
def example(space_prefix: bool = True) -> tuple[Tokenizer, dict[str, float]]:
    pieces = trained(TRAINING, 40)
    scores = [-float(i) for i in range(len(pieces))]
    tokenizer = Tokenizer.from_gguf(metadata(pieces, scores, add_space_prefix=space_prefix))
    return tokenizer, dict(zip(pieces, scores, strict=True))


def plainly(text: str, scores: dict[str, float]) -> list[str]:
    """Join the neighbours with the highest score, the first of those that have the same, until none can be joined."""
    symbols = list(text.replace(" ", SPACE))
    while True:
        joined = [left + right for left, right in pairwise(symbols)]
        possible = [at for at, piece in enumerate(joined) if piece in scores]
        if not possible:
            return symbols
        at = max(possible, key=lambda at: (scores[joined[at]], -at))
        symbols[at : at + 2] = [joined[at]]


def as_names(symbols: Sequence[str], scores: dict[str, float]) -> list[str]:
    names: list[str] = []
    for symbol in symbols:
        names += [symbol] if symbol in scores else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return names


def names(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    return [tokenizer.token_name(i) for i in ids]


texts = st.text(st.sampled_from("aabbc  \nï€") | st.characters(exclude_categories=("Cs",)), max_size=40)


@given(texts)
def test_the_highest_score_is_merged_first_and_unknown_characters_are_bytes(text: str) -> None:
    tokenizer, scores = example(space_prefix=False)
    assert names(tokenizer, text) == as_names(plainly(text, scores), scores)


@given(texts)
def test_a_space_is_put_in_front_and_taken_away_again(text: str) -> None:
    tokenizer, scores = example()
    assert names(tokenizer, text) == as_names(plainly(" " + text if text else "", scores), scores)
    assert tokenizer.decode(tokenizer.encode_rendered(text), skip_special=True) == text
    assert tokenizer.decode(tokenizer.encode_rendered(text)) == "<s>" + text


@pytest.mark.parametrize("longest", [4, 15, 16])
def test_runs_of_pieces_with_one_score_are_joined_from_the_left(longest: int) -> None:
    """As in vocabularies whose runs of spaces all have the lowest score."""
    runs = [SPACE * n for n in range(1, longest + 1)]
    scores = {**{run: -1e9 for run in runs}, "a": -2.0, SPACE + "a": -1.0}
    tokenizer = Tokenizer.from_gguf(metadata(list(scores), list(scores.values()), add_space_prefix=False))
    for n in range(100):
        text = " " * n + "a" + " " * (n // 3)
        assert names(tokenizer, text) == plainly(text, scores), n


pieces_with_scores = st.dictionaries(
    st.text("ab" + SPACE, min_size=1, max_size=5), st.integers(-3, 0).map(float), min_size=1, max_size=25
)


@given(pieces_with_scores, st.text("ab c", max_size=30))
def test_any_vocabulary_joins_as_the_plain_way_does_ties_included(scores: dict[str, float], text: str) -> None:
    tokenizer = Tokenizer.from_gguf(metadata(list(scores), list(scores.values()), add_space_prefix=False))
    assert names(tokenizer, text) == as_names(plainly(text, scores), scores)


@given(st.sets(st.text("ab<>", min_size=1, max_size=4), min_size=1, max_size=8), st.text("ab<>", max_size=30))
def test_tokens_are_cut_out_the_longest_from_the_left(cut: set[str], text: str) -> None:
    """Control tokens of these names, and no pieces: what is not cut out comes as bytes."""
    values = metadata(sorted(cut), [0.0] * len(cut), add_space_prefix=False)
    values["tokenizer.ggml.token_type"][FIRST_PIECE:] = [CONTROL] * len(cut)
    tokenizer, expected, at = Tokenizer.from_gguf(values), [], 0
    while at < len(text):
        found = max((name for name in cut | {""} if text.startswith(name, at)), key=len)
        expected.append(found or f"<0x{ord(text[at]):02X}>")
        at += len(found) or 1
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    assert [tokenizer.token_name(i) for i in ids] == expected
    assert names(tokenizer, text) == [f"<0x{ord(char):02X}>" for char in text]


def test_the_order_of_joining_is_that_of_scores_whatever_the_order_of_ids() -> None:
    pieces = ["a", "b", "ab", "ba", "aba", "<s>b"]
    tokenizer = Tokenizer.from_gguf(metadata(pieces, [0, -1, -5, -2, -9, -3], add_space_prefix=False))
    assert names(tokenizer, "bab") == ["ba", "b"]
    assert names(tokenizer, "abab") == ["aba", "b"]


def test_of_tokens_with_one_text_a_piece_is_meant_the_last_of_them() -> None:
    values = metadata(["a", "a", "a"], [0.0, 0.0, 0.0], add_space_prefix=False)
    values["tokenizer.ggml.token_type"][-1] = CONTROL
    tokenizer = Tokenizer.from_gguf(values)
    assert tokenizer.encode("a", add_special=False, parse_special=False).tolist() == [FIRST_PIECE + 1]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        example()[0].encode("a\ud800", add_special=False, parse_special=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ends": np.array([1, 3])}, "ends must ascend"),
        ({"ends": np.array([2, 1])}, "ends must ascend"),
        ({"ends": np.array([1, 2], np.int32)}, "ends must be int64"),
        ({"scores": np.zeros(1, np.float32)}, "one for each token"),
        ({"bytes": np.zeros(3, np.int32)}, "bytes: none or 256"),
        ({"bytes": np.full(256, 2, np.int32)}, "bytes: not a token"),
        ({"unknown": 2}, "unknown: not a token"),
    ],
)
def test_native_pieces_check_what_they_are_given(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "texts": b"ab", "ends": np.array([1, 2]), "scores": np.zeros(2, np.float32), "roles": np.full(2, 3, np.uint8),
        "bytes": np.empty(0, np.int32), "unknown": 0, "space_prefix": False,
    }  # fmt: skip
    assert Pieces(**good).encode(b"ab", True).tolist() == [0, 1]
    with pytest.raises(ValueError, match=message):
        Pieces(**good | change)


def test_control_and_byte_tokens_are_never_made_from_text() -> None:
    pieces = ["<", "s", ">", "<s", "0", "x", "4", "1", "<0", "<0x", "<0x4", "<0x41"]
    tokenizer = Tokenizer.from_gguf(metadata(pieces, [-float(i) for i in range(len(pieces))], add_space_prefix=False))
    assert names(tokenizer, "<s><0x41>") == ["<s", ">", "<0x41", ">"]
    parsed = tokenizer.encode("<s>s", add_special=False, parse_special=True)
    assert [tokenizer.token_name(i) for i in parsed] == ["<s>", "s"]


def test_user_defined_tokens_are_cut_out_first_the_longest_from_the_left() -> None:
    pieces = ["a", SPACE, SPACE + "a", "\n", "\n\n", "\n\n\n", "  "]
    plain = metadata(pieces, [-1.0, -2.0, -0.5, *[-1000.0] * 4], add_space_prefix=False)
    plain["tokenizer.ggml.token_type"][-4:] = [USER_DEFINED] * 4
    tokenizer = Tokenizer.from_gguf(plain)
    assert names(tokenizer, "\n\n\n\n\na   a a") == ["\n\n\n", "\n\n", "a", "  ", SPACE + "a", SPACE + "a"]
    assert tokenizer.decode(tokenizer.encode_rendered("\n\n\n\n\na   a a"), skip_special=True) == "\n\n\n\n\na   a a"


def test_the_bytes_of_tokens() -> None:
    tokenizer, _ = example()
    by_name = {tokenizer.token_name(i): i for i in range(tokenizer.vocab_size)}
    assert tokenizer.token_bytes(by_name["<0xE2>"]) == b"\xe2"
    assert tokenizer.token_bytes(by_name["ab" + SPACE]) == b"ab "
    assert (tokenizer.token_bytes(BOS), tokenizer.token_bytes(BOS, special=True)) == (b"", b"<s>")
    assert tokenizer.missing_bytes == frozenset()


def test_the_start_token_is_wanted_unless_the_file_says_otherwise() -> None:
    tokenizer, _ = example()
    assert (tokenizer.wants_bos, tokenizer.encode_rendered("ab")[0]) == (True, BOS)
    other = Tokenizer.from_gguf(metadata(["a"], [0.0], add_bos_token=False))
    assert BOS not in other.encode_rendered("a")
    assert tokenizer.end_ids == {EOS}


@given(texts, st.data())
def test_streaming_any_tokens_gives_what_decoding_gives(text: str, data: st.DataObject) -> None:
    tokenizer, _ = example()
    prompt = tokenizer.encode_rendered("ab" + text).tolist()
    answer = data.draw(st.lists(st.integers(3, tokenizer.vocab_size - 1), max_size=12))
    stream = TextStream(tokenizer, StopConditions(max_tokens=99), tokenizer.end_ids)
    streamed = "".join([stream.push(i).text for i in answer]) + stream.finish()
    assert tokenizer.decode(prompt + answer) == tokenizer.decode(prompt) + streamed


def test_without_byte_tokens_unknown_characters_are_one_unknown_token() -> None:
    values = metadata(["a", SPACE], [0.0, -1.0], add_space_prefix=False)
    keep = [0, 1, 2, FIRST_PIECE, FIRST_PIECE + 1]
    for key in ("tokens", "scores", "token_type"):
        values[f"tokenizer.ggml.{key}"] = [values[f"tokenizer.ggml.{key}"][i] for i in keep]
    tokenizer = Tokenizer.from_gguf(values)
    assert names(tokenizer, "a€€a") == ["a", "<unk>", "a"]
    assert tokenizer.fewest_tokens(10**6) == 0
    del values["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(ModelFileError, match="neither 256 byte tokens"):
        Tokenizer.from_gguf(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "tokenizer.ggml.scores must have one entry for each of the"),
        ({"scores": [0.0]}, "tokenizer.ggml.scores must have one entry for each of the"),
        ({"scores": np.full(FIRST_PIECE + 1, np.nan)}, "tokenizer.ggml.scores must be a list of numbers"),
        ({"tokens": ["<unk>", "<s>", "</s>", *["0x"] * 256, "a"]}, "is marked as a byte but is not written <0xNN>"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_was_found(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        Tokenizer.from_gguf({**metadata(["a"], [0.0]), **{f"tokenizer.ggml.{k}": v for k, v in changes.items()}})
    assert message in caught.value.message
