"""One choice's tokens to the text a client may see, and when the choice ends.

Runs in the engine's commit for every token of every sequence, so the common case is two look-ups and no decoding:
a token that is whole characters has its text ready. About 0.5 us a token without stop strings, 1.5 us with four.

Endings: the model's end tokens (unless `ignore_eos`), the caller's stop token ids (also with it), stop strings. A token
that is both of the first two is reported as the caller's.
**`min_tokens`**: an ending counts only from the `min_tokens`-th generated token on, itself included. An earlier end
token is an ordinary one (it has no text); a stop string that is complete before is passed over and shown, and is not
looked for again in the text that is past; one that begins before and is complete after ends the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tailrace.text.detokenizer import Detokenizer
from tailrace.text.stops import Match, StopFinder, StopStrings
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import FinishReason, StopConditions


class Pushed(NamedTuple):
    """`text` may be shown now: it ends inside no character and shows no part of a possible stop string.

    `stop_reason` is the stop string or stop token id that ended the choice; None for the model's own end token.
    `used` counts tokens: those after an ending are not part of the choice.
    """

    text: str
    reason: FinishReason | None = None
    stop_reason: int | str | None = None
    used: int = 1

    @property
    def finished(self) -> bool:
        return self.reason is not None


_NEVER: frozenset[int] = frozenset()


class TextStream:
    """Joining the texts of all pushes, and of `finish` when the choice ended otherwise, gives the plain answer."""

    __slots__ = (
        "_always", "_bytes", "_detokenizer", "_ending", "_finder", "_min_tokens", "_shown", "_stop", "_texts",
        "generated",
    )  # fmt: skip

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: StopConditions,
        end_ids: frozenset[int],
        *,
        strings: StopStrings | None = None,
        complete: bool = False,
        shown: Iterable[int] = (),
    ) -> None:
        """`end_ids` are the model's end tokens. `strings` is the automaton of `stop.strings`, when several choices
        share it; it is built here otherwise. `complete`: an end token only comes where nothing else may, so that it
        ends the choice whatever `stop` says. `shown`: control tokens whose names are text here."""
        self._stop = stop
        self._min_tokens = stop.min_tokens
        self._always = end_ids if complete else _NEVER
        self._ending = frozenset(stop.token_ids) if stop.ignore_eos else end_ids.union(stop.token_ids)
        self._texts = tokenizer.whole_texts
        self._bytes = tokenizer.visible_bytes
        self._shown = {token_id: tokenizer.token_bytes(token_id, special=True) for token_id in shown}
        self._detokenizer = Detokenizer()
        if strings is None and stop.strings:
            strings = StopStrings(stop.strings)
        self._finder = None if strings is None else StopFinder(strings)
        self.generated = 0  # tokens pushed

    def may_end(self, token_id: int) -> bool:
        """False: pushing it will not end the choice. Cheaper than pushing it, and sometimes true in vain."""
        if token_id in self._ending or token_id in self._always:
            return True
        if self._finder is None:
            return False
        text = self._texts[token_id]
        if text is None or self._detokenizer.pending or token_id in self._shown:
            return True
        return self._finder.may_match(text)

    def plain(self, token_id: int) -> str | None:
        """As `push`, for the common case alone: a token that is whole characters and ends nothing, and no stop strings.
        None, and nothing has happened, for any other."""
        if self._finder is not None or self._detokenizer.pending:
            return None
        text = self._texts[token_id]
        if not text or token_id in self._ending or token_id in self._always:
            return None
        self.generated += 1
        return text

    def push(self, token_id: int) -> Pushed:
        """One more token. Nothing may be pushed after a finished one."""
        self.generated += 1
        if (token_id in self._ending and self.generated >= self._min_tokens) or token_id in self._always:
            return self._end_at_token(token_id)
        text = self._texts[token_id]
        if not text or self._detokenizer.pending:
            text = self._detokenizer.push(self._shown.get(token_id) or self._bytes[token_id])
        if self._finder is None:
            return Pushed(text)
        shown, match = self._finder.push(text, armed=self.generated >= self._min_tokens)
        return Pushed(shown) if match is None else self._end_at_string(shown, match)

    def push_many(self, token_ids: Iterable[int]) -> Pushed:
        """Several tokens as one: texts joined, up to the first ending."""
        texts, used = [], 0
        for token_id in token_ids:
            pushed = self.push(token_id)
            texts.append(pushed.text)
            used += 1
            if pushed.reason is not None:
                return Pushed("".join(texts), pushed.reason, pushed.stop_reason, used)
        return Pushed("".join(texts), used=used)

    def finish(self) -> str:
        """The rest of the text when the choice ended for another reason (length, abort): held-back text, and one
        U+FFFD if it was cut inside a character."""
        return self._drain("")[0]

    def _end_at_token(self, token_id: int) -> Pushed:
        """The token that ends the choice is not text of it, except a stop token of the caller's when asked for."""
        own = token_id not in self._stop.token_ids
        data = self._bytes[token_id] if self._stop.include_stop_string and not own else b""
        text, match = self._drain(self._detokenizer.push(data))
        if match is not None:
            return Pushed(text, FinishReason.STOP, match.string)
        return Pushed(text, FinishReason.STOP, None if own else int(token_id))

    def _end_at_string(self, shown: str, match: Match) -> Pushed:
        return Pushed(self._cut(shown, match), FinishReason.STOP, match.string)

    def _cut(self, shown: str, match: Match) -> str:
        return shown if self._stop.include_stop_string else shown[: -len(match.string)]

    def _drain(self, text: str) -> tuple[str, Match | None]:
        """All text that is left after `text`; the mark of a broken character may itself complete a stop string."""
        text += self._detokenizer.flush()
        if self._finder is None:
            return text, None
        shown, match = self._finder.push(text, armed=self.generated >= self._min_tokens)
        if match is not None:
            return self._cut(shown, match), match
        return shown + self._finder.flush(), None
