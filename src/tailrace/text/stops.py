"""Stop strings in text that arrives in pieces: what may be shown, and where the answer ends.

One automaton finds all strings at once (Aho and Corasick, "Efficient string matching", 1975). Its state is the longest
end of the text so far that begins a stop string, which is exactly what must be held back; so the cost is one dictionary
look-up a character however many and however long the strings are, and the result cannot depend on how the text was cut.

The first string to be complete ends the answer, as if text came one character at a time; of several that are complete
at the same character the longest, which starts earliest, counts.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from tailrace.errors import InvalidRequest

MAX_STOP_CHARS = 8192  # over all stop strings of a request; building the automaton takes about 1 us for each


class Match(NamedTuple):
    string: str
    end: int  # characters of the pushed text up to the end of the match


class StopStrings:
    """The automaton of one request, immutable and shared by its choices.

    Raises InvalidRequest (`stop`) for an empty string and for more than MAX_STOP_CHARS characters altogether.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        if "" in strings:
            raise InvalidRequest("a stop string must not be empty", param="stop")
        if sum(map(len, strings)) > MAX_STOP_CHARS:
            raise InvalidRequest(f"stop strings may have {MAX_STOP_CHARS} characters altogether", param="stop")
        self.next: list[dict[str, int]] = [{}]  # state -> character -> state; state 0 is "nothing held back"
        self.depth: list[int] = [0]  # characters held back in that state
        self.complete: list[str | None] = [None]  # the longest string that ends in that state
        for string in strings:
            self._add(string)
        self.fallback: list[int] = [0] * len(self.next)  # the next shorter end of the text that begins a string
        self._link()
        self.first_characters = frozenset(self.next[0])

    def _add(self, string: str) -> None:
        state = 0
        for char in string:
            if char not in self.next[state]:
                self.next[state][char] = len(self.next)
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.complete.append(None)
            state = self.next[state][char]
        self.complete[state] = string

    def _link(self) -> None:
        """Breadth first, so that every shorter state is linked before those that fall back to it."""
        waiting = deque(self.next[0].values())
        while waiting:
            state = waiting.popleft()
            for char, child in self.next[state].items():
                self.fallback[child] = self.step(self.fallback[state], char)
                waiting.append(child)
            if self.complete[state] is None:
                self.complete[state] = self.complete[self.fallback[state]]

    def step(self, state: int, char: str) -> int:
        while True:
            following = self.next[state].get(char)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self.fallback[state]


class StopFinder:
    """One choice's place in the automaton, and the text it holds back."""

    __slots__ = ("_state", "_strings", "held")

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._state = 0
        self.held = ""

    def push(self, text: str, *, armed: bool = True) -> tuple[str, Match | None]:
        """What may be shown now, and the match that ended the answer if there is one.

        With a match, the shown text includes the stop string (`Match.string`) at its end and the rest is dropped.
        Not `armed`: a string that is complete within this text is passed over (text before `min_tokens`), while one
        that only begins here may still end the answer later.
        """
        if not self.may_match(text):
            return text, None
        end = self._advance(text, armed)
        text = self.held + text
        if end is not None:
            found = self._strings.complete[self._state]
            assert found is not None
            shown, self.held = text[: len(self.held) + end], ""
            return shown, Match(found, end)
        keep = len(text) - self._strings.depth[self._state]
        self.held = text[keep:]
        return text[:keep], None

    def may_match(self, text: str) -> bool:
        """False: no string ends in this text."""
        return self._state != 0 or not self._strings.first_characters.isdisjoint(text)

    def flush(self) -> str:
        """The text is over: what was held back turned out to be no stop string."""
        text, self.held, self._state = self.held, "", 0
        return text

    def _advance(self, text: str, armed: bool) -> int | None:
        """Characters of `text` up to the end of the first string that is complete, None if there is none."""
        strings, state = self._strings, self._state
        for position, char in enumerate(text):
            state = strings.step(state, char)
            if armed and strings.complete[state] is not None:
                self._state = state
                return position + 1
        self._state = state
        return None
