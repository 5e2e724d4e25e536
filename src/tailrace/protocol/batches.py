"""OpenAI's Files and Batches: what is asked, what is shown."""

from __future__ import annotations

import re
from typing import Any

from tailrace.database.file import StoredFile
from tailrace.database.job import Counts, Job, JobState
from tailrace.errors import InvalidRequest
from tailrace.protocol.body import Shape
from tailrace.protocol.schema import Shown

_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHORTEST, _LONGEST = 60, 7 * 86_400
_MOST_KEYS, _MOST_KEY, _MOST_VALUE = 16, 64, 512
_MOST_NAME = 255  # characters of a file's name
_ENDED_AT = {
    JobState.COMPLETED: "completed_at",
    JobState.FAILED: "failed_at",
    JobState.EXPIRED: "expired_at",
    JobState.CANCELLED: "cancelled_at",
}


class BatchRequest(Shape):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None

    def seconds(self) -> int:
        """Of the completion window. Raises InvalidRequest."""
        match = _WINDOW.fullmatch(self.completion_window)
        seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
        if not _SHORTEST <= seconds <= _LONGEST:
            raise InvalidRequest(
                f"completion_window is {self.completion_window[:40]!a}; accepted is '1m' to '7d', such as '24h'",
                param="completion_window",
            )
        return seconds

    def check(self) -> None:
        """Raises InvalidRequest."""
        given = self.metadata or {}
        if len(given) > _MOST_KEYS:
            raise InvalidRequest(f"metadata has {len(given)} keys; at most {_MOST_KEYS} are kept", param="metadata")
        if any(len(key) > _MOST_KEY or len(value) > _MOST_VALUE for key, value in given.items()):
            raise InvalidRequest(
                f"metadata may have keys of {_MOST_KEY} and values of {_MOST_VALUE} characters", param="metadata"
            )


class FileBody(Shown):
    """A file, for the published page."""

    id: str
    object: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str


class BatchBody(Shown):
    """A batch, for the published page."""

    id: str
    object: str
    endpoint: str
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    request_counts: dict[str, int]
    usage: dict[str, Any]
    metadata: dict[str, str] | None


def file_body(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def file_name(said: str | None) -> str:
    """What a caller calls a file, to be shown and never to be used as a path."""
    last = re.split(r"[/\\]", said or "")[-1]
    return "".join(each for each in last if each.isprintable())[:_MOST_NAME].strip(". ") or "file"


def batch_body(job: Job, counts: Counts) -> dict[str, Any]:
    ended = dict.fromkeys(_ENDED_AT.values())
    if job.state in _ENDED_AT:
        ended[_ENDED_AT[job.state]] = _whole(job.ended)
    tokens = counts.prompt_tokens + counts.completion_tokens
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": job.endpoint,
        "errors": {"object": "list", "data": job.errors} if job.errors else None,
        "input_file_id": job.input_file,
        "completion_window": job.window,
        "status": job.state,
        "output_file_id": job.output_file or None,
        "error_file_id": job.error_file or None,
        "created_at": int(job.created),
        "in_progress_at": _whole(job.started),
        "expires_at": int(job.expires),
        "finalizing_at": _whole(job.finalizing),
        "cancelling_at": _whole(job.cancelling),
        **ended,
        "request_counts": {"total": job.total, "completed": counts.completed, "failed": counts.failed},
        "usage": {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": counts.cached_tokens},
            "output_tokens": counts.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens,
        },
        "metadata": job.metadata,
    }


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
