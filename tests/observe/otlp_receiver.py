"""A real OTLP receiver over HTTP: takes what an exporter sends, decodes it by the protocol's own messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Receiver:
    """`status` is answered to everything; while `open` is not set, nothing is answered at all."""

    url: str = ""
    status: int = 200
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)  # of the last request
    open: Event = field(default_factory=Event)
    asked: int = 0

    def spans(self) -> list[Span]:
        return [
            span for sent in self.traces for each in sent.resource_spans for s in each.scope_spans for span in s.spans
        ]

    def root(self) -> Span:
        """The only span of a request itself."""
        (found,) = (span for span in self.spans() if span.kind == Span.SPAN_KIND_SERVER)
        return found

    def phases(self, request: Span) -> dict[str, Span]:
        return {span.name: span for span in self.spans() if span.parent_span_id == request.span_id}

    def points(self, name: str) -> list[HistogramDataPoint]:
        """Of the last time that metrics came."""
        return [
            point
            for each in self.metrics[-1].resource_metrics
            for scope in each.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.histogram.data_points
        ]


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    return getattr(pair.value, pair.value.WhichOneof("value"))


@contextmanager
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    found.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.asked += 1
            found.open.wait()
            if found.status == 200 and self.path == "/v1/traces":
                found.traces.append(ExportTraceServiceRequest.FromString(body))
            elif found.status == 200:
                assert self.path == "/v1/metrics"
                found.metrics.append(ExportMetricsServiceRequest.FromString(body))
            found.headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(found.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield found
    finally:
        found.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
