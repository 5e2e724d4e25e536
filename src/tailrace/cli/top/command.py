"""`tailrace top`: start the screen over a server's admin routes."""

from __future__ import annotations

import asyncio

from tailrace.cli.top.app import Top
from tailrace.cli.top.source import HttpSource


def run_top(url: str, key: str, every: float) -> None:
    """Raises Unavailable or Unauthorized at once when the server cannot be looked at, instead of showing nothing."""
    asyncio.run(_check(HttpSource(url, key)))
    Top(HttpSource(url, key), every).run()


async def _check(source: HttpSource) -> None:
    try:
        await source.state()
    finally:
        await source.close()
