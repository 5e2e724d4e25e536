"""A backend that fails where it is told to, around any other backend: for tests and rehearsals of the serving plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum

from tailrace.backends.base import Backend
from tailrace.errors import TailraceError
from tailrace.frozen import frozen
from tailrace.types import (
    FinishReason,
    GenerateRequest,
    Health,
    Inspection,
    LoadReport,
    Outlook,
    Pulse,
    TokenEvent,
    Tokens,
)


class Kind(StrEnum):
    RAISE = "raise"  # the iterator raises
    ERROR = "error"  # an event with finish == ERROR, as the contract wants
    END = "end"  # the iterator ends with choices unfinished
    HANG = "hang"  # nothing more comes until the request is closed


@frozen
class Fault:
    """What happens after `after` batches of events."""

    kind: Kind
    after: int = 0
    error: Exception | None = None


class FaultyBackend:
    """`plan` says which fault a request meets, None for none."""

    def __init__(self, inner: Backend, plan: Callable[[GenerateRequest], Fault | None]) -> None:
        self.name = f"faulty-{inner.name}"
        self.caps = inner.caps
        self._inner = inner
        self._plan = plan

    async def generate(
        self, request: GenerateRequest, *, deadline: float | None = None
    ) -> AsyncIterator[Sequence[TokenEvent]]:
        fault = self._plan(request)
        stream = self._inner.generate(request, deadline=deadline)
        passed = 0
        try:
            while fault is None or passed < fault.after:
                try:
                    batch = await anext(stream)
                except StopAsyncIteration:
                    return
                yield batch
                passed += 1
            if fault.kind is Kind.RAISE:
                raise fault.error or RuntimeError("planned fault")
            if fault.kind is Kind.ERROR:
                error = fault.error or RuntimeError("planned fault")
                yield [TokenEvent(i, finish=FinishReason.ERROR, error=error) for i in range(request.n)]
            if fault.kind is Kind.HANG:
                await asyncio.Event().wait()
        finally:
            aclose = getattr(stream, "aclose", None)
            if aclose is not None:
                await aclose()

    async def check(self, request: GenerateRequest) -> None:
        await self._inner.check(request)

    async def abort(self, request_id: str) -> None:
        await self._inner.abort(request_id)

    def load(self) -> LoadReport:
        return self._inner.load()

    def outlook(self) -> Outlook:
        return self._inner.outlook()

    def inspect(self) -> Inspection:
        return self._inner.inspect()

    def pulse(self) -> Pulse:
        return self._inner.pulse()

    async def restart(self, error: TailraceError) -> None:
        await self._inner.restart(error)

    def match_prefix(self, tokens: Tokens, salt: bytes = b"") -> int:
        return self._inner.match_prefix(tokens, salt)

    def on_room(self, wake: Callable[[], None]) -> None:
        self._inner.on_room(wake)

    async def health(self) -> Health:
        return await self._inner.health()

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109 - the contract's name
        await self._inner.drain(timeout)
