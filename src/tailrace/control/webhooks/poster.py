"""One try to deliver a webhook: a signed POST, bounded in time, that follows nothing and reads no answer.

Signatures are those of Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`, with the bytes behind `whsec_`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import socket
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from tailrace.control.webhooks.target import allowed_address
from tailrace.frozen import frozen

_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_SECRET = "whsec_"


@frozen
class Posted:
    """`status` None: there was no answer; `error` says why, for the webhook's owner."""

    status: int | None
    error: str = ""

    @property
    def arrived(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def unwanted(self) -> bool:
        """Nobody will ever take it there."""
        return self.status == 410


class Poster:
    """`close()` in the end."""

    def __init__(self) -> None:
        connector = aiohttp.TCPConnector(resolver=_Checked(), use_dns_cache=False, force_close=True, limit=16)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=_TIMEOUT, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )

    async def post(self, url: str, event_id: str, body: bytes, secret: str, now: float) -> Posted:
        """`url` has been checked; `now` in seconds since the epoch. Raises nothing."""
        headers = signed(event_id, body, secret, now)
        headers |= {"content-type": "application/json", "user-agent": "tailrace"}
        address = URL(url)
        try:
            if not _literal_allowed(address.host or ""):
                return Posted(None, "the address is not one that webhooks may go to")
            async with self._session.post(address, data=body, headers=headers, allow_redirects=False) as answer:
                return Posted(answer.status, "" if answer.ok and answer.status < 300 else f"status {answer.status}")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return Posted(None, _reason(error))

    async def close(self) -> None:
        await self._session.close()


def signed(event_id: str, body: bytes, secret: str, now: float) -> dict[str, str]:
    """The headers that say what it is, and that it is from here."""
    stamp = str(int(now))
    key = base64.b64decode(secret.removeprefix(_SECRET))
    digest = hmac.new(key, f"{event_id}.{stamp}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": event_id, "webhook-timestamp": stamp, "webhook-signature": signature}


class _Checked(AbstractResolver):
    """Names to addresses that webhooks may go to; one that may not makes the name useless."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family)
        for *_, address in found:
            if not allowed_address(host, str(address[0])):
                raise OSError(None, "the name stands for an address that webhooks may not go to")
        return [_result(host, port, each) for each in found]

    async def close(self) -> None:
        pass


def _result(host: str, port: int, found: tuple[Any, ...]) -> ResolveResult:
    return ResolveResult(
        hostname=host, host=found[4][0], port=port, family=found[0], proto=found[2], flags=socket.AI_NUMERICHOST
    )


def _literal_allowed(host: str) -> bool:
    """What is an address already is never resolved."""
    try:
        return allowed_address(host, host)
    except ValueError:
        return True


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer within 10 s"
    cause = getattr(error, "os_error", None) or error
    said = ascii(str(getattr(cause, "strerror", None) or cause))[1:-1]  # who is asked may have written it
    return f"{type(error).__name__}: {said}"[:200]
