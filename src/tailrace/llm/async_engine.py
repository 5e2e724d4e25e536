"""The engine inside an asyncio program of one's own, for example a FastAPI app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.errors import Unavailable
from tailrace.llm.asker import Asker, Job, Message, Prompt, apart
from tailrace.llm.core import Core, engine_config
from tailrace.llm.output import ChatEvent, Chunks, Completion, raise_failure
from tailrace.llm.params import SamplingParams
from tailrace.types import Health, TokenEvent


class AsyncEngine:
    """A model on this process's CPUs. Requests that come while others run join their batch at the next step.

        async with AsyncEngine("smollm2:135m") as engine:
            async for event in engine.generate("The capital of France is", max_tokens=8):
                print(event.text, end="")

    Everything must be awaited on one loop. Leaving an iterator early, or cancelling its task, ends the engine's work
    within a step. It takes whatever it is given: bounds on waiting requests are the serving plane's (`tailrace serve`).
    """

    def __init__(self, model: str | Path | None = None, *, progress: bool = False, **settings: Any) -> None:
        """`model`: a name of the store (pulled when needed) or a path. `settings`: threads, kv_memory, max_context and
        the other fields of EngineConfig. `progress`: bars on stderr while loading. Raises ConfigError."""
        self._config = engine_config(model, settings)
        self._show = progress
        self._core: Core | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Load the model, off the loop. Raises StoreError, ModelFileError, ConfigError."""
        async with self._starting:
            if self._core is None:
                self._core = await asyncio.to_thread(Core, self._config, show=self._show)

    async def close(self) -> None:
        """Answers that still run end with Unavailable. Safe to call twice."""
        core, self._core = self._core, None
        if core is not None:
            await asyncio.to_thread(core.close)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def model(self) -> str:
        """The model's name."""
        return self._running.model.name

    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._asker.limits.max_context

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **fields: Any
    ) -> AsyncGenerator[TokenEvent]:
        """Stream the answers to a text or to token ids. `fields` are sampling parameters that win over `params`.

        Joining the `text` of a choice's events gives its whole answer; its last event has `finish`. Raises RequestError
        when called (for a grammar that cannot be followed at the first event), InternalError or Unavailable when the
        answer fails later. Beams, and the best of several, are known only at the end: see `complete`.
        """
        return self._events(self._asker.completion(prompt, _settled(params, fields), "prompt", stream=True))

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        template: dict[str, Any] | None = None,
        **fields: Any,
    ) -> AsyncGenerator[ChatEvent]:
        """As `generate`, through the model's chat template. `template`: add_generation_prompt,
        continue_final_message, chat_template_kwargs. `fields` may also be those of a chat: tools, tool_choice,
        parallel_tool_calls, reasoning_effort, thinking_token_budget."""
        return self._chunks(self._chat(messages, params, template, fields, stream=True))

    async def complete(self, prompt: Prompt, params: SamplingParams | None = None, **fields: Any) -> Completion:
        """The whole of `generate`."""
        return await self._complete(self._asker.completion(prompt, _settled(params, fields), "prompt"))

    async def complete_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        template: dict[str, Any] | None = None,
        **fields: Any,
    ) -> Completion:
        """The whole of `chat`."""
        return await self._complete(self._chat(messages, params, template, fields, stream=False))

    async def health(self) -> Health:
        return await self._running.model.backend.health()

    @property
    def _running(self) -> Core:
        if self._core is None:
            raise Unavailable("the engine is not running: use `async with AsyncEngine(...)`, or await start()")
        return self._core

    @property
    def _asker(self) -> Asker:
        return self._running.asker

    def _chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None,
        template: dict[str, Any] | None,
        fields: dict[str, Any],
        *,
        stream: bool,
    ) -> Job:
        talk, fields = apart(fields)
        options = {**(template or {}), **talk}
        return self._asker.chat(messages, _settled(params, fields), "messages", options, stream=stream)

    async def _chunks(self, job: Job) -> AsyncGenerator[ChatEvent]:
        chunks = Chunks(job.ask)
        async with aclosing(self._running.stream(job)) as batches:
            async for batch in batches:
                for event in batch:
                    yield chunks.chunk(event)

    async def _events(self, job: Job) -> AsyncGenerator[TokenEvent]:
        async with aclosing(self._running.stream(job)) as batches:
            async for batch in batches:
                for event in batch:
                    raise_failure(event)
                    yield event

    async def _complete(self, job: Job) -> Completion:
        completion = await self._running.complete(job, _silent)
        if completion.error is not None:
            raise completion.error
        return completion


def _settled(params: SamplingParams | None, fields: dict[str, Any]) -> SamplingParams:
    return (params or SamplingParams()).but(**fields)


def _silent(made: int, prompt: int) -> None:
    pass
