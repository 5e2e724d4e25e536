"""A webhook on its way, as it lies in the database. Without SQL, so that who serves may import it."""

from __future__ import annotations

from tailrace.frozen import frozen

WAITING, DELIVERED, FAILED = "waiting", "delivered", "failed"


@frozen
class Webhook:
    """`subject`: the id of what it is about. `due`: when it is tried next, in seconds since the epoch; None: when its
    subject has ended, or never again. `status` and `error`: of the last try."""

    id: str
    tenant: str
    subject: str
    url: str
    body: str = ""
    state: str = WAITING
    attempts: int = 0
    due: float | None = None
    status: int | None = None
    error: str | None = None
