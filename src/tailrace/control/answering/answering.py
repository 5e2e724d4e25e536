"""One body on its way to its answer: checked, let in at the door, rendered, generated. Where the answer goes is an
`Out`'s business.

One that is given up in any phase, by cancelling its task, ends the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from math import inf
from os import urandom
from typing import Any, Protocol

from tailrace.control.answering.off_loop import off_loop
from tailrace.control.answering.plane import Plane
from tailrace.control.answering.route import Route
from tailrace.control.classes import RequestClass, by_word
from tailrace.control.intake import Caller
from tailrace.control.keys import Principal
from tailrace.control.models import Loaded, Served
from tailrace.control.pipeline import Place
from tailrace.control.session import Session
from tailrace.errors import RequestError, TailraceError, Unsupported
from tailrace.frozen import frozen
from tailrace.observe.entry import About
from tailrace.observe.timeline import Phase, Timeline
from tailrace.observe.timings import timings
from tailrace.protocol.ask import Ask
from tailrace.protocol.body import parse, unknown_fields
from tailrace.protocol.form import Form
from tailrace.protocol.sampling import Limits
from tailrace.types import Adapter, Traits

log = logging.getLogger(__name__)

_JSON_BYTES = 6  # that a character of a prompt has in a body at the most, as in \\u00e9


@frozen
class Sender:
    """Who asks, under which id it is recorded, and of which job it is, if of any."""

    principal: Principal
    request_id: str
    job_id: str = ""


@frozen
class Wishes:
    """What is said beside the body: in how many seconds from the socket the first token is wanted, and what the caller
    calls the thing that the request is a part of."""

    ttft: float | None = None
    task: str = ""


_NO_WISHES = Wishes()


class Out(Protocol):
    """Where an answer goes. What its methods raise ends the work."""

    def warn(self, text: str) -> None:
        """About fields of the body that nothing here knows; before any of the answer."""
        ...

    async def whole(self, data: bytes) -> None:
        """An answer in one piece, as JSON: all there is."""
        ...

    async def stream(self, session: Session, ask: Ask, answer: Form) -> None:
        """For a body that asked for a stream: all that is left to do but to close the session."""
        ...


@frozen
class Work:
    """A request as it goes to its model: its body, who sends it, the size in bytes of what it says, what bounds it, and
    what is added to the model's weights."""

    parsed: Any
    caller: Caller
    size: int
    limits: Limits
    adapter: Adapter | None = None

    def with_adapter(self, ask: Ask) -> Ask:
        if self.adapter is None:
            return ask
        return replace(ask, requests=tuple(replace(one, adapter=self.adapter) for one in ask.requests))


class Answering:
    """`await serve(...)` once, `close(...)` in the end, whatever happened. `outcome`, `status`: of the record."""

    def __init__(self, plane: Plane, route: Route, sender: Sender, timeline: Timeline) -> None:
        self.plane = plane
        self.route = route
        self.sender = sender
        self.timeline = timeline
        self.id = f"{route.id_prefix}{urandom(16).hex()}"
        self.parsed: Any = None
        self.outcome, self.status = "error", 0
        timeline.facts["route"] = route.name

    async def serve(self, body: bytes, out: Out, wishes: Wishes = _NO_WISHES) -> None:
        """Raises TailraceError, and what `out` raises."""
        parsed = await self.read(body)
        facts, models, tenant = self.timeline.facts, self.plane.models, self.sender.principal.tenant
        facts["asked"] = parsed.model
        served = models.find(parsed.model, tenant)
        facts["model"], facts["base_model"], facts["answer"] = served.name, served.base.name, self.id
        if served.adapter is not None:
            facts["adapter"] = served.name
        known = served.loaded
        limits = self._checked(parsed, served.name, known)
        warning = unknown_fields(parsed)
        if warning is not None:
            out.warn(warning)
        size = len(body) + await self.route.recall(parsed, self.plane.responses, tenant)
        place = self.plane.pipeline.door(self.route.prompts(parsed), tenant, _least(known, len(body)))
        caller = self._caller(parsed, wishes)
        try:
            model = await models.hold(served, self.timeline, self._until(caller))
        except BaseException:
            place.release()
            raise
        try:
            if model is not known:
                limits = self._checked(parsed, served.name, model)
            facts["formats"] = model.backend.caps.formats
            await self._answer(place, Work(parsed, caller, size, limits, served.adapter), model, out)
        finally:
            place.release()
            models.let_go(served)

    async def read(self, body: bytes) -> Any:
        """The body as its route has it; `serve` does so where it was not done before. Raises InvalidRequest."""
        if self.parsed is None:
            self.parsed = await off_loop(len(body), lambda: parse(self.route.shape, body))
        return self.parsed

    def check(self, parsed: Any) -> Served:
        """Before any work on it: whether it could be asked for. Raises TailraceError."""
        served = self.plane.models.find(parsed.model, self.sender.principal.tenant)
        self._checked(parsed, served.name, served.loaded)
        return served

    async def keep(self, answer: Form) -> None:
        """It is whole, and its reader does not have the end of it yet."""
        await self.route.keep(answer, self.plane.responses, self.sender.principal.tenant)

    def done(self) -> None:
        """It is whole, and goes to its reader."""
        self.outcome, self.status = "ok", 200

    def noted(self, error: TailraceError) -> TailraceError:
        """The same error, which the record will have."""
        self.status = self.status or error.status
        self.timeline.failed(error)
        return error

    def failed(self, error: TailraceError) -> None:
        self.outcome = _outcome(error)
        self.noted(error)
        if self.outcome == "error":
            log.error("request %s failed, answer %s: %s", self.sender.request_id, self.id, error.message)

    def close(self, ended: Callable[[About, Timeline], object]) -> None:
        """The end of the record, which `ended` is told of. Safe to call twice."""
        if self.timeline.close(self.outcome):
            sender, caller = self.sender, self.sender.principal
            about = About(
                sender.request_id, self.id, self.route.name, caller.tenant, caller.key, self.status, sender.job_id
            )
            ended(about, self.timeline)

    # --- inside

    async def _answer(self, place: Place, work: Work, model: Loaded, out: Out) -> None:
        try:
            self.timeline.enter(Phase.RENDER)
            ask = await off_loop(work.size, lambda: self.route.ask(work.parsed, self.id, model, work.limits))
            ask = work.with_adapter(ask)
            session = await Session.open(self.plane.pipeline, place, ask.requests, self.timeline, work.caller)
        except RequestError as error:
            work.parsed.rename(error)
            raise
        finally:
            place.release()
        try:
            answer = self.route.answer(ask, self.id, int(self.plane.clock.wall()))
            self.timeline.facts["stream"] = ask.stream
            if ask.stream:
                await out.stream(session, ask, answer)
            else:
                await self._plain(session, ask, answer, out)
        finally:
            await session.close()

    async def _plain(self, session: Session, ask: Ask, answer: Form, out: Out) -> None:
        async for prompt, batch in session:
            for event in batch:
                answer.collect(prompt * ask.n + event.index, event)
        usage = await session.finish()
        data = answer.body(usage, timings(self.timeline))
        await self.keep(answer)
        self.done()
        await out.whole(data)

    def _caller(self, parsed: Any, wishes: Wishes) -> Caller:
        traits: Traits = parsed.traits(self.route.name)
        if wishes.task:
            traits = replace(traits, task=wishes.task)
        if self.sender.job_id:
            traits = replace(traits, origin="job")
        self.timeline.facts["traits"] = traits
        return Caller(self.sender.principal, traits, wishes.ttft)

    def _checked(self, parsed: Any, name: str, model: Loaded | None) -> Limits:
        """What bounds requests for the model; without it, what would for any."""
        limits = self.plane.limits.of(self.sender.principal, name, model)
        parsed.check(limits)
        if model is not None:
            self._check_model(name, model)
        return limits

    def _check_model(self, name: str, model: Loaded) -> None:
        if not model.backend.caps.generates:
            raise Unsupported(f"The model {name} makes embeddings, no text", param="model")

    def _until(self, caller: Caller) -> float:
        """When it has waited for its model for as long as it may."""
        opened = self.timeline.opened
        if caller.ttft is not None:
            return opened + caller.ttft
        kind = by_word(caller.traits)
        name = RequestClass.INTERACTIVE if kind is None else kind.request_class
        return opened + (self.plane.pipeline.tenants.policy.classes.of(name).queue_deadline or inf)


def _least(model: Loaded | None, size: int) -> int:
    """Tokens that a body of so many bytes has at the least; nothing is known without the model."""
    return 0 if model is None else model.tokenizer.fewest_tokens(size // _JSON_BYTES)


def _outcome(error: TailraceError) -> str:
    if error.status in (429, 503):
        return "rejected"
    return "invalid" if error.status < 500 else "error"
