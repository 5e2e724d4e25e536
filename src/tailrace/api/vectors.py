"""One request whose texts become vectors: the way of `exchange`, with few texts at a time, which leaves others room."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Send

from tailrace.api.exchange import Exchange, Work
from tailrace.api.wire import off_loop
from tailrace.control.models import Loaded
from tailrace.control.pipeline import Place
from tailrace.control.session import Session
from tailrace.errors import Unsupported
from tailrace.observe.timeline import Phase
from tailrace.observe.timings import timings
from tailrace.protocol.vectors import VectorAnswer
from tailrace.types import GenerateRequest, Usage

AT_ONCE = 32  # texts of a request that wait or run: one with a thousand takes no more places than that


class VectorExchange(Exchange):
    """Returned by a route; the work is done while it is sent."""

    def _check_model(self, name: str, model: Loaded) -> None:
        if not model.backend.caps.embedding:
            raise Unsupported(f"The model {name} makes no embeddings", param="model")

    async def _answer(self, place: Place, work: Work, model: Loaded, send: Send) -> None:
        try:
            self._timeline.enter(Phase.RENDER)
            ask = await off_loop(work.size, lambda: self._route.ask(work.parsed, self._id, model, work.limits))
            answer: VectorAnswer = self._route.answer(ask, self._id, int(self._state.clock.wall()))
            tokens, cached = 0, 0
            for first in range(0, len(ask.requests), AT_ONCE):
                some = ask.requests[first : first + AT_ONCE]
                if first:
                    place = self._state.pipeline.door(len(some), work.caller.principal.tenant)
                used = await self._some(place, work, some, first, answer)
                tokens, cached = tokens + used.prompt_tokens, cached + used.cached_tokens
        finally:
            place.release()
        usage = Usage(tokens, 0, cached)
        await self._send_body(answer.body(usage, timings(self._timeline)), send)

    async def _some(
        self, place: Place, work: Work, requests: Sequence[GenerateRequest], first: int, answer: VectorAnswer
    ) -> Usage:
        """Vectors of some of the texts, of which the first is text `first`."""
        try:
            session = await Session.open(self._state.pipeline, place, requests, self._timeline, work.caller)
        finally:
            place.release()
        try:
            async for text, batch in session:
                for event in batch:
                    answer.collect(first + text, event)
            return session.finish()
        finally:
            await session.close()
