"""What `LLM` and `AsyncEngine` share: a running engine, and jobs carried out on one asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import cast

from tailrace.config import EngineConfig, load
from tailrace.errors import TailraceError
from tailrace.llm.asker import Asker, Job
from tailrace.llm.output import Collector, Completion
from tailrace.llm.ready import ready_model
from tailrace.text.parsers.dialect import Dialect
from tailrace.types import TokenEvent

_AHEAD = 2  # requests given to the engine, in multiples of what it runs at once

Tell = Callable[[int, int], None]  # (tokens just made, tokens of a prompt that is done, else 0)


def engine_config(model: str | Path | None, settings: Mapping[str, object]) -> EngineConfig:
    """Checked as flags are; environment variables fill in the rest. Raises ConfigError."""
    given = {**settings, **({} if model is None else {"model": str(model)})}
    return load(flags={f"engine.{key}": value for key, value in given.items()}).config.engine


class Core:
    """Owns a model's engine from construction to `close`. All its coroutines run on one loop."""

    def __init__(self, config: EngineConfig, *, show: bool) -> None:
        """Loads the model (seconds at first, then about one). Raises StoreError, ModelFileError, ConfigError."""
        self.model = ready_model(config, show=show)
        model, tools, reasoning = self.model, config.tool_parser, config.reasoning_parser
        dialect = Dialect.of(model.template, model.tokenizer, tool_parser=tools, reasoning_parser=reasoning)
        self.asker = Asker(model, dialect)
        self.model.backend.start()

    def close(self) -> None:
        self.model.backend.close()

    def stream(self, job: Job) -> AsyncGenerator[Sequence[TokenEvent]]:
        """A job's events by engine step. Closing it ends the engine's work on the job."""
        return cast(AsyncGenerator[Sequence[TokenEvent]], self.model.backend.generate(job.request))

    async def complete(self, job: Job, tell: Tell) -> Completion:
        """Never raises for the job's own failure: that is in the completion."""
        collector = Collector(job.ask, job.prompt, self.model.clock)
        error: TailraceError | None = None
        try:
            async with aclosing(self.stream(job)) as stream:
                async for batch in stream:
                    tell(collector.take(batch), 0)
        except TailraceError as raised:
            error = raised
        tell(0, len(job.request.prompt))
        return collector.completion(error)

    async def complete_all(self, jobs: Sequence[Job], tell: Tell) -> list[Completion]:
        """In the order of the jobs. The engine gets only some ahead, so that memory does not grow with the number.

        Raises RequestError, before any runs, for a grammar that cannot be followed.
        """
        for job in jobs:
            await self.model.backend.check(job.request)
        done: dict[int, Completion] = {}
        left = iter(enumerate(jobs))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(jobs), _AHEAD * self.model.backend.caps.max_sequences)):
                group.create_task(self._work(left, done, tell))
        return [done[index] for index in range(len(jobs))]

    async def _work(self, left: Iterator[tuple[int, Job]], done: dict[int, Completion], tell: Tell) -> None:
        for index, job in left:
            done[index] = await self.complete(job, tell)
