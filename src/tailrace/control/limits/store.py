"""Which store keeps the limits: this process, with what the ledger remembers, or Redis for several gateways."""

from __future__ import annotations

from tailrace.clock import Clock
from tailrace.config import ControlConfig
from tailrace.control.limits.base import LimitStore
from tailrace.control.limits.memory import MemoryLimits
from tailrace.control.limits.remembered import RememberedLimits
from tailrace.database.keeping import Keeping


def limit_store(config: ControlConfig, clock: Clock, keeping: Keeping) -> LimitStore:
    """Raises ConfigError for a wrong address, or where the package for it is missing."""
    if not config.limits_url:
        return RememberedLimits(clock, keeping) if keeping.wanted else MemoryLimits(clock)
    from tailrace.control.limits.redis import RedisLimits  # noqa: PLC0415 - only where it is asked for

    return RedisLimits(config.limits_url, config.limits_lease, timeout=config.limits_timeout, clock=clock)
