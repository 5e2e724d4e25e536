"""What is expected of an answer's length: from the narrowest kind known, kept across restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.control import lengths
from tailrace.control.lengths import AnswerKind, LengthBook

CHAT = AnswerKind("acme", "chat", "m")


def learned(book: LengthBook, kind: AnswerKind, tokens: int, times: int = 100, *, cut: bool = False) -> LengthBook:
    for _ in range(times):
        book.learn(kind, tokens, cut=cut)
    return book


def test_nothing_known_is_a_prior_under_the_bound() -> None:
    found = LengthBook().expect(CHAT, 4096)
    assert 60 < found.q50 < 160 < found.q80 < 500 < found.q90 * 1.5
    assert found.q50 < found.mean < found.q90
    capped = LengthBook().expect(CHAT, 20)
    assert (capped.q50, capped.q80, capped.q90) == (20, 20, 20)
    assert capped.mean <= 20


def test_what_is_learned_is_expected() -> None:
    found = learned(learned(LengthBook(), CHAT, 40, 80), CHAT, 400, 20).expect(CHAT, 4096)
    assert found.q50 == pytest.approx(40, rel=0.1)
    assert found.q90 == pytest.approx(400, rel=0.1)
    assert found.mean == pytest.approx(112, rel=0.15)


def test_an_unknown_kind_takes_what_is_known_of_wider_ones() -> None:
    book = learned(LengthBook(), CHAT, 1000)
    assert book.expect(AnswerKind("acme", "tools", "m"), 9999).q50 == pytest.approx(1000, rel=0.1)
    assert book.expect(AnswerKind("other", "tools", "m"), 9999).q50 == pytest.approx(1000, rel=0.1)
    assert book.expect(AnswerKind("other", "tools", "n"), 9999).q50 == pytest.approx(1000, rel=0.1)
    learned(book, AnswerKind("other", "chat", "m"), 10)
    assert book.expect(CHAT, 9999).q50 == pytest.approx(1000, rel=0.1)
    assert book.expect(AnswerKind("other", "tools", "m"), 9999).q50 == pytest.approx(10, rel=0.1)


def test_a_handful_of_answers_is_not_believed_yet() -> None:
    book = learned(learned(LengthBook(), CHAT, 1000), AnswerKind("new", "chat", "m"), 10, 5)
    assert book.expect(AnswerKind("new", "chat", "m"), 9999).q50 > 500


def test_what_is_generated_already_is_not_expected_to_be_less() -> None:
    book = learned(learned(LengthBook(), CHAT, 40, 80), CHAT, 400, 20)
    late = book.expect(CHAT, 4096, generated=100)
    assert late.q50 == pytest.approx(400, rel=0.1)
    beyond = book.expect(CHAT, 4096, generated=3000)
    assert 3000 <= beyond.mean <= 4096
    assert book.expect(CHAT, 64, generated=64).mean == 64


def test_answers_that_are_always_cut_off_are_as_long_as_they_may_be() -> None:
    book = learned(LengthBook(), CHAT, 64, 300, cut=True)
    assert book.expect(CHAT, 64).mean == pytest.approx(64, rel=0.02)
    assert book.expect(CHAT, 4096).q50 > 90


def test_it_is_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "control" / "lengths.json"
    learned(LengthBook(path), CHAT, 300).save()
    again = LengthBook(path).expect(CHAT, 9999)
    assert again.q50 == pytest.approx(300, rel=0.1)
    assert [file.name for file in path.parent.iterdir()] == ["lengths.json"]


def test_it_is_kept_now_and_then_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    learned(LengthBook(path), CHAT, 300, 300)
    assert LengthBook(path).expect(CHAT, 9999).q50 == pytest.approx(300, rel=0.1)


@pytest.mark.parametrize(
    "rubbish", ["", "[]", "{}", '{"version": 1, "kinds": {"x": {"seen": 1}}}', '{"version": 1, "kinds": [1]}', "\\x00"]
)
def test_a_broken_file_begins_anew(tmp_path: Path, rubbish: str) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(rubbish)
    assert LengthBook(path).expect(CHAT, 4096) == LengthBook().expect(CHAT, 4096)


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    learned(LengthBook(tmp_path / "file" / "lengths.json"), CHAT, 300, 300)


def test_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "_KINDS", 8)
    book = LengthBook()
    for number in range(50):
        learned(book, AnswerKind(f"t{number}", "chat", "m"), 50, 30)
    assert len(book._sketches) == 8
    assert book.expect(AnswerKind("t49", "chat", "m"), 999).q50 == pytest.approx(50, rel=0.1)
