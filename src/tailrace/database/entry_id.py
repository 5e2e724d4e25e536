"""The ids of the ledger's rows: unique, and in the order in which requests came. Without SQL, so that who serves may
import it."""

from __future__ import annotations

import re
from os import urandom

_RANDOM_BYTES = 10


def new_entry_id(opened: float) -> str:
    """Of a request that was opened then, in seconds since the epoch."""
    return f"{entry_ids_from(opened)}{urandom(_RANDOM_BYTES).hex()}"


def entry_ids_from(opened: float) -> str:
    """Ids of requests that were opened then or later are not below it, all others are."""
    return f"{max(int(opened * 1000), 0):012x}"


def is_entry_id(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None
