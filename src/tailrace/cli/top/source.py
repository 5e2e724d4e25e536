"""Where the state comes from, and where what the operator does goes: a server's admin routes, or a test's fake."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

import aiohttp

from tailrace.errors import ConfigError, TailraceError, Unauthorized, Unavailable

State = dict[str, Any]  # as GET /admin/state answers
_PARTS = frozenset(
    ("model", "requests", "queues", "running", "tenants", "kv", "tails", "rejects", "step", "prediction")
)
TIMEOUT = aiohttp.ClientTimeout(total=5.0)


class Source(Protocol):
    name: str

    async def state(self) -> State: ...
    async def cancel(self, request_id: str) -> None: ...
    async def change(self, tenant: str, fields: dict[str, Any]) -> None: ...
    async def close(self) -> None: ...


class HttpSource:
    """Raises Unavailable when there is no server, Unauthorized for a key without the scope `admin`."""

    def __init__(self, url: str, key: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url!r}: accepted is http://HOST:PORT", param="--url")
        self.name = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session: aiohttp.ClientSession | None = None

    async def state(self) -> State:
        found: State = await self._ask("GET", "/admin/state")
        if not (isinstance(found, dict) and found.keys() >= _PARTS):
            raise Unavailable(f"what answers at {self.name} is no tailrace server of this version")
        return found

    async def models(self) -> list[dict[str, Any]]:
        """As GET /admin/models answers."""
        found = await self._ask("GET", "/admin/models")
        if not (isinstance(found, dict) and isinstance(found.get("models"), list)):
            raise Unavailable(f"what answers at {self.name} is no tailrace server of this version")
        return list(found["models"])

    async def cancel(self, request_id: str) -> None:
        await self._ask("POST", f"/admin/requests/{quote(request_id, safe='')}/cancel")

    async def change(self, tenant: str, fields: dict[str, Any]) -> None:
        await self._ask("PATCH", f"/admin/tenants/{quote(tenant, safe='')}", fields)

    async def new_key(self, tenant: str, fields: dict[str, Any]) -> dict[str, Any]:
        """As POST /admin/tenants/TENANT/keys answers: with the key, this once."""
        found: dict[str, Any] = await self._ask("POST", f"/admin/tenants/{quote(tenant, safe='')}/keys", fields)
        return found

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=TIMEOUT)
        try:
            async with self._session.request(method, self.name + path, json=body) as response:
                found = await response.json(content_type=None)
                if response.status >= 400:
                    raise _refused(response.status, found)
                return found
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Unavailable(f"no answer from {self.name}: {error or type(error).__name__}") from error


def _refused(status: int, body: Any) -> TailraceError:
    error = body.get("error") if isinstance(body, dict) else None
    said = error.get("message", "") if isinstance(error, dict) else ""
    if status in (401, 403):
        return Unauthorized(f"{said or 'the key was refused'} (--key KEY, with the scope admin)")
    return TailraceError(said or f"status {status}")
