"""The chat partner in this process: the engine and its backend, without HTTP."""

from __future__ import annotations

import asyncio
import time
from itertools import count

from tailrace.cli.chat import ChatOptions, Message, Show, Stats
from tailrace.config import Loaded
from tailrace.llm.ready import ready_model
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.sampling import Limits
from tailrace.types import GenerateRequest


class LocalPartner:
    """One engine for the whole conversation; the prefix cache keeps what was said before."""

    def __init__(self, loaded: Loaded, options: ChatOptions) -> None:
        self._model = ready_model(loaded.config.engine)
        self._options = options
        self._numbers = count()
        self._runner = asyncio.Runner()
        self._model.backend.start()
        caps = self._model.backend.caps
        self._limits = Limits(caps.models, caps.max_context, caps.vocab_size, max_choices=1)
        self.name = self._model.name

    def answer(self, messages: list[Message], show: Show) -> Stats:
        """Raises RequestError; KeyboardInterrupt stops the engine's work on the answer too."""
        return self._runner.run(self._answer(self._request(messages), show))

    def close(self) -> None:
        self._model.backend.close()
        self._runner.close()

    def _request(self, messages: list[Message]) -> GenerateRequest:
        body = {"messages": messages, "max_tokens": self._options.max_tokens, "temperature": self._options.temperature}
        ask = ChatRequest.model_validate(body).ask(
            f"chat-{next(self._numbers)}", self._model.template, self._model.tokenizer, self._limits
        )
        return ask.requests[0]

    async def _answer(self, request: GenerateRequest, show: Show) -> Stats:
        begin = last = time.monotonic()
        first: float | None = None
        tokens, finish = 0, ""
        async for events in self._model.backend.generate(request):
            last = time.monotonic()
            for event in events:
                if event.error is not None:
                    raise event.error
                if event.token_ids and first is None:
                    first = last
                tokens += len(event.token_ids)
                show(event.text)
                finish = event.finish.value if event.finish is not None else finish
        if first is None:
            return Stats(tokens, None, None, finish)
        rate = (tokens - 1) / (last - first) if tokens > 1 and last > first else None
        return Stats(tokens, first - begin, rate, finish)
