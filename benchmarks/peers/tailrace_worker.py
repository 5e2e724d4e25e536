"""Our own engine, through its backend and without HTTP; the default weights, prefix cache off."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from channel import answer

from tailrace.config import load
from tailrace.llm.ready import ready_model
from tailrace.types import GenerateRequest, SamplingParams, StopConditions


class Tailrace:
    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._runs = 0

    def load(self, model: str, threads: int) -> dict[str, Any]:
        flags = {
            "engine.model": model,
            "engine.threads": threads,
            "engine.prefix_cache": False,
            "engine.speculate": "off",
        }
        self._engine = ready_model(load(flags=flags).config.engine)
        self._engine.backend.start()
        loaded = self._engine.loaded
        return {"version": f"{_version()} ({loaded.variant}, {loaded.weights})"}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        return self._runner.run(self._generate(prompts, tokens))

    def score(self, prompt: list[int], tokens: list[int]) -> dict[str, Any]:
        """Mean log-probability of `tokens` after `prompt`."""
        return {"mean_logprob": self._runner.run(self._score(prompt, tokens))}

    async def _score(self, prompt: list[int], tokens: list[int]) -> float:
        self._runs += 1
        request = GenerateRequest(
            id=f"{self._runs}-score",
            model="",
            prompt=np.array([*prompt, *tokens], np.int32),
            sampling=SamplingParams(temperature=0.0),
            stop=StopConditions(max_tokens=0),
            echo=True,
            prompt_logprobs=0,
        )
        found: list[float] = []
        async for events in self._engine.backend.generate(request):
            for event in events:
                if event.error is not None:
                    raise event.error
                found += [entry.logprob or 0.0 for entry in event.prompt_logprobs or ()]
        return float(np.mean(found[len(prompt) :]))

    async def _generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        self._runs += 1
        begin = time.perf_counter()
        results = await asyncio.gather(*(self._one(prompt, tokens, i) for i, prompt in enumerate(prompts)))
        seconds = time.perf_counter() - begin
        first = max(at for _, at in results) - begin
        return {"seconds": seconds, "first_seconds": first, "outputs": [ids for ids, _ in results]}

    async def _one(self, prompt: list[int], tokens: int, index: int) -> tuple[list[int], float]:
        """The new ids, and when the first came."""
        request = GenerateRequest(
            id=f"{self._runs}-{index}",
            model="",
            prompt=np.array(prompt, np.int32),
            sampling=SamplingParams(temperature=0.0),
            stop=StopConditions(max_tokens=tokens, ignore_eos=True),
        )
        ids: list[int] = []
        first = 0.0
        async for events in self._engine.backend.generate(request):
            first = first or time.perf_counter()
            for event in events:
                if event.error is not None:
                    raise event.error
                ids.extend(event.token_ids)
        return ids, first


def _version() -> str:
    try:
        return version("tailrace")
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    answer(Tailrace())
