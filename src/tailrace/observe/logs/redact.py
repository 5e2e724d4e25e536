"""Secrets out of texts that people and machines read: those that the settings hold, and what looks like one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from tailrace.config import Config

HIDDEN = "***"
_SHORTEST = 4  # characters of a secret: hiding shorter ones would hide words
_URL = re.compile(r"(://)[^/\s?#\"'<>]*@")
_SCHEME = re.compile(r"\b(bearer|basic)\s+(?!\*)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_NAMED = re.compile(
    r"\b((?:proxy-)?authorization|x-api-key|cookie|api[_-]?key|access[_-]?token|password|passwd|secret)\b"
    r"([\"']?+\s*+[:=,]\s*+(?:b(?=[\"']))?+[\"']?+)(?!\*|bearer\b|basic\b)[^\s\"',;&)}\]]+",
    re.IGNORECASE,
)
_KEY = re.compile(r"\bsk-[A-Za-z0-9_-]{8,}")


class Redactor:
    def __init__(self, secrets: Iterator[str] | tuple[str, ...] = ()) -> None:
        known = sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = _URL.sub(rf"\1{HIDDEN}@", text)
        text = _SCHEME.sub(rf"\1 {HIDDEN}", text)
        text = _NAMED.sub(rf"\1\2{HIDDEN}", text)
        return _KEY.sub(f"sk-{HIDDEN}", text)


def secrets_of(config: Config) -> Iterator[str]:
    """Passwords of the addresses, and what collectors are sent. API keys are not here: only their hashes are known."""
    for url in (config.data.database, config.control.limits_url, config.observe.otlp_endpoint):
        yield from _password(url)
    for header in config.observe.otlp_headers:
        yield header.partition("=")[2].strip()


def _password(url: str) -> Iterator[str]:
    try:
        password = urlsplit(url).password or ""
    except ValueError:
        return
    yield password
    yield unquote(password)
