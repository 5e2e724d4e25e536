from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.text.stops import StopStrings
from tailrace.text.stream import Pushed, TextStream
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import FinishReason, StopConditions
from tests.text.vocabularies import END_OF_TEXT, IM_END, IM_START, tiny

TOKENIZER = tiny()
BYTE = {TOKENIZER.token_bytes(i): i for i in range(3, 259)}
A, B, C = BYTE[b"a"], BYTE[b"b"], BYTE[b"c"]


def conditions(
    strings: Sequence[str] = (),
    token_ids: Sequence[int] = (),
    *,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    include: bool = False,
) -> StopConditions:
    return StopConditions(
        max_tokens=10**6,
        min_tokens=min_tokens,
        strings=tuple(strings),
        token_ids=tuple(token_ids),
        ignore_eos=ignore_eos,
        include_stop_string=include,
    )


def stream(stop: StopConditions) -> TextStream:
    return TextStream(TOKENIZER, stop, TOKENIZER.end_ids)


def run(ids: Sequence[int], stop: StopConditions) -> tuple[list[str], Pushed | None]:
    """(texts as shown, the push that ended it); without an ending the last text is that of `finish`."""
    running, texts = stream(stop), []
    for token_id in ids:
        pushed = running.push(token_id)
        texts.append(pushed.text)
        if pushed.finished:
            return texts, pushed
    return [*texts, running.finish()], None


def plain(ids: Sequence[int], stop: StopConditions) -> tuple[str, int | str | None, int]:
    """(text, stop reason, tokens used) worked out from the whole text after each token: slow and simple."""
    data = b""
    for count, token_id in enumerate(ids, 1):
        honoured = count >= stop.min_tokens
        before = len(certain(data))
        if honoured and token_id in stop.token_ids:
            return ended(
                data + (TOKENIZER.token_bytes(token_id) if stop.include_stop_string else b""),
                before,
                stop,
                token_id,
                count,
            )
        if honoured and token_id in TOKENIZER.end_ids and not stop.ignore_eos:
            return ended(data, before, stop, None, count)
        data += TOKENIZER.token_bytes(token_id)
        found = first_match(certain(data), before, stop) if honoured else None
        if found:
            return (*found, count)
    honoured = len(ids) >= stop.min_tokens
    text = data.decode("utf-8", "replace")
    found = first_match(text, len(certain(data)), stop) if honoured else None
    return (found[0] if found else text, None, len(ids))


def certain(data: bytes) -> str:
    """The text of the bytes that no further byte can change."""
    return utf_8_decode(data, "replace", False)[0]


def first_match(text: str, before: int, stop: StopConditions) -> tuple[str, str] | None:
    for end in range(before + 1, len(text) + 1):
        ending = [string for string in stop.strings if text[:end].endswith(string)]
        if ending:
            string = max(ending, key=len)
            return text[: end if stop.include_stop_string else end - len(string)], string
    return None


def ended(
    data: bytes, before: int, stop: StopConditions, reason: int | None, count: int
) -> tuple[str, int | str | None, int]:
    text = data.decode("utf-8", "replace")
    found = first_match(text, before, stop)
    return (found[0], found[1], count) if found else (text, reason, count)


letters = st.sampled_from([A, B, C, BYTE[b" "], BYTE[b"\xe2"], BYTE[b"\x82"], BYTE[b"\xac"], IM_START])
tokens = st.lists(letters | st.integers(0, TOKENIZER.vocab_size - 1), max_size=24)
stops = st.builds(
    conditions,
    st.lists(st.text("abc €\ufffd", min_size=1, max_size=3), max_size=3),
    st.lists(letters, max_size=1),
    min_tokens=st.integers(0, 6),
    ignore_eos=st.booleans(),
    include=st.booleans(),
)


@given(tokens, stops)
def test_the_joined_stream_is_the_plain_answer(ids: list[int], stop: StopConditions) -> None:
    texts, ending = run(ids, stop)
    text, reason, used = plain(ids, stop)
    assert "".join(texts) == text
    assert (ending.stop_reason if ending else None) == reason
    assert (len(texts) if ending else len(ids)) == used


@given(tokens, stops)
def test_a_token_that_may_not_end_the_choice_does_not(ids: list[int], stop: StopConditions) -> None:
    running = stream(stop)
    for token_id in ids:
        may_end = running.may_end(token_id)
        finished = running.push(token_id).finished
        assert may_end or not finished
        if finished:
            break


@given(tokens, stops)
def test_the_short_way_of_plain_tokens_says_what_pushing_them_does(ids: list[int], stop: StopConditions) -> None:
    short, long = stream(stop), stream(stop)
    for token_id in ids:
        text = short.plain(token_id)
        pushed = long.push(token_id)
        assert (short.push(token_id) if text is None else Pushed(text)) == pushed
        assert short.generated == long.generated
        if pushed.finished:
            break


def test_most_tokens_cannot_end_a_choice_with_stop_strings() -> None:
    running = stream(conditions(["ba"]))
    assert [(running.may_end(token), running.push(token).text) for token in (C, A, B, C, A)] == [
        (False, "c"), (False, "a"), (True, ""), (True, "bc"), (False, "a"),
    ]  # fmt: skip
    assert not running.may_end(A)
    assert running.may_end(BYTE[b"\xc3"])  # no whole character
    assert running.may_end(IM_END)


@given(tokens, stops, st.data())
def test_pushing_many_at_once_changes_nothing(ids: list[int], stop: StopConditions, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(ids)))
    running, used, texts = stream(stop), 0, []
    for part in (ids[:cut], ids[cut:]):
        pushed = running.push_many(part)
        texts.append(pushed.text)
        used += pushed.used
        if pushed.finished:
            break
    else:
        texts.append(running.finish())
    expected, ending = run(ids, stop)
    assert "".join(texts) == "".join(expected)
    assert used == (len(expected) if ending else len(ids))


@given(tokens, st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3))
def test_no_part_of_a_stop_string_and_no_half_character_is_shown(ids: list[int], strings: list[str]) -> None:
    stop = conditions(strings)
    running, shown, data = stream(stop), "", b""
    for token_id in ids:
        pushed = running.push(token_id)
        shown, data = shown + pushed.text, data + TOKENIZER.token_bytes(token_id)
        assert not any(string in shown for string in strings)
        if pushed.finished:
            assert data.decode("utf-8", "replace").startswith(shown)
            return
        assert certain(data).startswith(shown)
        held = certain(data)[len(shown) :]
        assert any(string.startswith(held) for string in strings)
        assert not any(
            certain(data).endswith(string[:n]) for string in strings for n in range(len(held) + 1, len(string))
        )


def test_real_answers_stream_as_they_are(smollm2: Tokenizer) -> None:
    tokenizer = smollm2
    text = "삼겹살 쌈밥 둘, ภาษาไทยง่าย, 𠮷野家で昼食, 👩🏽‍🚀🧑🏿‍🍳🏳️‍🌈, Žďár e\u0301"
    ids = tokenizer.encode_rendered(text).tolist()
    for cut in range(len(ids) + 1):
        running = TextStream(tokenizer, conditions(), tokenizer.end_ids)
        streamed = "".join([running.push(i).text for i in ids[:cut]]) + running.finish()
        assert streamed == tokenizer.decode(ids[:cut])
        assert "\ufffd" not in streamed[:-1]


def test_an_end_token_stops_without_text_or_reason() -> None:
    texts, ending = run([A, IM_END, B], conditions())
    assert texts == ["a", ""]
    assert ending == Pushed("", FinishReason.STOP, None)


def test_ignore_eos_lets_end_tokens_pass_but_not_the_callers_own() -> None:
    assert run([A, IM_END, B], conditions(ignore_eos=True)) == (["a", "", "b", ""], None)
    texts, ending = run([A, IM_END, B], conditions(token_ids=[IM_END], ignore_eos=True))
    assert texts == ["a", ""]
    assert ending == Pushed("", FinishReason.STOP, IM_END)


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "ab")])
def test_a_stop_token_of_the_caller_is_named_and_shown_only_when_asked(include: bool, text: str) -> None:
    texts, ending = run([A, B, C], conditions(token_ids=[B], include=include))
    assert "".join(texts) == text
    assert ending is not None and ending.stop_reason == B


@pytest.mark.parametrize(("include", "text"), [(False, "c"), (True, "cab")])
def test_a_stop_string_over_tokens_is_cut(include: bool, text: str) -> None:
    texts, ending = run([C, A, B, C], conditions(["ab"], include=include))
    assert "".join(texts) == text
    assert ending is not None and (ending.reason, ending.stop_reason) == (FinishReason.STOP, "ab")


def test_the_first_string_to_be_complete_ends_the_answer() -> None:
    texts, ending = run([A, B, C, A], conditions(["abca", "bc"]))
    assert "".join(texts) == "a"
    assert ending is not None and ending.stop_reason == "bc"


def test_min_tokens_counts_the_ending_token_itself() -> None:
    end_third = [A, B, END_OF_TEXT, C]
    assert run(end_third, conditions(min_tokens=3))[1] == Pushed("", FinishReason.STOP, None)
    assert run(end_third, conditions(min_tokens=4)) == (["a", "b", "", "c", ""], None)


def test_a_stop_string_complete_before_min_tokens_is_shown_and_one_begun_before_counts() -> None:
    texts, ending = run([A, B, A, B], conditions(["ab"], min_tokens=3))
    assert "".join(texts) == "ab"
    assert ending is not None and ending.stop_reason == "ab"
    texts, ending = run([A, B, C], conditions(["bc"], min_tokens=3))
    assert ("".join(texts), ending is not None) == ("a", True)


def test_finish_shows_what_was_held_back_and_marks_a_broken_character_once() -> None:
    assert run([A, B], conditions(["abc"])) == (["", "", "ab"], None)
    assert run([A, BYTE[b"\xe2"], BYTE[b"\x82"]], conditions()) == (["a", "", "", "\ufffd"], None)
    texts, _ = run([BYTE[b"\xe2"], IM_END], conditions())
    assert texts == ["", "\ufffd"]


def test_choices_can_share_one_automaton_without_sharing_their_place() -> None:
    stop = conditions(["ab"])
    shared = StopStrings(stop.strings)
    one, other = (TextStream(TOKENIZER, stop, TOKENIZER.end_ids, strings=shared) for _ in range(2))
    assert one.push(A).text == ""
    assert other.push(B).text == "b"
    assert one.push(B).finished
    assert not other.push(A).finished


def test_it_counts_what_was_generated() -> None:
    running = stream(conditions())
    assert running.push_many([A, B, IM_START]).used == 3
    assert running.generated == 3


def test_control_tokens_that_are_shown_are_text_and_may_end_a_choice() -> None:
    stop = conditions(["start|>a"])
    shown = TextStream(TOKENIZER, stop, TOKENIZER.end_ids, shown=[IM_START])
    assert shown.may_end(IM_START)
    assert shown.push(IM_START).text == "<|im_"
    assert shown.push(A).stop_reason == "start|>a"
    assert stream(stop).push(IM_START).text == ""
