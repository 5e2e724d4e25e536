"""Where traces and metrics are sent: the settings, checked. Imports nothing of OpenTelemetry."""

from __future__ import annotations

import re
from importlib.util import find_spec
from urllib.parse import urlsplit

from tailrace.config import ObserveConfig
from tailrace.errors import ConfigError
from tailrace.frozen import frozen
from tailrace.knobs import without_password

_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)=([\x20-\x7e]*)")
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


@frozen
class Collector:
    """`url` without a path of its own ends in no slash: "/v1/traces" and "/v1/metrics" come behind it."""

    url: str
    headers: dict[str, str]

    @classmethod
    def of(cls, config: ObserveConfig) -> Collector | None:
        """None where none is configured. Raises ConfigError, also when the extra is not installed."""
        if not config.otlp_endpoint:
            return None
        url = config.otlp_endpoint.rstrip("/")
        _check(url)
        if not all(map(_installed, _NEEDED)):
            raise ConfigError(
                "observe.otlp_endpoint needs OpenTelemetry: pip install 'tailrace[otel]'", param="observe.otlp_endpoint"
            )
        return cls(url, dict(map(_header, config.otlp_headers)))

    def __repr__(self) -> str:
        return f"Collector({without_password(self.url)})"


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        good = False
    if not good or parts.query or parts.fragment:
        raise ConfigError(
            f"observe.otlp_endpoint = {without_password(url)!r}: accepted is http://HOST:4318 or https://HOST, of a "
            "collector that takes OTLP over HTTP",
            param="observe.otlp_endpoint",
        )


def _header(text: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(text.strip())
    if match is None:
        raise ConfigError("observe.otlp_headers: accepted is NAME=VALUE", param="observe.otlp_headers")
    return match[1], match[2]


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
