"""Runs the jobs of the database, beside whatever else this server does.

It claims lines while the backends have room for more, renews the claims while they run, and ends each in one
transaction with its row of the ledger and the response that is kept of it. Nothing asks again and again: it is woken by
new jobs and by the end of lines, and looks for other servers' jobs now and then. While the server stops it claims
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from tailrace.control.answering.plane import Plane
from tailrace.control.jobs.fair import shares
from tailrace.control.jobs.kind import JobKind
from tailrace.control.jobs.line import Again, LineRun
from tailrace.database.job import Due, Job, JobState, Line, Result
from tailrace.database.keeping import Keeping
from tailrace.errors import ConfigError, Unavailable
from tailrace.observe.entry import Entry

log = logging.getLogger(__name__)

_LEASE = 30.0  # seconds
_RENEW = 8.0  # seconds between renewals
_POLL = 5.0  # seconds between looks for jobs that came in elsewhere
_RAMP = 0.25  # seconds between looks for room, which cost nothing, while lines are there and room is not
_BESIDE = 32  # a line for so many sequences that the backends take, while others have requests there
_QUIET = 5.0  # seconds since the last of those was seen, and since the first look
_AHEAD = 2  # lines that wait for room, so that it is taken at once
_AGAIN = 1.0  # seconds between tries while the database is away
_LAST = 5.0  # seconds at the end for what is being written
_LEAST_PAUSE = 0.5  # seconds

T = TypeVar("T")


class JobRunner:
    """`start()` with what is kept started, `close()` in the end. `most`: lines at once, 0: half of what the backends
    take, and few while others have requests there. `kinds` by the name that jobs have for them. `remember` takes the
    rows of the ledger that no line ends with."""

    def __init__(
        self,
        plane: Plane,
        keeping: Keeping,
        kinds: Mapping[str, JobKind],
        remember: Callable[[Entry], None],
        *,
        most: int = 0,
    ) -> None:
        self._plane = plane
        self._keeping = keeping
        self._kinds = kinds
        self._remember = remember
        self._most = most
        self.seen: list[Due] = []  # what was not over when it looked last
        self.ended: Counter[str] = Counter()  # attempts at lines, by what came of them
        self._woken = asyncio.Event()
        self._stale = True  # something has changed that only the database knows
        self._look_at = 0.0  # when that is taken for granted
        self._busy_until = 0.0  # others have requests there, or may well have again
        self._ready: dict[str, Job] = {}  # with lines that nobody has, the oldest first
        self._paused: dict[tuple[str, str], float] = {}  # until when nothing of (job, model) is tried
        self._runs: dict[tuple[str, int], tuple[LineRun, asyncio.Task[None]]] = {}
        self._given_up: set[tuple[str, int]] = set()  # lines that have ended elsewhere, cancelled or taken away
        self._steps: dict[str, asyncio.Task[None]] = {}  # what is being done with the files of jobs
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def owner(self) -> str:
        """The name under which it claims."""
        return self._plane.server

    @property
    def running(self) -> int:
        """Lines that it has."""
        return len(self._runs)

    def start(self) -> None:
        if self._keeping.wanted and not self._tasks:
            self._tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._renew())]

    def wake(self) -> None:
        """A job is new, or was changed."""
        self._stale = True
        self._woken.set()

    def stop(self, job_id: str) -> None:
        """It was cancelled, or is over: give its lines up."""
        for name in [name for name in self._runs if name[0] == job_id]:
            self._give_up(name)
        self.wake()

    async def close(self) -> None:
        """Give back what has not ended. What has is written."""
        for task in self._tasks:
            task.cancel()
        for run, task in self._runs.values():
            if run.active and run.line.name not in self._given_up:
                task.cancel()
        for task in self._steps.values():
            task.cancel()
        everything = [*self._tasks, *self._steps.values(), *(task for _, task in self._runs.values())]
        if not everything:
            return
        await asyncio.wait(everything, timeout=_LAST)
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)
        if self._keeping.now is not None:
            with suppress(Unavailable):
                await self._keeping.now.jobs.reclaim(self.owner)

    # --- inside

    async def _work(self) -> None:
        try:
            kept = await self._keeping.opened()
        except ConfigError:
            return
        await self._insist(lambda: kept.jobs.reclaim(self.owner))
        while True:
            self._woken.clear()
            pause = _POLL
            if not self._plane.pipeline.draining:
                try:
                    pause = await self._step()
                except Unavailable:
                    pause = _AGAIN
                except Exception:
                    log.exception("jobs: a look at them failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    async def _step(self) -> float:
        """Do what is to be done now; seconds until the next look, if nobody wakes it."""
        now = self._plane.clock.now()
        over = [name for name, until in self._paused.items() if until <= now]
        for name in over:
            del self._paused[name]
        self._stale |= bool(over)
        if not self._ready:
            self._busy_until = now + _QUIET
        if self._stale or now >= self._look_at:
            self._stale, self._look_at = False, now + _POLL
            try:
                await self._survey()
            except BaseException:
                self._stale = True
                raise
        if self._ready:
            places = self._places()
            if places > 0:
                await self._claim(places)
        if self._stale:
            return 0.0
        waits = [max(until - now, 0.0) for until in self._paused.values()]
        return min([_RAMP if self._ready else _POLL, *waits])

    async def _survey(self) -> None:
        """Which jobs are not over, and what each needs next."""
        jobs, wall = (await self._keeping.needed()).jobs, self._plane.clock.wall()
        self._ready = {}
        self.seen = await jobs.due(self.owner, wall)
        for due in self.seen:
            job = due.job
            if job.kind not in self._kinds:
                continue
            if job.state in (JobState.VALIDATING, JobState.IN_PROGRESS) and job.expires <= wall:
                if await jobs.expire(job.id, wall):
                    self.stop(job.id)
            elif job.state is JobState.IN_PROGRESS:
                await self._goes_on(due, wall)
            elif not due.leased and job.id not in self._steps:
                self._steps[job.id] = asyncio.create_task(self._files(job))

    async def _goes_on(self, due: Due, wall: float) -> None:
        if due.ready and due.job.tenant in self._plane.pipeline.tenants:
            self._ready[due.job.id] = due.job
        elif not due.open and await (await self._keeping.needed()).jobs.finalize(due.job.id, wall):
            self.wake()

    async def _files(self, job: Job) -> None:
        """What is to be done before its first line, or after its last."""
        jobs, wall = (await self._keeping.needed()).jobs, self._plane.clock.wall()
        kind = self._kinds[job.kind]
        try:
            if await jobs.take(job, self.owner, wall, wall + _LEASE):
                await (kind.begin if job.state is JobState.VALIDATING else kind.end)(job)
        except Unavailable:
            await asyncio.sleep(_AGAIN)
        except Exception:
            log.exception("job %s: what is %s failed", job.id, job.state)
            await asyncio.sleep(_LEASE)
        finally:
            del self._steps[job.id]
            self.wake()

    def _places(self) -> int:
        """Lines that could be claimed: what the backends would start now, and a few that wait for them."""
        lanes, now = self._plane.pipeline.lanes, self._plane.clock.now()
        if any(not run.yields for lane in lanes for run in (*lane.running.values(), *lane.queue)):
            self._busy_until = now + _QUIET
        slots = sum(lane.backend.caps.max_sequences for lane in lanes)
        most = self._most or max(slots // (_BESIDE if now < self._busy_until else 2), 1)
        starts = sum(max(lane.room().starts, 0) for lane in lanes if not lane.queue)
        waiting = sum(run.waits for run, _ in self._runs.values())
        return min(most - len(self._runs), starts + _AHEAD - waiting)

    async def _claim(self, places: int) -> None:
        tenants, clock = self._plane.pipeline.tenants, self._plane.clock
        models = {job.id: self._models(job) for job in self._ready.values()}
        ready = [job for job in self._ready.values() if models[job.id]]
        running = Counter(run.line.tenant for run, _ in self._runs.values())
        wanted = shares(places, ready, running, lambda name: tenants[name].weight)
        if not wanted:
            return
        jobs, wall = (await self._keeping.needed()).jobs, clock.wall()
        claimed = await jobs.claim(self.owner, wanted, models, wall, wall + _LEASE)
        got = Counter(line.job for line in claimed)
        for line in claimed:
            self._begin(line)
        for job_id in [job_id for job_id, most in wanted.items() if got[job_id] < most]:
            self._ready.pop(job_id, None)  # there is no more, but for what is paused, or of other servers' models
            if not any(name[0] == job_id for name in self._runs) and await jobs.finalize(job_id, wall):
                self.wake()

    def _models(self, job: Job) -> tuple[str, ...]:
        """What of it may be tried here now."""
        names = self._plane.models.names(job.tenant)
        return tuple(name for name in names if (job.id, name) not in self._paused)

    def _begin(self, line: Line) -> None:
        run = LineRun(self._plane, line, self._kinds[line.kind].out(line))
        task = asyncio.create_task(self._line(run))
        self._runs[line.name] = run, task

    async def _line(self, run: LineRun) -> None:
        line, written = run.line, False
        try:
            verdict = await self._verdict(run)
            jobs = (await self._keeping.needed()).jobs
            if isinstance(verdict, Again):
                self._cut_short(run)
                self.ended["again"] += 1
                again = [(line, verdict.faults)]
                pause = max(verdict.after, _LEAST_PAUSE)
                self._paused[line.job, line.model] = self._plane.clock.now() + pause
                await self._insist(lambda: jobs.give_back(again, self.owner))
            else:
                row = run.account(given_up=verdict is None).row()
                now = self._plane.clock.wall
                written = await self._insist(lambda: jobs.finish(line, self.owner, verdict, row, now()))
                if written and verdict is not None:
                    self.ended[verdict.state] += 1
        except asyncio.CancelledError:
            self._cut_short(run, given_up=True)
            raise
        except Exception:
            log.exception("line %s of job %s could not be ended", line.number, line.job)
        finally:
            run.end(written=written)
            del self._runs[line.name]
            self._given_up.discard(line.name)
            self._stale |= line.job not in self._ready
            self._woken.set()

    def _cut_short(self, run: LineRun, *, given_up: bool = False) -> None:
        entry = run.cut_short(given_up=given_up)
        if entry is not None:
            self._remember(entry)

    async def _verdict(self, run: LineRun) -> Result | Again | None:
        """None for a line that has ended elsewhere meanwhile."""
        try:
            return await run.run()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if run.line.name in self._given_up and task.uncancel() == 0:
                return None
            raise

    def _give_up(self, name: tuple[str, int]) -> None:
        run, task = self._runs[name]
        if run.active and name not in self._given_up:
            self._given_up.add(name)
            task.cancel()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW)
            held = list(self._runs)
            if not (held or self._steps):
                continue
            with suppress(Unavailable):
                jobs = (await self._keeping.needed()).jobs
                still = await jobs.renew(self.owner, held, self._plane.clock.wall() + _LEASE)
                for name in held:
                    if name not in still and name in self._runs:
                        self._give_up(name)

    async def _insist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Until the database takes it."""
        while True:
            try:
                return await write()
            except Unavailable:
                await asyncio.sleep(_AGAIN)
