"""Where a request stands in a trace: W3C Trace Context, from its headers and for its answer's.

What callers send is not trusted to be well formed: anything else than the standard says begins a trace of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from os import urandom

from tailrace.frozen import frozen

_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED = 1
_STATE_BYTES = 512  # of `tracestate`, which the standard asks everyone to pass on


@frozen
class TraceContext:
    """`span` is this request's own. `parent` is empty where no caller had begun the trace; `chosen`: whether it is
    to be sent, whatever comes; `state` is what the caller's tracing systems want to be passed on."""

    trace: str
    span: str
    parent: str = ""
    chosen: bool = True
    state: str = ""

    @classmethod
    def of(cls, headers: Iterable[tuple[bytes, bytes]], ratio: float) -> TraceContext:
        """Of headers whose names are in small letters. The caller chooses; where there is none that traces, the trace's
        id does, for that part of all."""
        given = [(name, value) for name, value in headers if name.startswith(b"trace")]
        parents = [value for name, value in given if name == b"traceparent"]
        match = _PARENT.fullmatch(parents[0].strip()) if len(parents) == 1 else None
        if match is None or not _sane(match):
            trace = urandom(16)
            return cls(trace.hex(), urandom(8).hex(), chosen=int.from_bytes(trace[8:]) < ratio * 2**64)
        state = b",".join(value for name, value in given if name == b"tracestate")
        return cls(
            match[2].decode(),
            urandom(8).hex(),
            match[3].decode(),
            bool(int(match[4], 16) & _SAMPLED),
            state.decode("latin-1") if len(state) <= _STATE_BYTES else "",
        )

    def header(self) -> bytes:
        """The value of `traceresponse`."""
        return b"00-%b-%b-%02x" % (self.trace.encode(), self.span.encode(), self.chosen)


def _sane(match: re.Match[bytes]) -> bool:
    version, more = match[1], match[5]
    return version != b"ff" and not (version == b"00" and more) and bool(match[2].strip(b"0") and match[3].strip(b"0"))
