"""Where the answer of a deferred request goes: into one piece that is kept, and into a stream for who reads along."""

from __future__ import annotations

from tailrace.control.answering.answering import Answering
from tailrace.control.deferred.standing import RESPONSE
from tailrace.control.session import Session
from tailrace.control.streams import Stream, Streams
from tailrace.database.job import Line
from tailrace.observe.timings import timings
from tailrace.protocol.ask import Ask
from tailrace.protocol.form import Form

_EACH_ATTEMPT = 1_000_000  # numbers that the events of an attempt have for themselves


class Following:
    """A LineOut. A line that is tried again makes its stream anew, with other numbers, so that no reader takes the one
    for the other."""

    def __init__(self, streams: Streams, line: Line) -> None:
        self.data = b""
        self._streams = streams
        self._line = line
        self._answering: Answering | None = None
        self._stream: Stream | None = None
        self._last = b""  # of the stream, once the line's end is written

    def attach(self, answering: Answering) -> None:
        self._answering = answering
        if self._line.kind == RESPONSE:
            answering.id = self._line.job

    def warn(self, text: str) -> None:
        pass

    async def whole(self, data: bytes) -> None:
        self.data = data

    async def stream(self, session: Session, ask: Ask, answer: Form) -> None:
        """`answer` is made anew, twice: for those who read along, and for those who come later."""
        self._stream = self._begun()
        try:
            await self._follow(session, ask, self._stream)
        except BaseException:
            self.end(written=False)
            raise

    def end(self, *, written: bool) -> None:
        stream = self._stream
        if stream is None or stream.ended:
            return
        if written:
            stream.write(self._last)
        stream.end(whole=written)

    async def _follow(self, session: Session, ask: Ask, stream: Stream) -> None:
        answering, created = self._answering, int(self._line.custom_id)
        assert answering is not None
        told, whole = (answering.route.answer(ask, answering.id, created) for _ in range(2))
        told.go_on(stream.next, created=stream.next > stream.base)
        async for prompt, batch in session:
            events = []
            for event in batch:
                index = prompt * ask.n + event.index
                events.append(told.chunk(index, event))
                whole.collect(index, event)
            stream.write(b"".join(events))
        usage = await session.finish()
        times = timings(answering.timeline)
        self.data, self._last = whole.body(usage, times), told.end(usage, times)
        await answering.keep(whole)
        answering.done()

    def _begun(self) -> Stream:
        """What was begun for it, where none of the answer is in it."""
        line, streams = self._line, self._streams
        found = streams.find(line.tenant, line.job)
        if found is not None and found.ended:
            streams.drop(found)
            found = None
        if found is None:
            found = streams.open(line.tenant, line.job, (line.attempts - 1) * _EACH_ATTEMPT)
        found.abandoned = _go_on
        return found


def _go_on() -> None:
    """It is made for whoever comes later too."""
