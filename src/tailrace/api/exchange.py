"""One generating request from its body to the last byte of its answer over HTTP, plain or streamed.

The status is committed late: whatever is refused has its own status, also when a stream was asked for. A stream's 200
goes out when the request is dispatched, or after `commit_after` of waiting; from then on a failure is an event, which
ends the stream. A client that leaves, in any phase, ends the work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tailrace.api.auth import principal_of
from tailrace.api.deferral import accepted, overflow, overflow_wish
from tailrace.api.errors import internal_error
from tailrace.api.headers import DEADLINE, TASK, deadline, task
from tailrace.api.resumable import Carrier, wants_resuming
from tailrace.api.sse import EventStream, Pings
from tailrace.api.state import AppState
from tailrace.api.wire import ClientGone, header, leavers, read_body, while_connected
from tailrace.control.answering.answering import Sender, Wishes
from tailrace.control.answering.route import Route
from tailrace.control.answering.vectors import answering
from tailrace.control.session import Session
from tailrace.errors import TailraceError
from tailrace.observe.timings import timings
from tailrace.protocol.ask import Ask
from tailrace.protocol.form import Form
from tailrace.types import TokenEvent

log = logging.getLogger(__name__)


class Exchange(Response):
    """Returned by a route; the work is done while it is sent. What a Response prepares is never used. It is the `Out`
    of its own answer."""

    def __init__(self, state: AppState, route: Route, request: Request) -> None:
        self._state = state
        self._scope = scope = request.scope
        self._request_id: str = scope["state"]["request_id"]
        sender = Sender(principal_of(request), self._request_id)
        self._answering = answering(state.plane, route, sender, scope["state"]["timeline"])
        self._request = request
        self._body = b""
        self._extra: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send, self._receive = send, receive
        try:
            await self._whole(receive)
        except (ClientGone, asyncio.CancelledError):
            self._answering.outcome = "cancelled"
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
        except TailraceError as error:
            self._answering.failed(error)
            await self._refused(error)
        except Exception:
            log.exception("request %s failed", self._request_id)
            raise self._answering.noted(internal_error()) from None
        finally:
            self._answering.close(self._state.ended)

    async def _whole(self, receive: Receive) -> None:
        self._state.pipeline.look(self._answering.sender.principal.tenant)
        overflow_wish(self._scope)
        self._body = body = await read_body(self._scope, receive, self._state.config.api.max_body_bytes)
        told = leavers(self._scope, len(body))
        wishes = Wishes(deadline(header(self._scope, DEADLINE.encode())), task(header(self._scope, TASK.encode())))
        work = self._work
        if wants_resuming(self._scope):
            carrier = Carrier(self._state, self._answering.sender.principal.tenant, self._send)
            self._send = carrier.send
            await carrier.carry(work(body, wishes), receive, told)
        else:
            await while_connected(receive, work(body, wishes), told)

    async def _work(self, body: bytes, wishes: Wishes) -> None:
        await self._answering.serve(body, self, wishes)

    async def _refused(self, error: TailraceError) -> None:
        """Raises the error, unless the request becomes a job."""
        standing = await overflow(self._state, self._answering, self._request, self._body, error)
        if standing is None:
            raise error
        self._answering.outcome, self._answering.status = "deferred", 202
        await self.reply(accepted(standing))

    async def reply(self, response: Response) -> None:
        """Answer with what is no answer of the model's."""
        await response(self._scope, self._receive, self._send)

    # --- where the answer goes

    def warn(self, text: str) -> None:
        self._extra.append((b"x-tailrace-warning", text.encode()))

    async def whole(self, data: bytes) -> None:
        length = (b"content-length", b"%d" % len(data))
        headers = [(b"content-type", b"application/json"), length, *self._extra]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data})

    async def stream(self, session: Session, ask: Ask, answer: Form) -> None:
        await self._released(session)
        out = EventStream(self._send, self._extra, answer.ping)
        self._answering.status = 200
        await out.open()
        try:
            last = await self._events(session, ask, answer, out)
            await self._answering.keep(answer)
            self._answering.done()
        except TailraceError as error:
            self._answering.failed(error)
            last = answer.failed(error)
        except Exception:
            log.exception("request %s failed while streaming", self._request_id)
            last = answer.failed(self._answering.noted(internal_error()))
        await session.close()  # of one that failed
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
        usage = await session.finish()
        return answer.end(usage, timings(self._answering.timeline))

    async def _first(self, session: Session, out: EventStream) -> tuple[int, Sequence[TokenEvent]]:
        """The first events, with pings until they come. A timer for each later step would only cost."""
        interval, pings = self._state.config.api.ping_interval, Pings(out)
        timer = asyncio.get_running_loop().call_later(interval, pings.begin, interval)
        try:
            return await anext(session)
        finally:
            timer.cancel()
            await pings.end()
