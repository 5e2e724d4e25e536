"""OpenTelemetry's own exporters, driven from one thread: spans as they come, metrics when told."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from importlib.metadata import version
from random import Random
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from tailrace.observe.otel.collector import Collector
from tailrace.observe.otel.meter import GenAiMeter
from tailrace.observe.otel.spans import SpanMaker

_TALKATIVE = ("opentelemetry", "urllib3")  # each try that fails is an error to them; who uses this says it once


class Sdk:
    """`timeout`: of an export, with all its tries, in seconds."""

    def __init__(self, collector: Collector, timeout: float) -> None:
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        resource = _resource()
        scope = InstrumentationScope("tailrace", version("tailrace"))
        headers = dict(collector.headers)
        self._spans = OTLPSpanExporter(f"{collector.url}/v1/traces", headers=headers, timeout=timeout)
        metrics = OTLPMetricExporter(f"{collector.url}/v1/metrics", headers=headers, timeout=timeout)
        self._reader = PeriodicExportingMetricReader(metrics, export_interval_millis=math.inf)
        provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self.meter = GenAiMeter(provider.get_meter("tailrace", version("tailrace")))
        self.maker = SpanMaker(resource, scope, Random())

    def send_spans(self, spans: Sequence[ReadableSpan]) -> bool:
        """Whether the collector took them."""
        return self._spans.export(spans) is SpanExportResult.SUCCESS

    def send_metrics(self) -> None:
        """They count from the start on: what one call does not bring the next one does."""
        self._reader.collect()

    def stop(self) -> None:
        """Nothing is tried again from now on. From any thread."""
        self._spans.shutdown()  # type: ignore[no-untyped-call]
        self._reader.shutdown()


def _resource() -> Resource:
    """Who sends: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` have the last word, as everywhere."""
    own = {"service.name": "tailrace", "service.version": version("tailrace"), "service.instance.id": str(uuid4())}
    return Resource(own).merge(OTELResourceDetector().detect())
