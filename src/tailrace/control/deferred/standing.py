"""How a deferred request stands, and what its tenant is shown of that."""

from __future__ import annotations

from typing import Any

import orjson

from tailrace.database.job import EndedLine, Job, LineState
from tailrace.database.webhook import Webhook
from tailrace.frozen import frozen
from tailrace.protocol.form import named_event
from tailrace.protocol.responses.answer import failed_body, response_event

Json = dict[str, Any]

KINDS = RESPONSE, REQUEST = "response", "request"  # of jobs that hold one request

STATUS = {
    LineState.PENDING: "queued",
    LineState.RUNNING: "in_progress",
    LineState.DONE: "completed",
    LineState.FAILED: "failed",
    LineState.CANCELLED: "cancelled",
    LineState.EXPIRED: "expired",
}
_EXPIRED = {"error": {"message": "It has not been made within its time", "type": "server_error", "code": "expired"}}


@frozen
class Standing:
    """`line` is the only one of the job."""

    job: Job
    line: EndedLine
    webhook: Webhook | None = None

    @property
    def status(self) -> str:
        return STATUS[self.line.state]

    @property
    def ended(self) -> bool:
        return self.line.state not in (LineState.PENDING, LineState.RUNNING)

    @property
    def about(self) -> Json:
        """What was noted when it was made a job."""
        return self.job.metadata or {}

    def response(self) -> Json:
        """Of a background response."""
        begun: Json = {**self.about["response"], "status": self.status}
        if self.line.state is LineState.DONE:
            made: Json = orjson.loads(self.line.body)
            return made
        if self.line.state is LineState.FAILED:
            return failed_body(begun, orjson.loads(self.line.body))
        return failed_body(begun, _EXPIRED) if self.line.state is LineState.EXPIRED else begun

    def shown(self, *, result: bool = True) -> Json:
        """As `/v1/jobs` shows it; without the `result` as in a list."""
        job, place = self.job, f"/v1/jobs/{self.job.id}"
        body: Json = {
            "id": job.id,
            "object": "job",
            "status": self.status,
            "endpoint": job.endpoint,
            "created_at": int(job.created),
            "expires_at": int(job.expires),
            "poll_url": place,
            "stream_url": f"{place}/stream",
            **{name: value for name, value in self.about.items() if name not in ("response", "items")},
        }
        return body | ({"result": self.result()} if result else {}) | {"webhook": self._webhook()}

    def result(self) -> Json | None:
        """What its route would have answered; None while there is nothing, or never will be."""
        if self.line.state not in (LineState.DONE, LineState.FAILED):
            return None
        return {"status_code": self.line.status, "body": orjson.loads(self.line.body)}

    def last_event(self, number: int) -> bytes:
        """For a stream whose own events are not there (any more)."""
        if self.job.kind == REQUEST:
            return b"id: %d\n" % number + named_event({"type": f"job.{self.status}", "job": self.shown()})
        response = self.response()
        kind = response["status"] if response["status"] in ("completed", "incomplete") else "failed"
        return b"id: %d\n" % number + response_event(kind, number, response=response)

    def _webhook(self) -> Json | None:
        sent = self.webhook
        if sent is None:
            return None
        said = {"status": sent.state, "attempts": sent.attempts}
        return {"url": sent.url, **said, "last_status": sent.status, "last_error": sent.error}
