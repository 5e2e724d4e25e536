"""One body whose texts become vectors: the way of `answering`, with few texts at a time, which leaves others room."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.control.answering.answering import Answering, Out, Sender, Work
from tailrace.control.answering.off_loop import off_loop
from tailrace.control.answering.plane import Plane
from tailrace.control.answering.route import Route
from tailrace.control.models import Loaded
from tailrace.control.pipeline import Place
from tailrace.control.session import Session
from tailrace.errors import Unsupported
from tailrace.observe.timeline import Phase, Timeline
from tailrace.observe.timings import timings
from tailrace.protocol.vectors import VectorAnswer
from tailrace.types import GenerateRequest, Usage

AT_ONCE = 32  # texts of a request that wait or run: one with a thousand takes no more places than that


class VectorAnswering(Answering):
    def _check_model(self, name: str, model: Loaded) -> None:
        if not model.backend.caps.embedding:
            raise Unsupported(f"The model {name} makes no embeddings", param="model")

    async def _answer(self, place: Place, work: Work, model: Loaded, out: Out) -> None:
        try:
            self.timeline.enter(Phase.RENDER)
            ask = await off_loop(work.size, lambda: self.route.ask(work.parsed, self.id, model, work.limits))
            answer: VectorAnswer = self.route.answer(ask, self.id, int(self.plane.clock.wall()))
            tokens, cached = 0, 0
            for first in range(0, len(ask.requests), AT_ONCE):
                some = ask.requests[first : first + AT_ONCE]
                if first:
                    place = self.plane.pipeline.door(len(some), work.caller.principal.tenant)
                used = await self._some(place, work, some, first, answer)
                tokens, cached = tokens + used.prompt_tokens, cached + used.cached_tokens
        finally:
            place.release()
        usage = Usage(tokens, 0, cached)
        self.done()
        await out.whole(answer.body(usage, timings(self.timeline)))

    async def _some(
        self, place: Place, work: Work, requests: Sequence[GenerateRequest], first: int, answer: VectorAnswer
    ) -> Usage:
        """Vectors of some of the texts, of which the first is text `first`."""
        try:
            session = await Session.open(self.plane.pipeline, place, requests, self.timeline, work.caller)
        finally:
            place.release()
        try:
            async for text, batch in session:
                for event in batch:
                    answer.collect(first + text, event)
            return await session.finish()
        finally:
            await session.close()


def answering(plane: Plane, route: Route, sender: Sender, timeline: Timeline) -> Answering:
    """Of the kind that the route's answers are."""
    return (VectorAnswering if route.vectors else Answering)(plane, route, sender, timeline)
