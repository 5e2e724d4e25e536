"""One generating request from its body to the last byte of its answer, plain or streamed.

The status is committed late: whatever is refused has its own status, also when a stream was asked for. A stream's 200
goes out when the request is dispatched, or after `commit_after` of waiting; from then on a failure is an event, which
ends the stream. A client that leaves, in any phase, ends the work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import inf
from os import urandom
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace.api.auth import principal_of
from tailrace.api.errors import internal_error
from tailrace.api.headers import DEADLINE, TASK, deadline, task
from tailrace.api.resumable import Carrier, wants_resuming
from tailrace.api.sse import EventStream, Pings
from tailrace.api.state import AppState
from tailrace.api.wire import ClientGone, header, leavers, off_loop, read_body, while_connected
from tailrace.control.classes import RequestClass, by_word
from tailrace.control.intake import Caller
from tailrace.control.models import Loaded
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
from tailrace.protocol.sampling import Asking, Limits
from tailrace.types import Adapter, TokenEvent, Traits

log = logging.getLogger(__name__)

_JSON_BYTES = 6  # that a character of a prompt has in a body at the most, as in \\u00e9


async def _nothing_to_recall(body: Any, state: AppState, tenant: str) -> int:
    return 0


async def _not_kept(answer: Any, state: AppState, tenant: str) -> None:
    return None


def ask_as_chat(body: Any, request_id: str, model: Loaded, limits: Limits) -> Ask:
    """Of a body that is a conversation."""
    ask: Ask = body.ask(request_id, model.template, model.tokenizer, limits, model.dialect)
    return ask


@frozen
class Route:
    """What differs between the generating routes. `prompts` counts the prompts of a body before any work on them.

    `recall` gives the body what it refers to, and says how many bytes that is; `keep` gets the answer once it is whole,
    before its client has the end of it.
    """

    name: str
    shape: type[Asking]
    answer: Callable[[Ask, str, int], Any]  # a Form; of vectors a VectorAnswer
    id_prefix: str
    ask: Callable[[Any, str, Loaded, Limits], Ask]
    prompts: Callable[[Any], int] = lambda body: 1
    recall: Callable[[Any, AppState, str], Awaitable[int]] = _nothing_to_recall
    keep: Callable[[Any, AppState, str], Awaitable[None]] = _not_kept


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


class Exchange(Response):
    """Returned by a route; the work is done while it is sent. What a Response prepares is never used."""

    def __init__(self, state: AppState, route: Route, request: Request) -> None:
        self._state = state
        self._route = route
        self._scope = request.scope
        self._id = f"{route.id_prefix}{urandom(16).hex()}"
        self._timeline: Timeline = self._scope["state"]["timeline"]
        self._principal = principal_of(request)
        self._outcome, self._status = "error", 0
        self._timeline.facts["route"] = route.name
        self._extra: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._whole(receive, send)
        except (ClientGone, asyncio.CancelledError):
            self._outcome = "cancelled"
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
        except TailraceError as error:
            self._failed(error)
            raise
        except Exception:
            log.exception("request %s failed", self._request_id)
            raise self._noted(internal_error()) from None
        finally:
            if self._timeline.close(self._outcome):
                self._state.ended(self._about(), self._timeline)

    def _about(self) -> About:
        caller, route = self._principal, self._route.name
        return About(self._request_id, self._id, route, caller.tenant, caller.key, self._status)

    @property
    def _request_id(self) -> str:
        known: str = self._scope["state"]["request_id"]
        return known

    async def _whole(self, receive: Receive, send: Send) -> None:
        self._state.pipeline.look(self._principal.tenant)
        body = await read_body(self._scope, receive, self._state.config.api.max_body_bytes)
        told = leavers(self._scope, len(body))
        if wants_resuming(self._scope):
            carrier = Carrier(self._state, self._principal.tenant, send)
            await carrier.carry(self._serve(body, carrier.send), receive, told)
        else:
            await while_connected(receive, self._serve(body, send), told)

    async def _serve(self, body: bytes, send: Send) -> None:
        parsed = await off_loop(len(body), lambda: self._parse(body))
        self._timeline.facts["asked"] = parsed.model
        models, tenant = self._state.models, self._principal.tenant
        served = models.find(parsed.model, tenant)
        facts = self._timeline.facts
        facts["model"], facts["base_model"], facts["answer"] = served.name, served.base.name, self._id
        if served.adapter is not None:
            facts["adapter"] = served.name
        known = served.loaded
        limits = self._checked(parsed, served.name, known)
        warning = unknown_fields(parsed)
        if warning is not None:
            self._extra.append((b"x-tailrace-warning", warning.encode()))
        size = len(body) + await self._route.recall(parsed, self._state, tenant)
        place = self._state.pipeline.door(self._route.prompts(parsed), tenant, _least(known, len(body)))
        caller = self._caller(parsed)
        try:
            model = await models.hold(served, self._timeline, self._until(caller))
        except BaseException:
            place.release()
            raise
        try:
            if model is not known:
                limits = self._checked(parsed, served.name, model)
            facts["formats"] = model.backend.caps.formats
            await self._answer(place, Work(parsed, caller, size, limits, served.adapter), model, send)
        finally:
            place.release()
            models.let_go(served)

    async def _answer(self, place: Place, work: Work, model: Loaded, send: Send) -> None:
        try:
            self._timeline.enter(Phase.RENDER)
            ask = await off_loop(work.size, lambda: self._route.ask(work.parsed, self._id, model, work.limits))
            ask = work.with_adapter(ask)
            session = await Session.open(self._state.pipeline, place, ask.requests, self._timeline, work.caller)
        except RequestError as error:
            work.parsed.rename(error)
            raise
        finally:
            place.release()
        try:
            answer = self._route.answer(ask, self._id, int(self._state.clock.wall()))
            self._timeline.facts["stream"] = ask.stream
            await (self._stream if ask.stream else self._plain)(session, ask, answer, send)
        finally:
            await session.close()

    def _checked(self, parsed: Any, name: str, model: Loaded | None) -> Limits:
        """What bounds requests for the model; without it, what would for any."""
        limits = self._state.limits_of(self._principal, name, model)
        parsed.check(limits)
        if model is not None:
            self._check_model(name, model)
        return limits

    def _check_model(self, name: str, model: Loaded) -> None:
        if not model.backend.caps.generates:
            raise Unsupported(f"The model {name} makes embeddings, no text", param="model")

    def _until(self, caller: Caller) -> float:
        """When it has waited for its model for as long as it may."""
        opened = self._timeline.opened
        if caller.ttft is not None:
            return opened + caller.ttft
        kind = by_word(caller.traits)
        name = RequestClass.INTERACTIVE if kind is None else kind.request_class
        return opened + (self._state.pipeline.tenants.policy.classes.of(name).queue_deadline or inf)

    def _caller(self, parsed: Any) -> Caller:
        """Raises InvalidRequest for a header that is not what it should be."""
        traits: Traits = parsed.traits(self._route.name)
        label = task(header(self._scope, TASK.encode()))
        if label:
            traits = replace(traits, task=label)
        self._timeline.facts["traits"] = traits
        return Caller(self._principal, traits, deadline(header(self._scope, DEADLINE.encode())))

    def _noted(self, error: TailraceError) -> TailraceError:
        self._status = self._status or error.status
        self._timeline.failed(error)
        return error

    def _failed(self, error: TailraceError) -> None:
        self._outcome = _outcome(error)
        self._noted(error)
        if self._outcome == "error":
            log.error("request %s failed, answer %s: %s", self._request_id, self._id, error.message)

    def _parse(self, body: bytes) -> Any:
        return parse(self._route.shape, body)

    async def _plain(self, session: Session, ask: Ask, answer: Form, send: Send) -> None:
        async for prompt, batch in session:
            for event in batch:
                answer.collect(prompt * ask.n + event.index, event)
        usage = session.finish()
        await session.close()
        data = answer.body(usage, timings(self._timeline))
        await self._route.keep(answer, self._state, self._principal.tenant)
        await self._send_body(data, send)

    async def _send_body(self, data: bytes, send: Send) -> None:
        self._outcome, self._status = "ok", 200
        length = (b"content-length", b"%d" % len(data))
        headers = [(b"content-type", b"application/json"), length, *self._extra]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    async def _stream(self, session: Session, ask: Ask, answer: Form, send: Send) -> None:
        await self._released(session)
        out = EventStream(send, self._extra, answer.ping)
        self._status = 200
        await out.open()
        try:
            last = await self._events(session, ask, answer, out)
            await self._route.keep(answer, self._state, self._principal.tenant)
            self._outcome = "ok"
        except TailraceError as error:
            self._failed(error)
            last = answer.failed(error)
        except Exception:
            log.exception("request %s failed while streaming", self._request_id)
            last = answer.failed(self._noted(internal_error()))
        await session.close()
        await out.end(last)

    async def _released(self, session: Session) -> None:
        """Wait for dispatch, at most as long as the status may be held back."""
        if not session.waits:
            return await session.released()
        try:
            async with asyncio.timeout(self._state.config.api.commit_after):
                await session.released()
        except TimeoutError:
            pass

    async def _events(self, session: Session, ask: Ask, answer: Form, out: EventStream) -> bytes:
        """Everything but the end of the stream, which is returned."""
        item: tuple[int, Sequence[TokenEvent]] | None = await self._first(session, out)
        while item is not None:
            prompt, batch = item
            data = b"".join([answer.chunk(prompt * ask.n + event.index, event) for event in batch])
            if data:
                await out.write(data)
            item = await anext(session, None)
        usage = session.finish()
        return answer.end(usage, timings(self._timeline))

    async def _first(self, session: Session, out: EventStream) -> tuple[int, Sequence[TokenEvent]]:
        """The first events, with pings until they come. A timer for each later step would only cost."""
        interval, pings = self._state.config.api.ping_interval, Pings(out)
        timer = asyncio.get_running_loop().call_later(interval, pings.begin, interval)
        try:
            return await anext(session)
        finally:
            timer.cancel()
            await pings.end()


def _least(model: Loaded | None, size: int) -> int:
    """Tokens that a body of so many bytes has at the least; nothing is known without the model."""
    return 0 if model is None else model.tokenizer.fewest_tokens(size // _JSON_BYTES)


def _outcome(error: TailraceError) -> str:
    if error.status in (429, 503):
        return "rejected"
    return "invalid" if error.status < 500 else "error"
