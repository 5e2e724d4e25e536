"""The runs of one HTTP request, one for each prompt, as a single stream of events with a single end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tailrace.control.intake import Caller
from tailrace.control.pipeline import Pipeline, Place
from tailrace.control.run import COUNTS, Run
from tailrace.observe.timeline import Phase, Timeline
from tailrace.types import GenerateRequest, TokenEvent, Usage

_Item = tuple[int, Sequence[TokenEvent]]


class Session:
    """Iterate for (prompt index, events of one step); `close()` in the end, whatever happens.

    One run is iterated directly. Several run at the same time, each in a task, into one mailbox.
    """

    @classmethod
    async def open(
        cls,
        pipeline: Pipeline,
        place: Place,
        requests: Sequence[GenerateRequest],
        timeline: Timeline,
        caller: Caller | None = None,
    ) -> Session:
        """Raises as `Pipeline.admit`; nothing is held then but the rest of `place`."""
        return cls(await pipeline.admit(place, requests, timeline, caller), timeline)

    def __init__(self, runs: Sequence[Run], timeline: Timeline) -> None:
        self._runs = runs
        self._timeline = timeline
        self._before: list[Any] = [timeline.facts.get(name, 0) for name in COUNTS]
        self._mailbox: asyncio.Queue[_Item | Exception | None] | None = None  # of several runs
        self._tasks: list[asyncio.Task[None]] = []
        self._unfinished = len(self._runs)
        self._closed = False

    @property
    def waits(self) -> bool:
        """Whether the first run has not started yet."""
        return self._runs[0].waiting

    async def released(self) -> None:
        """Wait until the first run starts. Raises Unavailable when the server stops first."""
        await self._runs[0].released()

    def __aiter__(self) -> Session:
        return self

    async def __anext__(self) -> _Item:
        if len(self._runs) == 1:
            return 0, await anext(self._runs[0])
        if self._mailbox is None:
            mailbox: asyncio.Queue[_Item | Exception | None] = asyncio.Queue()
            self._mailbox = mailbox
            self._tasks = [asyncio.create_task(self._pump(i, run, mailbox)) for i, run in enumerate(self._runs)]
        while self._unfinished:
            item = await self._mailbox.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return item
            self._unfinished -= 1
        raise StopAsyncIteration

    async def finish(self) -> Usage:
        """Every choice has ended: what is left is the answer's own writing. Closes; every prompt counts once."""
        self._timeline.enter(Phase.POST)
        await self.close()
        return Usage(
            prompt_tokens=sum([run.prompt_tokens for run in self._runs]),
            completion_tokens=sum([run.generated for run in self._runs]),
            cached_tokens=sum([run.cached_tokens for run in self._runs]),
        )

    def _note(self) -> None:
        """Put the runs' counts on top of those that the request's earlier sessions have left."""
        counts, facts = self._before, self._timeline.facts
        for run in self._runs:
            counts = [count + more for count, more in zip(counts, run.counts(), strict=True)]
        facts.update(zip(COUNTS, counts, strict=True))
        facts["longest"] = max([run.longest for run in self._runs])
        facts["worst_gap"] = max([run.worst_gap for run in self._runs])

    async def close(self) -> None:
        """End all runs, wherever they are, give back what they hold, and note what they took on the timeline: of
        prompts that started. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if len(self._runs) == 1:
            await self._runs[0].close()
        else:
            await asyncio.gather(*(run.close() for run in self._runs))
        self._note()

    async def _pump(self, index: int, run: Run, mailbox: asyncio.Queue[_Item | Exception | None]) -> None:
        try:
            async for batch in run:
                mailbox.put_nowait((index, batch))
        except Exception as error:
            mailbox.put_nowait(error)
        else:
            mailbox.put_nowait(None)
            await run.close()  # its slot goes to the next one now, not when all have ended
