"""The contract between the serving plane and whatever generates tokens (our engine, an upstream, a fake).

A backend is a transport: it knows no tenant, no HTTP of ours and no queue policy. `generate` yields events
until every choice has had its one `finish`; a fault in one request is an event with `finish == ERROR` for its
choices, never an exception that reaches another request. Closing the iterator early aborts the request.
A request that can never run (too long for the context or for the KV memory, more choices than slots) raises its
`RequestError` from the first `__anext__`. The last event of each choice carries `facts` (EngineFacts) where the
backend knows them: started, first_token and finished on the injected clock, from which the Timeline cuts its
queue, prefill and decode phases. `text` is generated text only: `echo` is the protocol's to put in front.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from tailrace.errors import TailraceError, Unsupported
from tailrace.types import (
    Capabilities,
    GenerateRequest,
    Grammar,
    Health,
    Inspection,
    LoadReport,
    Outlook,
    Pulse,
    TokenEvent,
    Tokens,
)


class Backend(Protocol):
    name: str
    caps: Capabilities

    def generate(
        self, request: GenerateRequest, *, deadline: float | None = None
    ) -> AsyncIterator[Sequence[TokenEvent]]:
        """Yield the request's events, all those of one engine step together (one wake-up a step, not one a token)."""
        ...

    async def check(self, request: GenerateRequest) -> None:
        """Do what takes work and may refuse the request, before it waits: its grammar is compiled, and known from then
        on. Raises RequestError."""
        ...

    async def abort(self, request_id: str) -> None:
        """Stop the request within one step and free what it holds. Unknown ids are ignored."""
        ...

    def load(self) -> LoadReport:
        """Cheap; never waits."""
        ...

    def outlook(self) -> Outlook:
        """Cheap; never waits. An empty one from a backend that does not know."""
        ...

    def inspect(self) -> Inspection:
        """For people who look; never waits."""
        ...

    def pulse(self) -> Pulse:
        """Cheap; never waits. An empty one from a backend that cannot hang."""
        ...

    async def restart(self, error: TailraceError) -> None:
        """End all that it runs with this error, and begin anew: what hangs is left to itself. Ready for requests when
        it returns. Raises when that fails; it may be tried again."""
        ...

    def match_prefix(self, tokens: Tokens, salt: bytes = b"") -> int:
        """Prompt tokens it would not have to compute; an estimate, cheap."""
        ...

    def on_room(self, wake: Callable[[], None]) -> None:
        """`wake` is called on the asyncio loop whenever capacity frees, so that nothing polls."""
        ...

    async def health(self) -> Health: ...

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109
        """Let running requests finish for at most `timeout` seconds, then end the rest with ABORT."""
        ...


def no_grammars(grammar: Grammar) -> Unsupported:
    """The refusal of a backend whose features lack "grammar"."""
    return Unsupported(
        f"{grammar.field} is not supported by what serves this model: its answers cannot be constrained",
        param=grammar.field,
    )
