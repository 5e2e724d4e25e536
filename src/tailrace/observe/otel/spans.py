"""The spans of an ended request: its own, and below it one for each phase that took time. Times are the record's."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.span import TraceState
from opentelemetry.trace.status import Status, StatusCode

from tailrace.observe.ended import Ended
from tailrace.observe.otel.attributes import of_phase, of_request, span_name
from tailrace.observe.trace_context import TraceContext


class SpanMaker:
    """`draw`: of the ids of phases' spans."""

    def __init__(self, resource: Resource, scope: InstrumentationScope, draw: Random) -> None:
        self._resource = resource
        self._scope = scope
        self._draw = draw

    def spans(self, ended: Ended, context: TraceContext) -> list[ReadableSpan]:
        """The request's own first."""
        state = TraceState.from_header([context.state]) if context.state else TraceState()
        own = _context(context.trace, int(context.span, 16), state)
        parent = _context(context.trace, int(context.parent, 16), state, remote=True) if context.parent else None
        begin = ended.opened_us
        request = ReadableSpan(
            name=span_name(ended),
            context=own,
            parent=parent,
            kind=SpanKind.CONSUMER if ended.job else SpanKind.SERVER,
            attributes=of_request(ended),
            status=_status(ended),
            start_time=begin * 1000,
            end_time=(begin + ended.timeline.total()) * 1000,
            resource=self._resource,
            instrumentation_scope=self._scope,
        )
        return [request, *self._phases(ended, own, state)]

    def _phases(self, ended: Ended, own: SpanContext, state: TraceState) -> Iterator[ReadableSpan]:
        begin = ended.opened_us
        for phase, microseconds in ended.timeline.parts().items():
            if not microseconds:
                continue
            end = begin + microseconds
            yield ReadableSpan(
                name=phase.value,
                context=SpanContext(own.trace_id, self._draw.getrandbits(64) or 1, False, own.trace_flags, state),
                parent=own,
                attributes=of_phase(phase, ended.timeline),
                start_time=begin * 1000,
                end_time=end * 1000,
                resource=self._resource,
                instrumentation_scope=self._scope,
            )
            begin = end


def _context(trace: str, span: int, state: TraceState, *, remote: bool = False) -> SpanContext:
    return SpanContext(int(trace, 16), span, remote, TraceFlags(TraceFlags.SAMPLED), state)


def _status(ended: Ended) -> Status:
    """As HTTP's convention has it for servers: what the caller did wrong is no error of theirs."""
    failed = ended.outcome == "error" or ended.status >= 500
    return Status(StatusCode.ERROR, ended.error) if failed else Status(StatusCode.UNSET)
