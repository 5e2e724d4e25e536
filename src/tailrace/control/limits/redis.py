"""Limits kept in Redis, for several gateways: one script call is one atomic operation. Needs the `redis` extra.

A gateway that dies leaves its holds to their leases. A Redis that cannot be reached, or hangs, costs the first caller
`timeout` seconds and the others nothing (`circuit`): their calls raise Unavailable at once. What that means for a
request, and that what ends is told later, is the `limiter`'s.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tailrace.clock import Clock, SystemClock
from tailrace.control.limits.base import MICRO, NOTHING, Account, Amounts, Ask, Change, Kind, Outcome
from tailrace.control.limits.circuit import Circuit
from tailrace.errors import ConfigError, Domain, ErrorKind, Unavailable
from tailrace.knobs import without_password

if TYPE_CHECKING:
    from redis.asyncio import Redis

_PAUSE = 1.0  # seconds between tries of a Redis that did not answer
_CONNECTIONS = 8
_SIZE = len(Amounts._fields)


class RedisLimits:
    shared = True

    def __init__(self, url: str, lease: float, *, timeout: float = 1.0, clock: Clock | None = None) -> None:
        """`url` as `redis://HOST:PORT/DB`; `timeout` seconds for a whole call: a free connection, connecting, sending
        once, the answer. Raises ConfigError for a wrong address, or without the package."""
        try:
            from redis import asyncio as library  # noqa: PLC0415 - an extra
            from redis.asyncio.retry import Retry  # noqa: PLC0415
            from redis.backoff import NoBackoff  # noqa: PLC0415
        except ImportError:
            raise ConfigError(
                "limits in Redis need the package redis: pip install 'tailrace[redis]'", param="control.limits_url"
            ) from None
        _check(url)
        try:
            pool = library.BlockingConnectionPool.from_url(
                url, max_connections=_CONNECTIONS, timeout=timeout, socket_timeout=timeout,
                socket_connect_timeout=timeout, health_check_interval=30, retry=Retry(NoBackoff(), 0),
                decode_responses=True,
            )  # fmt: skip
        except ValueError as error:
            raise ConfigError(
                f"control.limits_url = {without_password(url)!r}: {error}", param="control.limits_url"
            ) from None
        self._client: Redis = library.Redis.from_pool(pool)
        self.lease = lease
        self._timeout = timeout
        self._circuit = Circuit(clock or SystemClock(), _PAUSE)
        text = resources.files(__package__).joinpath("script.lua").read_text(encoding="utf-8")
        self._script = self._client.register_script(text)

    async def reserve(self, hold: str, accounts: Sequence[Account], ask: Ask) -> Outcome:
        return _outcome(await self._asked("reserve", hold, accounts, ask), accounts)

    async def grow(self, hold: str, accounts: Sequence[Account], ask: Ask) -> Outcome:
        return _outcome(await self._asked("grow", hold, accounts, ask), accounts)

    async def change(self, hold: str, accounts: Sequence[Account], change: Change) -> None:
        flags = (0, 0, int(change.done))
        await self._call("change", hold, accounts, flags, (change.spent, change.known, change.extra))

    async def standing(self, account: Account) -> tuple[Amounts, tuple[float, ...]]:
        answer = await self._call("standing", "", (account,), (0, 0, 0), (NOTHING,))
        return Amounts(*map(int, answer[:_SIZE])), tuple(map(float, answer[_SIZE:]))

    async def close(self) -> None:
        await self._client.aclose()

    async def _asked(self, op: str, hold: str, accounts: Sequence[Account], ask: Ask) -> Any:
        return await self._call(op, hold, accounts, (int(ask.line), int(ask.force), 0), (ask.exact, ask.learned))

    async def _call(
        self,
        op: str,
        hold: str,
        accounts: Sequence[Account],
        flags: tuple[int, int, int],
        rows: Sequence[Amounts],
    ) -> Any:
        from redis.exceptions import RedisError, ResponseError  # noqa: PLC0415 - an extra

        arguments: list[str | int] = [op, hold, round(self.lease * MICRO), *flags, len(accounts)]
        for account in accounts:
            arguments += [account.name, *account.caps]
        for row in rows:
            arguments += row
        if not self._circuit.allows():
            raise _unavailable("the last call failed")
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._script(keys=[_prefix(accounts[0].name)], args=arguments)
        except (RedisError, OSError, TimeoutError) as error:
            if isinstance(error, ResponseError):  # an answer, if not one that helps this caller
                self._circuit.succeeded()
            else:
                self._circuit.failed(error)
            raise _unavailable(type(error).__name__) from error
        self._circuit.succeeded()
        return answer


def _check(url: str) -> None:
    """The library overlooks a wrong database, and finds a wrong option at the first request only."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # which it says itself
    if parts.query or parts.fragment or (parts.scheme != "unix" and not re.fullmatch(r"(/\d*)?", parts.path)):
        raise ConfigError(
            f"control.limits_url = {without_password(url)!r}: accepted is redis://HOST:PORT/DB, DB a number",
            param="control.limits_url",
        )


def _unavailable(why: str) -> Unavailable:
    return Unavailable(
        f"The limits cannot be checked: {why}", code="limits_unavailable", retry_after=_PAUSE,
        domain=Domain.EXTERNAL, kind=ErrorKind.UPSTREAM,
    )  # fmt: skip


def _prefix(account: str) -> str:
    """Of all that belongs to a tenant; the braces keep it on one node of a cluster."""
    return f"{{tailrace:{account.partition('/')[0]}}}"


def _outcome(answer: Sequence[Any], accounts: Sequence[Account]) -> Outcome:
    kind, counter, account = Kind(int(answer[0])), int(answer[1]), int(answer[2])
    wait, value, cap = float(answer[3]), float(answer[4]), float(answer[5])
    return Outcome(
        kind,
        Amounts._fields[counter - 1] if counter else "",
        accounts[account - 1].name if account else "",
        None if wait < 0 else wait / MICRO,
        value,
        cap,
        int(answer[6]),
    )
