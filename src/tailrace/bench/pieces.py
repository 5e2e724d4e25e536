"""Prompts of a wanted number of tokens, made of pieces whose cost in tokens is known.

The best pieces are token ids. In text they are words (or letters) that the server's tokenizer makes one token of;
where the server has no tokenizer route, words whose mean cost was read from `usage`. What was found is `how`, and a
prompt's real count is in the answer: the report says how far the two are apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tailrace.frozen import frozen

OPENING = "Go"  # starts every text: a template may strip the space that other pieces begin with

WORDS = tuple(
    f" {word}"
    for word in (  # noqa: SIM905 - a list would be four times as long
        "the of and to in is that for it as was with be by on not he his but at are this have from or had an they "
        "which one you were all her she there would their we him been has when who will no more if out so up said "
        "what its about than into them can only other time new some could these two may first then do any like my now "
        "over such our man me even most made after also did many before must through years where much your way well "
        "down should because long each just state those people too good world still see work life being here both "
        "between house part right school "
    ).split()
)
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")


@frozen
class Segment:
    """So many tokens that depend on `key` (and the run) alone: equal keys are equal text."""

    key: str
    tokens: int


@frozen
class Pieces:
    """`overhead` tokens come with any prompt (template, opening, start token), `cost` more with each piece."""

    ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = WORDS
    overhead: float = 0.0
    cost: float = 1.0
    how: str = "guess"

    @property
    def exact(self) -> bool:
        return self.how in ("ids", "tokenize")

    def prompt(self, segments: Sequence[Segment], salt: str) -> str | list[int]:
        """Segments in order; the overhead is taken out of the first. Never less than the opening (one id)."""
        drawn = [
            self._draw(segment.key, count, salt)
            for segment, count in zip(segments, self._counts(segments), strict=True)
        ]
        if self.ids:
            ids = [self.ids[i] for part in drawn for i in part]
            return ids or [self.ids[0]]
        return OPENING + "".join([self.texts[i] for part in drawn for i in part])

    def asked(self, segments: Sequence[Segment]) -> int:
        """Tokens the server should count for these segments: what was wanted, unless the overhead alone is more."""
        pieces = sum(self._counts(segments))
        return max(1, round(self.overhead + self.cost * pieces))

    def _counts(self, segments: Sequence[Segment]) -> list[int]:
        """Pieces of each segment; rounding never adds up, as boundaries are rounded and not lengths."""
        counts, tokens, before = [], 0, 0
        for segment in segments:
            tokens += segment.tokens
            upto = max(before, round((tokens - self.overhead) / self.cost))
            counts.append(upto - before)
            before = upto
        return counts

    def _draw(self, key: str, count: int, salt: str) -> list[int]:
        pool = range(len(self.ids or self.texts))
        return Random(f"{salt}/{key}").choices(pool, k=count)
