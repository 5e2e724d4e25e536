"""Where a sequence's last tokens stood before: the index behind prompt lookup. Pure; one for each sequence.

    ... the cat sat on | the mat ...  ... the cat sat on |
                       ^ place                           ^ end

Every token, and every pair of tokens, leads to the place behind its latest occurrence. So taking a token in costs O(1),
and a search too, since it compares a bounded number of tokens; memory is one integer a token and at most two dictionary
entries. A pair is looked for first; how far the texts before the two places agree says how much to trust it. Trying
older occurrences for longer agreement was measured to change nothing.
"""

from __future__ import annotations

from array import array

import numpy as np

from tailrace.types import Tokens

LONGEST = 16  # agreement is counted this far back


class NgramIndex:
    """`tokens` are to be read only."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self._ones: dict[int, int] = {}  # a token -> the place behind it
        self._pairs: dict[int, int] = {}  # two tokens, as one number -> the place behind them

    def extend(self, tokens: Tokens) -> None:
        """Take in the sequence's next tokens. The place behind the last is noted when its own token comes."""
        if len(tokens) > 64:
            start = len(self.tokens)
            self.tokens.frombytes(tokens.astype(np.intc).tobytes())
            self._note_many(start)
            return
        for token in tokens.tolist():
            self._push(token)

    def find(self) -> tuple[int, int]:
        """(place, agreement): where the last tokens stood before, and how many agree, at most LONGEST; 0 for none."""
        tokens, end = self.tokens, len(self.tokens)
        place = self._pairs.get(tokens[-2] << 32 | tokens[-1], 0) if end > 1 else 0
        if not place:
            place = self._ones.get(tokens[-1], 0) if end else 0
            return place, int(place > 0)
        agree, most = 2, min(LONGEST, place)
        while agree < most and tokens[place - 1 - agree] == tokens[end - 1 - agree]:
            agree += 1
        return place, agree

    def after(self, place: int, count: int) -> list[int]:
        """The tokens from `place` on; where the text ends it goes on as it went between `place` and its end."""
        found = self.tokens[place : place + count].tolist()
        period = len(self.tokens) - place
        while len(found) < count:
            found.append(found[len(found) - period])
        return found

    def _push(self, token: int) -> None:
        own, place = self.tokens, len(self.tokens)
        if place:
            self._ones[own[-1]] = place
            if place > 1:
                self._pairs[own[-2] << 32 | own[-1]] = place
        own.append(token)

    def _note_many(self, start: int) -> None:
        """As one by one, in a fraction of the time: of equal keys a dictionary keeps the last."""
        first = max(1, start)
        places = range(first, len(self.tokens))
        ones = self.tokens[first - 1 : -1].tolist()
        self._ones.update(zip(ones, places, strict=True))
        before = self.tokens[max(first, 2) - 2 : -2].tolist()
        pairs = [a << 32 | b for a, b in zip(before, ones[-len(before) :], strict=True)]
        self._pairs.update(zip(pairs, places[-len(before) :], strict=True))
