"""What the plane has decided about one request before it waits: who asks, what kind it is, what it will cost."""

from __future__ import annotations

from tailrace.control.classes import RequestClass
from tailrace.control.estimate import Estimate
from tailrace.frozen import frozen


@frozen
class Ticket:
    """The queue orders by this and nothing else; the engine sees weight, band, deadline and group as plain numbers.

    `weight` is the tenant's share against others of its band. `share_group` is a number for (tenant, class), stable
    while the process lives. `arrival` and `deadline` are on the injected clock; the deadline is that of the first
    token, None where there is none.
    """

    tenant: str
    key: str  # the name of the API key, never the key
    weight: float
    band: int  # 0 is served first
    request_class: RequestClass
    bucket: str  # of the prompt's length, units.length_bucket
    arrival: float
    deadline: float | None
    share_group: int
    estimate: Estimate
