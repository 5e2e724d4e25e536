"""What an answer's next characters are: the one event between a model's text and the protocols that show it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple, Protocol

from tailrace.frozen import frozen


class Kind(Enum):
    TEXT = auto()
    REASONING = auto()
    CALL = auto()


class Delta(NamedTuple):
    """More text, more reasoning, or more of a call's arguments, which joined are JSON.

    `call` numbers the calls of an answer from 0; only a call's first delta has its `name`.
    """

    kind: Kind
    text: str = ""
    call: int = -1
    name: str = ""


@frozen
class Signature:
    """A tool that may be called: its name, and its parameters in order."""

    name: str
    parameters: tuple[str, ...] = ()


class Parser(Protocol):
    """One answer's reader. Calls name tools on offer; whatever else looks like a call is text."""

    def push(self, text: str) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """The text is over: what was held back."""
        ...

    @property
    def unfinished(self) -> bool:
        """The last call has no end."""
        ...


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """The same with neighbours joined, and without what says nothing."""
    found: list[Delta] = []
    for delta in deltas:
        last = found[-1] if found else None
        if last is not None and not delta.name and last.kind is delta.kind and last.call == delta.call:
            found[-1] = last._replace(text=last.text + delta.text)
        elif delta.text or delta.name:
            found.append(delta)
    return found
