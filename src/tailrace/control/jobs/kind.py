"""What differs between the kinds of jobs."""

from __future__ import annotations

from typing import Protocol

from tailrace.control.jobs.line import LineOut
from tailrace.database.job import Job, Line


class JobKind(Protocol):
    """What its methods do may be done again, also by another server, when this one ends on the way."""

    def out(self, line: Line) -> LineOut:
        """Where a line's answer goes."""
        ...

    async def begin(self, job: Job) -> None:
        """Move a job that is `validating` on. Raises Unavailable."""
        ...

    async def end(self, job: Job) -> None:
        """Move a job on whose lines have all ended. Raises Unavailable."""
        ...
