"""What one API makes of token events: one plain body, or the events of a stream. The two say the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import orjson

from tailrace.errors import TailraceError
from tailrace.observe.timings import Timings
from tailrace.protocol.ask import Ask
from tailrace.types import TokenEvent, Usage

Json = dict[str, Any]


class Form(ABC):
    """One answer being made. `collect` events and take the `body`, or pass them through `chunk` and `end` the stream;
    `failed` ends one that cannot go on. A stream has one such end."""

    ping = b": waiting\n\n"  # keeps idle connections open; clients skip it

    @abstractmethod
    def __init__(self, ask: Ask, answer_id: str, created: int) -> None:
        """`created`: seconds since the epoch."""

    def go_on(self, sent: int, *, created: bool) -> None:  # noqa: B027 - most forms number nothing
        """`sent` events of a stream came before; `created`: its readers have been told of the answer."""

    @abstractmethod
    def collect(self, index: int, event: TokenEvent) -> None:
        """Add one event of choice `index` (over all prompts)."""

    @abstractmethod
    def body(self, usage: Usage, timings: Timings) -> bytes:
        """The whole answer, once every choice has finished."""

    @abstractmethod
    def chunk(self, index: int, event: TokenEvent) -> bytes:
        """The server-sent events of one token event: none when there is nothing to show yet."""

    @abstractmethod
    def end(self, usage: Usage, timings: Timings) -> bytes:
        """What is left to send once every choice has finished."""

    def failed(self, error: TailraceError) -> bytes:
        """The last event of a stream that fails after its status was sent."""
        return b"data: " + orjson.dumps(error.body()) + b"\n\n"


def named_event(event: Mapping[str, Any]) -> bytes:
    """A server-sent event whose name is its `type`."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"
