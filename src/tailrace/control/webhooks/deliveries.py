"""Brings webhooks to their targets: what is due is tried, what fails is tried again later, for a day and a half.

At least once: who is killed between an answer and its note tries again, with the same id. Where it may go is asked
anew at each try, since the settings may have changed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from tailrace.clock import Clock
from tailrace.control.deferred.standing import RESPONSE, STATUS
from tailrace.control.tenants import Tenants
from tailrace.control.webhooks.target import check_target
from tailrace.database.job import LineState
from tailrace.database.keeping import Keeping
from tailrace.database.retention import Retention
from tailrace.database.webhook import DELIVERED, FAILED, WAITING, Webhook
from tailrace.errors import ConfigError, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from tailrace.control.webhooks.poster import Posted, Poster
    from tailrace.database.kept import Kept

log = logging.getLogger(__name__)

_AFTER = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0, 12 * 3600.0, 12 * 3600.0)  # seconds between tries
_LEASE = 60.0  # seconds that a try may take, notes included
_LOOK = 5.0  # seconds between looks for what others have left
_AT_ONCE = 16


class Deliveries:
    """`hosts`: where webhooks may go; without any nothing runs. `start()` with a running loop, `close()` in the end.
    `nudge()` when there is something to send. `retention`: seconds after which one that has ended is forgotten; 0:
    never. `seed` is of the jitter between tries."""

    def __init__(
        self,
        keeping: Keeping,
        tenants: Tenants,
        hosts: Sequence[str],
        clock: Clock,
        *,
        retention: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._keeping = keeping
        self._tenants = tenants
        self._hosts = hosts
        self._clock = clock
        self._retention = Retention(retention, clock)
        self.pending = 0  # that were to be sent when it looked last
        self.tried: Counter[str] = Counter()  # by what came of it
        self._random = random.Random(seed)
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._hosts and self._keeping.wanted and self._task is None:
            self._task = asyncio.create_task(self._run())

    def nudge(self) -> None:
        self._news.set()

    def check(self, tenant: str, url: str, param: str) -> None:
        """Raises InvalidRequest for a webhook that would never be sent."""
        check_target(url, self._hosts, param)
        if not self._tenants[tenant].webhook_secret:
            raise InvalidRequest(
                f"The tenant {tenant} has no webhook_secret in the settings, with which webhooks are signed",
                param=param,
                code="webhook_not_allowed",
            )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        from tailrace.control.webhooks.poster import Poster  # noqa: PLC0415 - its HTTP client takes long to import

        try:
            kept = await self._keeping.opened()
        except ConfigError:
            return
        poster = Poster()
        try:
            while True:
                if not await self._round(kept, poster):
                    await self._pause()
        finally:
            await poster.close()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_LOOK):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    async def _round(self, kept: Kept, poster: Poster) -> bool:
        """Whether anything was due."""
        try:
            await kept.webhooks.ripen(self._clock.wall(), self._event)
            found = await kept.webhooks.claim(self._clock.wall(), _LEASE, _AT_ONCE)
            await asyncio.gather(*(self._deliver(kept, poster, each) for each in found))
            self.pending = await kept.webhooks.pending()
            if self._retention.due():
                await kept.webhooks.forget(self._retention.since)
        except Unavailable:
            return False
        except Exception:
            log.exception("webhooks could not be sent")
            return False
        return bool(found)

    def _event(self, webhook: Webhook, kind: str, ended_as: str) -> str:
        """OpenAI's form of an event, which names what it is about and holds nothing of it."""
        about = "response" if kind == RESPONSE else "job"
        event = {"id": webhook.id, "object": "event", "created_at": int(self._clock.wall())}
        kept = {"type": f"{about}.{STATUS[LineState(ended_as)]}", "data": {"id": webhook.subject}}
        return orjson.dumps(event | kept).decode()

    async def _deliver(self, kept: Kept, poster: Poster, webhook: Webhook) -> None:
        posted = await self._try(poster, webhook)
        state, after = self._next(posted, webhook.attempts)
        if state == FAILED:
            log.warning("webhook %s of tenant %s is given up: %s", webhook.id, webhook.tenant, posted.error)
        self.tried["again" if state == WAITING else state] += 1
        due, attempts = self._clock.wall() + after if state == WAITING else None, webhook.attempts + 1
        now = replace(webhook, state=state, attempts=attempts, due=due)
        await kept.webhooks.tried(replace(now, status=posted.status, error=posted.error or None))

    async def _try(self, poster: Poster, webhook: Webhook) -> Posted:
        from tailrace.control.webhooks.poster import Posted  # noqa: PLC0415

        try:
            self.check(webhook.tenant, webhook.url, "webhook")
        except (InvalidRequest, KeyError) as error:
            return Posted(None, str(error))
        secret = self._tenants[webhook.tenant].webhook_secret
        return await poster.post(webhook.url, webhook.id, webhook.body.encode(), secret, self._clock.wall())

    def _next(self, posted: Posted, attempts: int) -> tuple[str, float]:
        """The state after a try with so many before it, and the seconds until the next one."""
        if posted.arrived:
            return DELIVERED, 0.0
        if posted.unwanted or attempts >= len(_AFTER):
            return FAILED, 0.0
        return WAITING, _AFTER[attempts] * self._random.uniform(0.8, 1.2)
