"""What jobs are, wherever they are kept: work that outlives the connection that asked for it, in lines.

A job goes through `JobState`, a line through `LineState`; only the tables (`database.jobs`) move them on.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Any

from tailrace.database.response import KeptResponse
from tailrace.frozen import frozen


class JobState(StrEnum):
    VALIDATING = "validating"  # its lines are being read and checked
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"  # every line has ended; what it made is being written
    CANCELLING = "cancelling"  # the same, after it was cancelled
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


LIVE = (JobState.VALIDATING, JobState.IN_PROGRESS, JobState.FINALIZING, JobState.CANCELLING)


class LineState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"  # by its owner, until the lease is over
    DONE = "done"
    FAILED = "failed"  # by its own fault: the error is its answer
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@frozen
class Job:
    """Times are seconds since the epoch. `kind` says who made it and what becomes of its answers. `ends_as`: what it
    becomes once all its lines have ended. `errors` are those that kept it from starting."""

    id: str
    kind: str
    tenant: str
    key: str  # the name of the API key that asked for it
    endpoint: str
    created: float
    expires: float
    state: JobState = JobState.VALIDATING
    ends_as: JobState = JobState.COMPLETED
    window: str = ""
    input_file: str = ""
    output_file: str = ""
    error_file: str = ""
    metadata: dict[str, Any] | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    started: float | None = None
    finalizing: float | None = None
    cancelling: float | None = None
    ended: float | None = None
    total: int = 0


@frozen
class Counts:
    """Of a job's lines, and the tokens of those that have ended."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@frozen
class NewLine:
    """`body`: JSON, as a request would have it. `model`: the name that serves it."""

    number: int
    custom_id: str
    url: str
    model: str
    body: str


@frozen
class Line:
    """One that somebody has claimed. `attempts` counts the claims, this one too: who claimed it may end it only while
    it is the latest. `faults`: those that ended in an error of ours."""

    job: str
    kind: str
    tenant: str
    key: str
    number: int
    custom_id: str
    url: str
    model: str
    body: str
    attempts: int
    faults: int

    @property
    def name(self) -> tuple[str, int]:
        return self.job, self.number

    @property
    def request_id(self) -> str:
        """Under which its requests are recorded."""
        return f"{self.job}-{self.number}"


@frozen
class Result:
    """How a line has ended: the status that HTTP would have had, the body of the answer or of the error, as JSON, and
    the response that is to be kept of it."""

    state: LineState
    status: int
    body: str
    kept: KeptResponse | None = None


@frozen
class EndedLine:
    """As outputs show it."""

    number: int
    custom_id: str
    state: LineState
    status: int
    body: str


@frozen
class Due:
    """A job that is not over. `leased`: somebody else reads or writes its files. `open`: lines that have not ended;
    `ready`: some of them nobody has."""

    job: Job
    leased: bool
    open: bool
    ready: bool
