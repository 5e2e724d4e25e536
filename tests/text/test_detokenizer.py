from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.text.detokenizer import Detokenizer

pieces = st.lists(
    st.binary(max_size=4) | st.text(max_size=2).map(lambda text: text.encode("utf-8", "surrogatepass")), max_size=8
)


def stream(parts: list[bytes]) -> list[str]:
    detokenizer = Detokenizer()
    return [*(detokenizer.push(part) for part in parts), detokenizer.flush()]


@given(pieces)
def test_any_cut_gives_the_text_of_all_bytes(parts: list[bytes]) -> None:
    assert "".join(stream(parts)) == b"".join(parts).decode("utf-8", "replace")


@given(st.binary(max_size=24))
def test_one_byte_at_a_time_gives_the_same(data: bytes) -> None:
    assert "".join(stream([bytes([value]) for value in data])) == data.decode("utf-8", "replace")


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), min_size=1), st.data())
def test_no_half_character_is_ever_shown(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    cut = data.draw(st.integers(0, len(encoded)))
    first, second, last = stream([encoded[:cut], encoded[cut:]])
    assert text.startswith(first)
    assert (first + second, last) == (text, "")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_an_answer_cut_inside_a_character_ends_with_exactly_one_mark(length: int) -> None:
    assert stream([b"a", "🙂".encode()[:length]]) == ["a", "", "\ufffd"]


def test_a_finished_detokenizer_holds_nothing() -> None:
    detokenizer = Detokenizer()
    detokenizer.push(b"\xf0\x9f")
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
