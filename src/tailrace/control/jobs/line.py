"""One line of a job on the way that every request goes. It ends with a result, or is to be tried again."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol

import orjson

from tailrace.control.answering.answering import Answering, Out, Sender
from tailrace.control.answering.plane import Plane
from tailrace.control.answering.routes import FOR_JOBS
from tailrace.control.answering.vectors import answering
from tailrace.control.keys import Principal
from tailrace.control.responses import HeldResponses
from tailrace.control.session import Session
from tailrace.database.job import Line, LineState, Result
from tailrace.errors import InternalError, NotFound, TailraceError, Unsupported
from tailrace.frozen import frozen
from tailrace.observe.ended import Ended
from tailrace.observe.entry import About, Entry
from tailrace.observe.timeline import Phase, Timeline
from tailrace.protocol.ask import Ask
from tailrace.protocol.form import Form

log = logging.getLogger(__name__)

_SCOPES = frozenset(("inference",))
_MOST_FAULTS = 3  # of ours, after which a line fails
_AGAIN = 5.0  # seconds, where who refuses does not say when to come back


class LineOut(Out, Protocol):
    """Where a line's answer goes. `data`: all of it, once there is one."""

    data: bytes

    def attach(self, answering: Answering) -> None:
        """Whose answer it will be, before anything of it."""
        ...

    def end(self, *, written: bool) -> None:
        """Nothing comes any more. `written`: the answer is where the line's end is; else it is nobody's."""
        ...


class Collected:
    """The whole answer of a line that is not streamed."""

    def __init__(self) -> None:
        self.data = b""

    def attach(self, answering: Answering) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def end(self, *, written: bool) -> None:
        pass

    async def whole(self, data: bytes) -> None:
        self.data = data

    async def stream(self, session: Session, ask: Ask, answer: Form) -> None:
        raise Unsupported("stream is not for jobs: a line has one answer", param="stream")


@frozen
class Again:
    """Nothing was wrong with it. `after` seconds; `faults` of ours it has had."""

    after: float
    faults: int


class LineRun:
    """`await run()`; then `account()`, or `cut_short()` where it is to be tried again; `end()` in any case."""

    def __init__(self, plane: Plane, line: Line, out: LineOut) -> None:
        self.line = line
        self._plane = plane
        self._out = out
        self._timeline = Timeline(plane.clock)
        sender = Sender(Principal(line.tenant, line.key, _SCOPES), line.request_id, line.job)
        route = FOR_JOBS.get(line.url)
        self._responses = HeldResponses(plane.responses)
        held = replace(plane, responses=self._responses)
        self._answering = None if route is None else answering(held, route, sender, self._timeline)
        if self._answering is not None:
            out.attach(self._answering)
        self._entry: Entry | None = None
        self.active = True  # it has no verdict yet

    @property
    def waits(self) -> bool:
        """For room, or for anything before that."""
        return self._timeline.since_open(Phase.ROUTE) is None

    async def run(self) -> Result | Again:
        try:
            return await self._run()
        finally:
            self.active = False

    async def _run(self) -> Result | Again:
        try:
            if self._answering is None:
                raise NotFound(f"No job can use {self.line.url}", param="url")
            await self._answering.serve(self.line.body.encode(), self._out)
        except TailraceError as error:
            return self._verdict(error)
        except Exception:
            log.exception("line %s of job %s failed", self.line.number, self.line.job)
            return self._verdict(InternalError("The request could not be completed because of an internal error"))
        return Result(LineState.DONE, 200, self._out.data.decode(), self._responses.held)

    def end(self, *, written: bool) -> None:
        """`written`: with the result of `run`."""
        self._out.end(written=written)

    def account(self, *, given_up: bool = False) -> Entry:
        """Its row of the ledger. `given_up`: by whoever asked for it."""
        if self._answering is not None and given_up:
            self._answering.outcome = "cancelled"
        if self._entry is None:
            self._close()
        assert self._entry is not None
        return self._entry

    def cut_short(self, *, given_up: bool = False) -> Entry | None:
        """The row of an attempt that comes to nothing, which nobody pays; None where it has cost nothing."""
        facts = self._timeline.facts
        if not (facts.get("prompt_tokens") or facts.get("device_us")):
            return None
        return replace(self.account(given_up=given_up), price=0)

    def _close(self) -> None:
        def ended(about: About, timeline: Timeline) -> None:
            self._entry = self._plane.account(about, timeline)
            wall = self._plane.clock.wall()
            self._plane.tell(
                Ended(about.request_id, "", self.line.url, about.status, about.tenant, timeline, wall, about.job_id)
            )

        if self._answering is not None:
            self._answering.close(ended)
        else:
            line = self.line
            self._timeline.close("invalid")
            ended(About(line.request_id, "", "", line.tenant, line.key, 404, line.job), self._timeline)

    def _verdict(self, error: TailraceError) -> Result | Again:
        if self._answering is not None:
            self._answering.failed(error)
        if error.status == 503 or (error.status == 429 and error.retry_after is not None):
            return Again(_AGAIN if error.retry_after is None else error.retry_after, self.line.faults)
        if error.status >= 500 and self.line.faults + 1 < _MOST_FAULTS:
            return Again(0.0, self.line.faults + 1)
        return Result(LineState.FAILED, error.status, orjson.dumps(error.body()).decode())
