"""Work on texts: here when it is little, in a thread when it would hold up everybody else's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
ON_LOOP_BYTES = 16 * 1024


async def off_loop(size: int, function: Callable[[], T]) -> T:
    """Its result. `size`: bytes of the text that it works on."""
    if size <= ON_LOOP_BYTES:
        return function()
    return await asyncio.to_thread(function)
