"""An answer of one choice as a row of parts - thoughts, text, calls - each of which opens, grows and closes.

What APIs show that have parts of their own: they write each change as their event, and the parts as their answer, so a
stream and a plain answer cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from pydantic_core import from_json

from tailrace.protocol.said import Said
from tailrace.text.parsers.delta import Delta, Kind
from tailrace.types import FinishReason, TokenEvent, TokenLogprob


class Verb(Enum):
    OPEN = auto()
    ADD = auto()
    CLOSE = auto()


@dataclass(slots=True)
class Part:
    """`call` numbers calls, -1 for others. `whole`: its end was reached, once it is closed."""

    kind: Kind
    index: int
    call: int = -1
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    whole: bool = True

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Change(NamedTuple):
    """`text` and `logprobs` are what an ADD adds."""

    verb: Verb
    part: Part
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class Outline:
    """`parts` so far. `blank`: an answer of nothing has an empty text. `hold`: a call's arguments come in one piece,
    when it closes, and are JSON of an object whatever the model wrote."""

    def __init__(self, said: Said, *, hold: bool = False, blank: bool = False) -> None:
        self.said = said
        self.parts: list[Part] = []
        self.finish: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self._hold = hold
        self._blank = blank
        self._open: Part | None = None
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text is not shown yet

    def read(self, event: TokenEvent) -> list[Change]:
        """What an event changes. After the last one everything is closed."""
        thoughts, deltas = self.said.reasoning_tokens, self.said.read(event)
        if self.said.reasoning_tokens == thoughts:
            self._logprobs += event.logprobs
        changes = [change for delta in deltas for change in self._grow(delta)]
        if event.finish is not None:
            self.finish, self.stop_reason = event.finish, event.stop_reason
            changes += self._end(event.finish)
        return changes

    def _grow(self, delta: Delta) -> Iterator[Change]:
        part = self._open
        if part is None or part.kind is not delta.kind or part.call != delta.call:
            yield from self._close()
            part = self._open = Part(delta.kind, len(self.parts), delta.call, delta.name)
            self.parts.append(part)
            yield Change(Verb.OPEN, part)
        if delta.text or part.kind is Kind.TEXT:
            yield from self._add(part, delta.text)

    def _add(self, part: Part, text: str) -> Iterator[Change]:
        logprobs = tuple(self._logprobs) if part.kind is Kind.TEXT else ()
        self._logprobs.clear()
        part.pieces.append(text)
        part.logprobs += logprobs
        if (text or logprobs) and not (self._hold and part.kind is Kind.CALL):
            yield Change(Verb.ADD, part, text, logprobs)

    def _end(self, finish: FinishReason) -> Iterator[Change]:
        spoken = any(part.kind is not Kind.REASONING for part in self.parts)
        if self._blank and finish is FinishReason.STOP and not spoken:
            yield from self._grow(Delta(Kind.TEXT))
        part = self._open
        if part is not None and part.kind is Kind.TEXT and self._logprobs:
            yield from self._add(part, "")  # of an end token, or a stop string
        yield from self._close(whole=finish is FinishReason.STOP and not self.said.unfinished)

    def _close(self, *, whole: bool = True) -> Iterator[Change]:
        part, self._open = self._open, None
        if part is None:
            return
        part.whole = whole
        if self._hold and part.kind is Kind.CALL:
            text = part.text if readable(part.text) else _wrapped(part.text)
            part.pieces = [text]
            if text:
                yield Change(Verb.ADD, part, text)
        yield Change(Verb.CLOSE, part)


def readable(text: str) -> bool:
    """Whether it is JSON of an object, or the beginning of some."""
    try:
        return not text or isinstance(from_json(text, allow_inf_nan=False, allow_partial=True), dict)
    except ValueError:
        return False


def _wrapped(text: str) -> str:
    return json.dumps({"_raw": text}, ensure_ascii=False)
