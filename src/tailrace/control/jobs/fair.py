"""Which jobs the next free places go to: to the tenant that has fewest for its weight, and to its oldest job. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tailrace.database.job import Job


def shares(
    places: int, ready: Sequence[Job], running: Mapping[str, int], weight: Callable[[str], float]
) -> dict[str, int]:
    """Places by job id. `ready`, the oldest first, may each take all of them; `running` counts lines by tenant."""
    first: dict[str, Job] = {}
    for job in ready:
        first.setdefault(job.tenant, job)
    taken, given = Counter(running), Counter[str]()
    for _ in range(places if first else 0):
        tenant = min(first, key=lambda name: (taken[name] + 1) / weight(name))
        taken[tenant] += 1
        given[first[tenant].id] += 1
    return dict(given)
