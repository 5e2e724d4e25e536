"""Requests that are deferred: made jobs of one line, looked up, cancelled, followed. Their tenants' alone.

A JobKind: what it runs, and how it ends, is the runner's business (`control/jobs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import orjson

from tailrace.clock import Clock
from tailrace.control.deferred.following import Following
from tailrace.control.deferred.standing import KINDS, REQUEST, Standing
from tailrace.control.keys import Principal
from tailrace.control.streams import Streams, counted
from tailrace.control.webhooks.deliveries import Deliveries
from tailrace.database.job import EndedLine, Job, JobState, Line, LineState, NewLine
from tailrace.database.keeping import Keeping
from tailrace.database.retention import Retention
from tailrace.errors import QueueFull
from tailrace.frozen import frozen
from tailrace.protocol.responses.answer import response_event

_TIME = 24 * 3600.0  # seconds in which it is to be done
_LOOK = 1.0  # seconds between looks for one that runs elsewhere


@frozen
class Wanted:
    """A request that is to be a job. `model`: the name that serves it; `body`: as a request would have it; `about`:
    what is shown of it beside how it stands. `followed`: a background response whose stream is read from the start."""

    id: str
    kind: str
    principal: Principal
    endpoint: str
    model: str
    body: bytes
    about: dict[str, Any]
    webhook: str | None = None
    followed: bool = False


class Deferred:
    """`most`: requests of a tenant that may wait or run. `retention`: seconds that one is kept. `wake` and `stop` are
    the runner's: something is new; a job was cancelled."""

    def __init__(
        self,
        keeping: Keeping,
        streams: Streams,
        deliveries: Deliveries,
        clock: Clock,
        *,
        most: int,
        retention: float,
    ) -> None:
        self._keeping = keeping
        self._streams = streams
        self._deliveries = deliveries
        self._clock = clock
        self._most = most
        self._retention = Retention(retention, clock)
        self.wake: Callable[[], None] = _nothing
        self.stop: Callable[[str], None] = lambda job_id: None

    # --- for whoever asks

    async def add(self, wanted: Wanted) -> Standing:
        """Raises Unavailable, QueueFull, InvalidRequest for a webhook that may not be."""
        tenant, now = wanted.principal.tenant, self._clock.wall()
        if wanted.webhook is not None:
            self._deliveries.check(tenant, wanted.webhook, "webhook")
        kept = await self._keeping.needed()
        if await kept.jobs.live(tenant, KINDS) >= self._most:
            raise QueueFull(
                f"{self._most} requests of tenant {tenant} are jobs already (--max-deferred)", retry_after=60.0
            )
        job = Job(
            wanted.id, wanted.kind, tenant, wanted.principal.key, wanted.endpoint, now, now + _TIME,
            state=JobState.IN_PROGRESS, metadata=wanted.about, started=now, total=1,
        )  # fmt: skip
        webhook = None
        if wanted.webhook is not None:
            webhook = await kept.webhooks.add(tenant, job.id, wanted.webhook, now)
        if wanted.followed:
            self._announce(job)
        line = NewLine(0, str(int(now)), wanted.endpoint, wanted.model, wanted.body.decode())
        await kept.jobs.add(job, [line])
        self.wake()
        return Standing(job, EndedLine(0, line.custom_id, LineState.PENDING, 0, ""), webhook)

    async def find(self, tenant: str, kind: str, job_id: str) -> Standing | None:
        """None also for another tenant's. Raises Unavailable."""
        kept = await self._keeping.needed()
        found = await kept.jobs.find(tenant, kind, job_id)
        if found is None:
            return None
        (line,) = await kept.jobs.ended_lines(job_id, -1, 1)
        return Standing(found[0], line, await kept.webhooks.of(tenant, job_id))

    async def page(self, tenant: str, after: str | None, most: int) -> list[Standing] | None:
        """The newest first, made before `after`; None where that is not there. Raises Unavailable."""
        kept = await self._keeping.needed()
        found = await kept.jobs.page(tenant, REQUEST, after, most)
        if found is None:
            return None
        standing = [await self.find(tenant, REQUEST, job.id) for job, _ in found]
        return [each for each in standing if each is not None]

    async def cancel(self, standing: Standing) -> Standing:
        """One that has ended stays as it is. Raises Unavailable."""
        job = standing.job
        kept = await self._keeping.needed()
        if await kept.jobs.cancel(job.tenant, job.kind, job.id, self._clock.wall()):
            self.stop(job.id)
        return await self.find(job.tenant, job.kind, job.id) or standing

    async def remove(self, standing: Standing) -> None:
        """Forget one that has ended. Raises Unavailable."""
        await (await self._keeping.needed()).jobs.remove(standing.job.id)

    def check(self, standing: Standing, after: int) -> None:
        """Raises NotFound where what follows that event is gone."""
        stream = self._streams.find(standing.job.tenant, standing.job.id)
        if stream is not None:
            stream.check(after)

    async def follow(self, standing: Standing, after: int, idle: float) -> AsyncGenerator[bytes, None]:
        """Its events from behind `after`, as they come; b"" after `idle` seconds of nothing. Where they are not to be
        had, its end alone, once it has one. Raises as `Stream.read`, and Unavailable."""
        job = standing.job
        while True:
            stream = self._streams.find(job.tenant, job.id)
            if stream is not None and (stream.whole or not (stream.ended or standing.ended)):
                after = max(after, stream.base - 1 if after < 0 else 0)
                async with aclosing(stream.read(after, idle)) as reading:
                    async for events in reading:
                        after += counted(events)
                        yield events
                        if not events:
                            break  # it may run elsewhere
                if stream.whole:
                    return
            elif standing.ended:
                yield standing.last_event(after + 1)
                return
            else:
                yield b""
                await asyncio.sleep(_LOOK)
            found = await self.find(job.tenant, job.kind, job.id)
            if found is None:
                return
            standing = found

    def _announce(self, job: Job) -> None:
        """Begin the stream of a background response, before anything else can."""
        stream, response = self._streams.open(job.tenant, job.id), (job.metadata or {})["response"]
        stream.abandoned = lambda: self._streams.drop(stream)
        stream.write(response_event("created", 0, response=response))
        stream.write(response_event("queued", 1, response=response))

    # --- for the runner

    def out(self, line: Line) -> Following:
        return Following(self._streams, line)

    async def begin(self, job: Job) -> None:
        raise AssertionError("a single request has nothing to begin with")

    async def end(self, job: Job) -> None:
        kept = await self._keeping.needed()
        await kept.jobs.end(job, None, None, self._clock.wall())
        if self._retention.due():
            await kept.jobs.forget(KINDS, self._retention.since)
        stream = self._streams.find(job.tenant, job.id)
        if stream is not None and not stream.ended:
            stream.end(whole=False)
        self._deliveries.nudge()


def streamed(body: bytes) -> bytes:
    """The body, asking for a stream."""
    return orjson.dumps({**orjson.loads(body), "stream": True})


def _nothing() -> None:
    pass
