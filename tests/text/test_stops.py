from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvalidRequest
from tailrace.text.stops import MAX_STOP_CHARS, StopFinder, StopStrings

few_letters = st.text("ab", max_size=12)
strings = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4)


def first_complete(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(end, string) of the first string to be complete, the longest of those that are at once: the plain way."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


def longest_beginning(text: str, stops: list[str]) -> int:
    """Characters at the end of `text` that begin a stop string without completing one: what must be held back."""
    lengths = (n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n]))
    return max(lengths, default=0)


@given(st.lists(few_letters), strings)
def test_any_cut_finds_what_the_whole_text_has_and_shows_all_it_may(parts: list[str], stops: list[str]) -> None:
    finder, shown, match, seen = StopFinder(StopStrings(tuple(stops))), "", None, ""
    for part in parts:
        text, match = finder.push(part)
        shown, seen = shown + text, seen + part
        if match is not None:
            break
        assert shown == seen[: len(seen) - longest_beginning(seen, stops)]
    expected = first_complete("".join(parts), stops)
    if match is None:
        assert expected is None
        assert shown + finder.flush() == seen
    else:
        assert expected == (len(shown), match.string)
        assert shown == seen[: len(shown)]


def test_a_string_over_several_pieces_is_held_back_until_it_is_decided() -> None:
    finder = StopFinder(StopStrings(("</end>",)))
    assert finder.push("text</e") == ("text", None)
    assert finder.push("nough") == ("</enough", None)
    assert finder.push("!</en") == ("!", None)
    shown, match = finder.push("d> rest")
    assert shown == "</end>"
    assert match is not None and match.string == "</end>"


def test_while_not_armed_complete_strings_pass_but_begun_ones_count_later() -> None:
    finder = StopFinder(StopStrings(("aa",)))
    shown, match = finder.push("xaa", armed=False)
    assert match is None
    rest, match = finder.push("a")
    assert shown + rest == "xaaa"
    assert match is not None and match.string == "aa"


@pytest.mark.parametrize("bad", [("",), ("ok", ""), ("x" * (MAX_STOP_CHARS + 1),)])
def test_strings_that_cannot_be_used_are_the_clients_mistake(bad: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopStrings(bad)
    assert caught.value.param == "stop"
