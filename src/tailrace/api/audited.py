"""Who did what as an operator: each wish to change something leaves a row in the audit log, a refused one too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.state import state_of
from tailrace.control.keys import Principal
from tailrace.database.account import AuditRow
from tailrace.errors import TailraceError

H = TypeVar("H", bound=Callable[..., Awaitable[Response]])


def audited(action: str, *, notes_itself: bool = False) -> Callable[[H], H]:
    """Around a handler. `notes_itself`: what it did is in the log already, in one transaction with the change."""

    def around(handler: H) -> H:
        @wraps(handler)
        async def noted(request: Request, **path: str) -> Response:
            target = "/".join(path.values())
            try:
                response = await handler(request, **path)
            except TailraceError as error:
                state_of(request).accounts.note(row(request, action, target, error.status, error.code or error.type))
                raise
            if not notes_itself:
                state_of(request).accounts.note(row(request, action, target, response.status_code))
            return response

        return noted  # type: ignore[return-value]

    return around


def row(request: Request, action: str, target: str, status: int, error: str = "", **more: Any) -> AuditRow:
    found = request.scope["state"]
    principal: Principal | None = found.get("principal")
    return AuditRow(
        state_of(request).clock.wall(),
        "" if principal is None else principal.tenant,
        "" if principal is None else principal.key,
        action,
        target,
        status,
        error,
        request_id=found["request_id"],
        **more,
    )
