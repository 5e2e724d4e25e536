"""`bad_words` and `allowed_token_ids` of both routes, to token ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from tailrace.errors import InvalidRequest
from tailrace.protocol.body import Items, Shape
from tailrace.protocol.sampling import Limits, check_ids
from tailrace.text.tokenizer import clean_text
from tailrace.types import Grammar, SamplingParams, Tokens

_MOST_WORDS = 128
_MOST_CHARS = 128  # of a word


class Words(Protocol):
    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> Tokens: ...


class Restricted(Shape):
    bad_words: Items[str] | None = None
    allowed_token_ids: Items[int] | None = None

    def restrict(
        self, sampling: SamplingParams, grammar: Grammar | None, tokenizer: Words, limits: Limits
    ) -> SamplingParams:
        """Raises InvalidRequest naming the field."""
        if self.allowed_token_ids is None and not self.bad_words:
            return sampling
        return replace(sampling, allowed_token_ids=self._allowed(grammar, limits), bad_words=self._words(tokenizer))

    def _allowed(self, grammar: Grammar | None, limits: Limits) -> tuple[int, ...]:
        ids, field = self.allowed_token_ids, "allowed_token_ids"
        if ids is None:
            return ()
        if not ids:
            raise InvalidRequest(f"{field} must hold at least one token id", param=field)
        if grammar is not None:
            raise InvalidRequest(f"{field} and {grammar.field} exclude each other: leave one of them out", param=field)
        return tuple(sorted(set(check_ids(ids, limits.vocab_size, field))))

    def _words(self, tokenizer: Words) -> tuple[tuple[int, ...], ...]:
        """Each word as it is split by itself, and behind a space."""
        words = self.bad_words or []
        if len(words) > _MOST_WORDS:
            raise InvalidRequest(
                f"bad_words has {len(words)} words; at most {_MOST_WORDS} are taken", param="bad_words"
            )
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = clean_text(word[: _MOST_CHARS + 1], field="bad_words").lstrip()
            if not bare or len(word) > _MOST_CHARS:
                raise InvalidRequest(
                    f"a word of bad_words has 1 to {_MOST_CHARS} characters that are not all blanks", param="bad_words"
                )
            for text in (bare, f" {bare}"):
                ids = tokenizer.encode(text, add_special=False, parse_special=False)
                found[tuple(ids.tolist())] = None
        return tuple(word for word in found if word)
