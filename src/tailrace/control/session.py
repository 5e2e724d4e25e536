"""The runs of one HTTP request, one for each prompt, as a single stream of events with a single end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tailrace.control.intake import Caller
from tailrace.control.pipeline import Pipeline, Place
from tailrace.control.run import Run
from tailrace.observe.timeline import Phase, Timeline
from tailrace.types import GenerateRequest, TokenEvent, Usage

_Item = tuple[int, Sequence[TokenEvent]]
COUNTS = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "preemptions", "recomputed_tokens", "kv_blocks", "device_us",
    "measured_us", "price",
)  # fmt: skip


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
        self._before: dict[str, Any] = {name: timeline.facts.get(name, 0) for name in COUNTS}
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

    def usage(self) -> Usage:
        """Tokens so far; every prompt counts once. Also noted on the timeline: there those of prompts that started."""
        usage = Usage(
            prompt_tokens=sum(run.prompt_tokens for run in self._runs),
            completion_tokens=sum(run.generated for run in self._runs),
            cached_tokens=sum(run.cached_tokens for run in self._runs),
        )
        self._note(usage)
        return usage

    def _note(self, usage: Usage) -> None:
        """Put these counts on top of those that the request's earlier sessions have left."""
        facts, before, runs = self._timeline.facts, self._before, self._runs
        counts = (
            sum([run.prefilled_tokens for run in runs]),
            usage.cached_tokens,
            usage.completion_tokens,
            sum([run.lost_work[0] for run in runs]),
            sum([run.lost_work[1] for run in runs]),
            sum([run.kv_blocks for run in runs]),
            sum([run.device_us for run in runs]),
            sum([round(run.measured_seconds * 1e6) for run in runs]),
            sum([run.cost for run in runs]),
        )
        for name, count in zip(COUNTS, counts, strict=True):
            facts[name] = before[name] + count
        facts["longest"] = max([run.longest for run in runs])
        facts["worst_gap"] = max([run.worst_gap for run in runs])

    def finish(self) -> Usage:
        """Every choice has ended: what is left is the answer's own writing."""
        self._timeline.enter(Phase.POST)
        return self.usage()

    async def close(self) -> None:
        """End all runs, wherever they are, and give back what they hold. Safe to call twice."""
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
        self.usage()

    async def _pump(self, index: int, run: Run, mailbox: asyncio.Queue[_Item | Exception | None]) -> None:
        try:
            async for batch in run:
                mailbox.put_nowait((index, batch))
        except Exception as error:
            mailbox.put_nowait(error)
        else:
            mailbox.put_nowait(None)
            await run.close()  # its slot goes to the next one now, not when all have ended
