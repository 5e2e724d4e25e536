"""Traces and GenAI metrics for an OpenTelemetry collector, made from the closed Timeline. Needs the extra `otel`."""
