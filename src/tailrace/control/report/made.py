"""Reports of a server, one at a time: a caller who asks for many waits for its own, and the serving for none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tailrace.control.report.question import Question
from tailrace.control.report.report import Data, Report
from tailrace.database.keeping import Keeping

if TYPE_CHECKING:
    from tailrace.database.reporting import Reporting


async def gather(reporting: Reporting, question: Question) -> Report:
    """The counting is done in a thread, a page at a time. Raises Unavailable, ConfigError."""
    report = Report(question)
    async for lines in reporting.pages(question.since, question.until, question.tenant):
        await asyncio.to_thread(report.add, lines)
    return report


class Reports:
    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._one = asyncio.Lock()

    async def data(self, question: Question, currency: str) -> Data:
        """Raises Unavailable, ConfigError."""
        kept = await self._keeping.needed()
        async with self._one:
            report = await gather(kept.reporting, question)
            return await asyncio.to_thread(report.data, currency)
