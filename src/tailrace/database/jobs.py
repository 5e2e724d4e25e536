"""The tables of jobs and their lines, and every step from one state to the next.

Several servers may share them. Whoever runs a line has claimed it for a time, its lease, and renews that while it runs;
when the lease is over anyone may claim it anew. A line is ended by its latest claimant alone, in one transaction with
its row in the ledger and the response that is kept of it: so however a server ends, nothing that was finished is lost,
repeated or billed twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Float,
    Index,
    Integer,
    PrimaryKeyConstraint,
    RowMapping,
    Table,
    and_,
    case,
    delete,
    exists,
    func,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.database.database import Database
from tailrace.database.dialect import insert
from tailrace.database.file import StoredFile
from tailrace.database.files import add_files
from tailrace.database.forgetting import forget
from tailrace.database.job import LIVE, Counts, Due, EndedLine, Job, JobState, Line, LineState, NewLine, Result
from tailrace.database.ledger import Row, insert_entries
from tailrace.database.responses import add_responses
from tailrace.database.schema import Text, metadata

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("state", Text, nullable=False, index=True),
    Column("ends_as", Text, nullable=False),
    Column("window", Text, nullable=False),
    Column("input_file", Text, nullable=False),
    Column("output_file", Text, nullable=False),
    Column("error_file", Text, nullable=False),
    Column("metadata", Text, nullable=False),  # JSON
    Column("errors", Text, nullable=False),  # JSON
    Column("started", Float),
    Column("finalizing", Float),
    Column("cancelling", Float),
    Column("ended", Float),
    Column("total", BigInteger, nullable=False),
    Column("counts", Text, nullable=False),  # JSON: of its lines, once it is over
    Column("owner", Text),  # who reads or writes its files
    Column("lease", Float),
    Index(None, "tenant", "kind", "created"),
)

lines = Table(
    "job_lines",
    metadata,
    Column("job", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("custom_id", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("faults", Integer, nullable=False),
    Column("owner", Text),
    Column("lease", Float),
    Column("status", Integer, nullable=False),
    Column("response", Text, nullable=False),
    Column("entry_id", Text, nullable=False),  # of its row in the ledger
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("finished", Float),
    PrimaryKeyConstraint("job", "number"),
    Index(None, "job", "state", "number"),
    Index(None, "state", "owner"),
)

_OPEN = (LineState.PENDING, LineState.RUNNING)
_JSON = ("metadata", "errors")
_JOB = [column for column in jobs.c if column.name not in ("owner", "lease", "counts")]


class Jobs:
    """Every call raises Unavailable while the database is away. `now` and leases are seconds since the epoch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- for whoever asks

    async def add(self, job: Job, new: Sequence[NewLine] = (), owner: str = "", lease: float = 0.0) -> None:
        """With what lines it has already. `owner` goes on with it until `lease`."""
        row = {**_row(job), "counts": "", "owner": owner or None, "lease": lease or None}
        async with self._database.write() as connection:
            await connection.execute(insert(connection, jobs), row)
            if new:
                await connection.execute(insert(connection, lines), [_new_row(job.id, each) for each in new])

    async def find(self, tenant: str, kind: str, job_id: str) -> tuple[Job, Counts] | None:
        """None also for another tenant's."""
        async with self._database.read() as connection:
            query = select(jobs).where(jobs.c.id == job_id, jobs.c.tenant == tenant, jobs.c.kind == kind)
            row = (await connection.execute(query)).mappings().first()
            return None if row is None else (_job(row), await _counts(connection, row))

    async def page(self, tenant: str, kind: str, after: str | None, most: int) -> list[tuple[Job, Counts]] | None:
        """A tenant's, the newest first: those made before `after`. None where that is not there."""
        query = select(jobs).where(jobs.c.tenant == tenant, jobs.c.kind == kind)
        place = tuple_(jobs.c.created, jobs.c.id)
        async with self._database.read() as connection:
            if after is not None:
                row = (await connection.execute(query.where(jobs.c.id == after))).mappings().first()
                if row is None:
                    return None
                query = query.where(place < tuple_(row["created"], row["id"]))
            query = query.order_by(jobs.c.created.desc(), jobs.c.id.desc()).limit(most)
            rows = (await connection.execute(query)).mappings().all()
            return [(_job(row), await _counts(connection, row)) for row in rows]

    async def cancel(self, tenant: str, kind: str, job_id: str, now: float) -> bool:
        """Whether there was something to cancel. Its lines that have not ended never will; see `ended_lines`."""
        mine = (jobs.c.id == job_id, jobs.c.tenant == tenant, jobs.c.kind == kind)
        running = jobs.c.state.in_((JobState.VALIDATING, JobState.IN_PROGRESS))
        states = {"state": JobState.CANCELLING, "ends_as": JobState.CANCELLED, "cancelling": now}
        async with self._database.write() as connection:
            done = await connection.execute(update(jobs).where(*mine, running).values(**states, owner=None, lease=None))
            if done.rowcount:
                await _end_open(connection, job_id, LineState.CANCELLED, now)
        return done.rowcount > 0

    async def live(self, tenant: str, kinds: Collection[str]) -> int:
        """How many of a tenant's are not over."""
        mine = (jobs.c.tenant == tenant, jobs.c.kind.in_(kinds), jobs.c.state.in_(LIVE))
        async with self._database.read() as connection:
            return (await connection.execute(select(func.count()).select_from(jobs).where(*mine))).scalar_one()

    async def remove(self, job_id: str) -> None:
        """One that is over."""
        async with self._database.write() as connection:
            await connection.execute(delete(lines).where(lines.c.job == job_id))
            await connection.execute(delete(jobs).where(jobs.c.id == job_id))

    async def forget(self, kinds: Collection[str], before: float) -> None:
        """Those that were over before."""
        await forget(self._database, jobs.c.id, jobs.c.kind.in_(kinds) & (jobs.c.ended < before), lines.c.job)

    # --- for whoever runs them

    async def due(self, owner: str, now: float) -> list[Due]:
        """What is not over, the oldest first, as `owner` sees it."""
        of_job = lines.c.job == jobs.c.id
        opened = exists().where(of_job, lines.c.state.in_(_OPEN))
        pending = exists().where(of_job, lines.c.state == LineState.PENDING)
        lapsed = exists().where(of_job, lines.c.state == LineState.RUNNING, lines.c.lease < now)
        query = select(*_JOB, jobs.c.owner, jobs.c.lease, opened.label("open"), or_(pending, lapsed).label("ready"))
        async with self._database.read() as connection:
            found = await connection.execute(query.where(jobs.c.state.in_(LIVE)).order_by(jobs.c.created, jobs.c.id))
            return [_due(row, owner, now) for row in found.mappings()]

    async def take(self, job: Job, owner: str, now: float, until: float) -> bool:
        """Lease the job itself for what is to be done with its files; whether it was to be had."""
        free = or_(jobs.c.lease.is_(None), jobs.c.lease < now, jobs.c.owner == owner)
        async with self._database.write() as connection:
            done = await connection.execute(
                update(jobs)
                .where(jobs.c.id == job.id, jobs.c.state == job.state, free)
                .values(owner=owner, lease=until)
            )
        return done.rowcount > 0

    async def add_lines(self, job_id: str, new: Sequence[NewLine]) -> None:
        """Of a job that has not started. Those that are there stay."""
        rows = [_new_row(job_id, each) for each in new]
        async with self._database.write() as connection:
            await connection.execute(insert(connection, lines).on_conflict_do_nothing(), rows)

    async def begin(self, job_id: str, total: int, now: float) -> bool:
        """Its lines are all there."""
        values = {"state": JobState.IN_PROGRESS, "started": now, "total": total, "owner": None, "lease": None}
        return await self._move(job_id, JobState.VALIDATING, values)

    async def refuse(self, job_id: str, errors: Sequence[Mapping[str, Any]], now: float) -> bool:
        """It never starts."""
        said = orjson.dumps(list(errors)).decode()
        values = {"state": JobState.FAILED, "errors": said, "ended": now, "counts": _json_counts(Counts())}
        async with self._database.write() as connection:
            done = await connection.execute(
                update(jobs).where(jobs.c.id == job_id, jobs.c.state == JobState.VALIDATING).values(**values)
            )
            if done.rowcount:
                await connection.execute(delete(lines).where(lines.c.job == job_id))
        return done.rowcount > 0

    async def expire(self, job_id: str, now: float) -> bool:
        """Its time is over: what has not ended never will."""
        running = jobs.c.state.in_((JobState.VALIDATING, JobState.IN_PROGRESS))
        states = {"state": JobState.FINALIZING, "ends_as": JobState.EXPIRED, "finalizing": now}
        async with self._database.write() as connection:
            done = await connection.execute(
                update(jobs).where(jobs.c.id == job_id, running).values(**states, owner=None, lease=None)
            )
            if done.rowcount:
                await _end_open(connection, job_id, LineState.EXPIRED, now)
        return done.rowcount > 0

    async def finalize(self, job_id: str, now: float) -> bool:
        """Every line has ended. Nothing where one has not."""
        opened = exists().where(lines.c.job == job_id, lines.c.state.in_(_OPEN))
        async with self._database.write() as connection:
            done = await connection.execute(
                update(jobs)
                .where(jobs.c.id == job_id, jobs.c.state == JobState.IN_PROGRESS, ~opened)
                .values(state=JobState.FINALIZING, finalizing=now)
            )
        return done.rowcount > 0

    async def end(self, job: Job, output: StoredFile | None, errors: StoredFile | None, now: float) -> bool:
        """It is over, and its files are there. False where it was over already."""
        made = {"output_file": output.id if output else "", "error_file": errors.id if errors else ""}
        writing = jobs.c.state.in_((JobState.FINALIZING, JobState.CANCELLING))
        async with self._database.write() as connection:
            row = (await connection.execute(select(jobs).where(jobs.c.id == job.id))).mappings().one()
            counts = _json_counts(await _counts(connection, row))
            done = await connection.execute(
                update(jobs)
                .where(jobs.c.id == job.id, writing)
                .values(state=jobs.c.ends_as, ended=now, counts=counts, owner=None, lease=None, **made)
            )
            if done.rowcount:
                await add_files(connection, [file for file in (output, errors) if file is not None])
        return done.rowcount > 0

    async def ended_lines(self, job_id: str, after: int, most: int) -> list[EndedLine]:
        """Some of a job's, in order, behind a number."""
        query = select(lines).where(lines.c.job == job_id, lines.c.number > after).order_by(lines.c.number).limit(most)
        async with self._database.read() as connection:
            return [
                EndedLine(row.number, row.custom_id, LineState(row.state), row.status, row.response)
                for row in await connection.execute(query)
            ]

    # --- lines

    async def reclaim(self, owner: str) -> int:
        """Give back what this owner had when it last ended; how many lines."""
        mine = (lines.c.state == LineState.RUNNING, lines.c.owner == owner)
        async with self._database.write() as connection:
            done = await connection.execute(update(lines).where(*mine).values(**_FREE))
            await connection.execute(update(jobs).where(jobs.c.owner == owner).values(owner=None, lease=None))
        return done.rowcount

    async def claim(
        self, owner: str, wanted: Mapping[str, int], models: Mapping[str, Collection[str]], now: float, until: float
    ) -> list[Line]:
        """For each job id at most so many lines, of these models of the job's alone. Never one that another has."""
        claimed: list[Line] = []
        async with self._database.write() as connection:
            for job_id, most in wanted.items():
                numbers = await _free(connection, job_id, models[job_id], now, most)
                if numbers:
                    claimed += await _claimed(connection, job_id, numbers, owner, until)
        return claimed

    async def renew(self, owner: str, held: Collection[tuple[str, int]], until: float) -> set[tuple[str, int]]:
        """Which of these lines the owner still has. All its leases go on, those of jobs too."""
        mine = (lines.c.state == LineState.RUNNING, lines.c.owner == owner)
        async with self._database.write() as connection:
            await connection.execute(update(jobs).where(jobs.c.owner == owner).values(lease=until))
            await connection.execute(update(lines).where(*mine).values(lease=until))
            found = await connection.execute(select(lines.c.job, lines.c.number).where(*mine))
            return {(row.job, row.number) for row in found} & set(held)

    async def give_back(self, given: Iterable[tuple[Line, int]], owner: str) -> None:
        """Lines that are to be tried again, with how many faults each has had."""
        async with self._database.write() as connection:
            for line, faults in given:
                await connection.execute(update(lines).where(_held(line, owner)).values(**_FREE, faults=faults))

    async def finish(self, line: Line, owner: str, result: Result | None, entry: Row, now: float) -> bool:
        """End a line, write its row of the ledger, and keep its response: all or nothing. Whether that was so; not
        where another has claimed it since.

        One that was cancelled or has expired meanwhile stays so, and gets its row alone; None as the result is for who
        has heard of that. The row of an attempt whose line another has claimed says that nobody got it or pays it.
        """
        spent = {name: entry[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")}
        spent["entry_id"] = entry["entry_id"]
        over = and_(
            lines.c.job == line.job,
            lines.c.number == line.number,
            lines.c.attempts == line.attempts,
            lines.c.state.in_((LineState.CANCELLED, LineState.EXPIRED)),
            lines.c.entry_id == "",
        )
        async with self._database.write() as connection:
            ended = False
            if result is not None:
                values = {"state": result.state, "status": result.status, "response": result.body, "finished": now}
                done = await connection.execute(
                    update(lines).where(_held(line, owner)).values(**values, **spent, owner=None, lease=None)
                )
                ended = done.rowcount > 0
                if ended and result.kept is not None:
                    await add_responses(connection, [(line.tenant, result.kept, now)])
            if not (ended or (await connection.execute(update(lines).where(over).values(**spent))).rowcount):
                entry = {**entry, "outcome": "cancelled", "price": 0}
            await insert_entries(connection, [entry])
        return ended

    async def _move(self, job_id: str, state: JobState, values: Mapping[str, Any]) -> bool:
        async with self._database.write() as connection:
            done = await connection.execute(
                update(jobs).where(jobs.c.id == job_id, jobs.c.state == state).values(**values)
            )
        return done.rowcount > 0


_FREE = {"state": LineState.PENDING, "owner": None, "lease": None}


def _held(line: Line, owner: str) -> ColumnElement[bool]:
    """Whether this claim is still the latest."""
    return and_(
        lines.c.job == line.job,
        lines.c.number == line.number,
        lines.c.state == LineState.RUNNING,
        lines.c.owner == owner,
        lines.c.attempts == line.attempts,
    )


async def _free(connection: AsyncConnection, job_id: str, models: Collection[str], now: float, most: int) -> list[int]:
    """Numbers of lines that nobody has, locked. Those of the lapsed leases last."""
    found: list[int] = []
    mine = (lines.c.job == job_id, lines.c.model.in_(models))
    lapsed = and_(lines.c.state == LineState.RUNNING, lines.c.lease < now)
    for free in (lines.c.state == LineState.PENDING, lapsed):
        query = select(lines.c.number).where(*mine, free).order_by(lines.c.number).limit(most - len(found))
        if len(found) < most:
            found += (await connection.execute(query.with_for_update(skip_locked=True))).scalars()
    return found


async def _claimed(
    connection: AsyncConnection, job_id: str, numbers: Sequence[int], owner: str, until: float
) -> list[Line]:
    these = (lines.c.job == job_id, lines.c.number.in_(numbers))
    values = {"state": LineState.RUNNING, "owner": owner, "lease": until, "attempts": lines.c.attempts + 1}
    await connection.execute(update(lines).where(*these).values(**values))
    query = select(lines, jobs.c.kind, jobs.c.tenant, jobs.c.key).join(jobs, jobs.c.id == lines.c.job).where(*these)
    return [
        Line(
            row.job, row.kind, row.tenant, row.key, row.number, row.custom_id, row.url, row.model, row.body,
            row.attempts, row.faults,
        )
        for row in await connection.execute(query.order_by(lines.c.number))
    ]  # fmt: skip


async def _end_open(connection: AsyncConnection, job_id: str, state: LineState, now: float) -> None:
    opened = (lines.c.job == job_id, lines.c.state.in_(_OPEN))
    await connection.execute(update(lines).where(*opened).values(state=state, owner=None, lease=None, finished=now))


async def _counts(connection: AsyncConnection, row: RowMapping) -> Counts:
    """Looked up in its lines while it goes on, so that it cannot drift from them."""
    if row["counts"]:
        return Counts(**orjson.loads(row["counts"]))
    tokens = [lines.c.prompt_tokens, lines.c.cached_tokens, lines.c.completion_tokens]
    states = [func.sum(case((lines.c.state == state, 1), else_=0)) for state in (LineState.DONE, LineState.FAILED)]
    query = select(func.count(), *states, *[func.sum(each) for each in tokens]).where(lines.c.job == row["id"])
    found = [int(each or 0) for each in (await connection.execute(query)).one()]
    return Counts(*found)


def _json_counts(counts: Counts) -> str:
    return orjson.dumps({name: getattr(counts, name) for name in Counts.__slots__}).decode()  # type: ignore[attr-defined]


def _row(job: Job) -> dict[str, Any]:
    row = {column.name: getattr(job, column.name) for column in _JOB}
    return {**row, **{name: orjson.dumps(row[name]).decode() for name in _JSON}}


def _job(row: RowMapping) -> Job:
    values = {column.name: row[column.name] for column in _JOB}
    values.update({name: orjson.loads(values[name]) for name in _JSON})
    found = Job(**values)
    return replace(found, state=JobState(found.state), ends_as=JobState(found.ends_as))


def _due(row: RowMapping, owner: str, now: float) -> Due:
    leased = row["owner"] not in (None, owner) and row["lease"] >= now
    return Due(_job(row), leased, bool(row["open"]), bool(row["ready"]))


def _new_row(job_id: str, new: NewLine) -> dict[str, Any]:
    return {
        "job": job_id,
        "number": new.number,
        "custom_id": new.custom_id,
        "url": new.url,
        "model": new.model,
        "body": new.body,
        "state": LineState.PENDING,
        "attempts": 0,
        "faults": 0,
        "status": 0,
        "response": "",
        "entry_id": "",
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
    }
