"""The chat partner behind a URL: any server that speaks OpenAI's chat completions, ours first of all."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any

from tailrace.cli.chat import ChatOptions, Message, Show, Stats
from tailrace.errors import ConfigError, RequestError, TailraceError, Unavailable

TIMEOUT_SECONDS = 300.0


class HttpPartner:
    def __init__(self, options: ChatOptions) -> None:
        parts = urllib.parse.urlsplit(options.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"--url {options.url!r}: accepted is http://HOST:PORT", param="--url")
        self._base = options.url.rstrip("/").removesuffix("/v1")
        self._options = options
        self._model = options.model or self._first_model()
        self.name = f"{self._model} at {self._base}"

    def answer(self, messages: list[Message], show: Show) -> Stats:
        body = {
            "model": self._model,
            "messages": messages,
            "max_tokens": self._options.max_tokens,
            "temperature": self._options.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        watch = _Watch()
        with self._open("/v1/chat/completions", body) as response:
            for event in _events(response):
                watch.see(event, show)
        return watch.stats()

    def close(self) -> None:
        pass

    def _first_model(self) -> str:
        with self._open("/v1/models") as response:
            models = json.load(response).get("data") or []
        if not models:
            raise ConfigError(f"{self._base} serves no model", param="--url")
        return str(models[0]["id"])

    def _open(self, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        headers = {"Content-Type": "application/json"}
        if self._options.key:
            headers["Authorization"] = f"Bearer {self._options.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, headers)
        try:
            response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except (OSError, HTTPException) as error:
            raise Unavailable(f"no answer from {self._base}: {error}", param="--url") from error
        return response


class _Watch:
    """Shows the text of a stream and keeps what is needed for the numbers after it."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._first: float | None = None
        self._tokens = 0
        self._finish = ""
        self._timings: dict[str, Any] = {}

    def see(self, event: dict[str, Any], show: Show) -> None:
        if "error" in event:
            raise _error(event, 500)
        for choice in event.get("choices") or []:
            text = choice.get("delta", {}).get("content") or ""
            if text:
                self._first = self._first or time.monotonic()
                show(text)
            self._finish = choice.get("finish_reason") or self._finish
        self._tokens = (event.get("usage") or {}).get("completion_tokens", self._tokens)
        self._timings = event.get("timings") or self._timings

    def stats(self) -> Stats:
        """From the server's own timings where it gives them, else from what was seen here."""
        first = None if self._first is None else self._first - self._begin
        rate = 1e3 / self._timings["tpot_ms"] if self._timings.get("tpot_ms") else None
        if rate is None and self._first is not None and self._tokens > 1:
            rate = (self._tokens - 1) / max(time.monotonic() - self._first, 1e-9)
        return Stats(self._tokens, first, rate, self._finish)


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream."""
    try:
        for line in response:
            data = line.strip().removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield json.loads(data)
    except (OSError, HTTPException, ValueError) as error:
        raise Unavailable(f"the stream broke off: {error}") from error


def _refusal(error: urllib.error.HTTPError) -> TailraceError:
    try:
        body = json.load(error)
    except ValueError:
        body = {}
    return _error(body if isinstance(body, dict) else {}, error.code)


def _error(body: dict[str, Any], status: int) -> TailraceError:
    detail = body.get("error")
    message = detail.get("message") if isinstance(detail, dict) else None
    return RequestError(f"{message or 'the server answered without saying why'} (status {status})")
