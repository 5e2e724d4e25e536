"""The body of `POST /v1/feedback`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tailrace.errors import InvalidRequest
from tailrace.protocol.body import Shape
from tailrace.protocol.sampling import MOST_TASK, is_task
from tailrace.text.tokenizer import clean_text

_MOST_ID, _MOST_COMMENT = 128, 2000


class Feedback(Shape):
    """`request_id` is the `x-request-id` of an answer, or the answer's own id."""

    request_id: str = Field(min_length=1, max_length=_MOST_ID)
    success: bool | None = None
    score: float | None = Field(None, ge=0, le=1)
    task: str | None = Field(None, description="In the place of the request's own label.")
    comment: str | None = Field(None, max_length=_MOST_COMMENT)

    def said(self) -> dict[str, Any]:
        """What is kept of it. Raises InvalidRequest."""
        if self.success is None and self.score is None:
            raise InvalidRequest("success or score is missing", param="success", code="missing_field")
        if self.task is not None and not is_task(self.task):
            raise InvalidRequest(f"task takes 1 to {MOST_TASK} printable ASCII characters", param="task")
        comment = self.comment or ""
        clean_text(comment, field="comment")
        score = float(bool(self.success)) if self.score is None else float(self.score)
        return {"success": self.success, "score": score, "task": self.task, "comment": comment.replace("\0", "\ufffd")}
