"""Batches: jobs made of a file of requests, whose answers become a file of outputs and a file of errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import orjson

from tailrace.control.answering.plane import Plane
from tailrace.control.jobs.input import InputReader, LineError
from tailrace.control.jobs.line import Collected, LineOut
from tailrace.database.file import StoredFile
from tailrace.database.job import EndedLine, Job, Line, LineState
from tailrace.database.keeping import Keeping
from tailrace.database.retention import Retention

BATCH = "batch"
OUTPUT_PURPOSE = "batch_output"
INPUT_PURPOSE = "batch"
_PAGE = 100  # lines that are in memory at once
_WHY = {
    LineState.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request was finished"),
    LineState.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired"),
}


class Batches:
    """A JobKind. `most_bytes`: in a line. `retention`: seconds until batches and files are forgotten, which is looked
    after when a batch ends; 0: never."""

    def __init__(self, plane: Plane, keeping: Keeping, *, most_bytes: int, retention: float = 0.0) -> None:
        self._plane = plane
        self._keeping = keeping
        self._most_bytes = most_bytes
        self._retention = Retention(retention, plane.clock)

    def out(self, line: Line) -> LineOut:
        return Collected()

    async def begin(self, job: Job) -> None:
        kept, wall = await self._keeping.needed(), self._plane.clock.wall
        reader = InputReader(job.endpoint, self._find(job.tenant), most_bytes=self._most_bytes)
        if await kept.files.find(job.tenant, job.input_file) is None:
            reader.errors.append(LineError("file_not_found", f"There is no file {job.input_file}"))
        else:
            async for data in kept.files.content(job.input_file):
                new = await asyncio.to_thread(reader.feed, data)
                if new and not reader.errors:
                    await kept.jobs.add_lines(job.id, new)
                if reader.over:
                    break
            new = [] if reader.over else reader.end()
            if new and not reader.errors:
                await kept.jobs.add_lines(job.id, new)
        if reader.errors:
            await kept.jobs.refuse(job.id, [error.body() for error in reader.errors], wall())
        else:
            await kept.jobs.begin(job.id, reader.count, wall())

    async def end(self, job: Job) -> None:
        """The same files under the same names however often it is begun."""
        kept = await self._keeping.needed()
        output = await self._write(job, "output", lambda line: line.state is LineState.DONE)
        errors = await self._write(job, "error", lambda line: line.state is not LineState.DONE)
        await kept.jobs.end(job, output, errors, self._plane.clock.wall())
        if self._retention.due():
            await kept.jobs.forget((BATCH,), self._retention.since)
            await kept.files.forget(self._retention.since)

    async def _write(self, job: Job, name: str, wanted: Callable[[EndedLine], bool]) -> StoredFile | None:
        """None where no line is wanted."""
        files = (await self._keeping.needed()).files
        file_id = f"file-{job.id.removeprefix('batch_')}{name[0]}"
        size = await files.write(file_id, self._lines(job, wanted))
        if not size:
            return None
        return StoredFile(file_id, job.tenant, OUTPUT_PURPOSE, f"{job.id}_{name}.jsonl", size, self._plane.clock.wall())

    async def _lines(self, job: Job, wanted: Callable[[EndedLine], bool]) -> AsyncIterator[bytes]:
        jobs, after = (await self._keeping.needed()).jobs, -1
        while page := await jobs.ended_lines(job.id, after, _PAGE):
            yield b"".join([_shown(job, line) for line in page if wanted(line)])
            after = page[-1].number

    def _find(self, tenant: str) -> Callable[[str | None], str]:
        return lambda name: self._plane.models.find(name, tenant).name


def _shown(job: Job, line: EndedLine) -> bytes:
    """As OpenAI's files have it."""
    response = error = None
    if line.state in _WHY:
        code, message = _WHY[line.state]
        error = {"code": code, "message": message}
    else:
        request_id, body = f"{job.id}-{line.number}", orjson.Fragment(line.body)
        response = {"status_code": line.status, "request_id": request_id, "body": body}
    shown = {
        "id": f"batch_req_{job.id.removeprefix('batch_')}_{line.number}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
    return orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE)
