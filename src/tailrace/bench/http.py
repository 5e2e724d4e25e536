"""One connection pool to one server, with plain JSON calls. Streaming is `client`'s."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from tailrace.errors import ConfigError, Unavailable

IDLE_SECONDS = 2.0  # below the keep-alive of common servers, so that no request goes into a closing connection


class Http:
    """Unlimited connections: the load decides how many there are."""

    def __init__(self, url: str, key: str, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"--url {url!r}: accepted is http://HOST:PORT", param="--url")
        self.base = url.rstrip("/").removesuffix("/v1")
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=timeout),
            headers=headers,
        )

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        return await self._call("GET", path, None)

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return await self._call("POST", path, orjson.dumps(body))

    async def _call(self, method: str, path: str, data: bytes | None) -> tuple[int, dict[str, Any]]:
        """Status and JSON object (empty when it is none). Raises Unavailable when nobody answers."""
        try:
            async with self.session.request(method, self.base + path, data=data) as response:
                return response.status, json_object(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"no answer from {self.base} (--url): {error or type(error).__name__}", param="--url"
            ) from error


def json_object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def error_detail(body: dict[str, Any]) -> dict[str, Any]:
    """The error object of a body, in OpenAI's shape or in that of other servers."""
    detail = body.get("error")
    if isinstance(detail, dict):
        return detail
    return {"message": str(detail or body.get("detail") or body.get("message") or "")}
