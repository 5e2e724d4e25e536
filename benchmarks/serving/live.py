"""A real `tailrace serve` and requests of exact sizes against it: what the live measurements share."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

VOCABULARY = (1000, 20_000)  # ordinary tokens, the same for every run with a seed


@dataclass(slots=True)
class Sample:
    """One request. Times in seconds from its sending; `predicted` is what the server said of the first token."""

    kind: str
    sent: float
    prompt: int
    asked: int
    ttft: float | None = None
    end: float | None = None
    tokens: int = 0
    predicted: float | None = None
    status: int = 0
    retry_after: float | None = None
    reason: str = ""  # of a refusal
    timings: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Client:
    """Sends completions with random token ids as prompts, so that sizes are exact and nothing is cached."""

    url: str
    session: aiohttp.ClientSession
    rng: random.Random
    samples: list[Sample] = field(default_factory=list)
    begin: float = field(default_factory=time.perf_counter)
    pid: int = 0  # of the server, where it is our own

    async def ask(self, kind: str, prompt: int, tokens: int, key: str = "") -> Sample:
        body = {
            "prompt": [self.rng.randrange(*VOCABULARY) for _ in range(prompt)], "max_tokens": tokens,
            "stream": True, "temperature": 0, "ignore_eos": True,
        }  # fmt: skip
        headers = {"authorization": f"Bearer {key}"} if key else {}
        sent = time.perf_counter()
        sample = Sample(kind, sent - self.begin, prompt, tokens)
        self.samples.append(sample)
        async with self.session.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            sample.status = answer.status
            said = answer.headers.get("x-tailrace-predicted-ttft-ms")
            sample.predicted = float(said) / 1000 if said else None
            wait = answer.headers.get("retry-after")
            sample.retry_after = float(wait) if wait else None
            if answer.status == 200:
                await self._read(answer, sample, sent)
            else:
                sample.reason = (await answer.json())["error"]["code"]
        sample.end = time.perf_counter() - sent
        return sample

    async def _read(self, answer: aiohttp.ClientResponse, sample: Sample, sent: float) -> None:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            sample.timings = event.get("timings") or sample.timings
            if event.get("choices"):
                sample.ttft = sample.ttft or time.perf_counter() - sent
        sample.tokens = sample.timings.get("completion_tokens", 0)

    async def stream(
        self, kind: str, rate: float, until: float, sizes: Sequence[tuple[int, int]], key: str = ""
    ) -> None:
        """Poisson arrivals of `rate` a second until that many seconds from the beginning; then all their ends."""
        rng = random.Random(f"{kind} {rate}")
        tasks: list[asyncio.Task[Sample]] = []
        due = time.perf_counter() - self.begin
        while (due := due + rng.expovariate(rate)) < until:
            await asyncio.sleep(max(due - (time.perf_counter() - self.begin), 0))
            tasks.append(asyncio.create_task(self.ask(kind, *rng.choice(sizes), key=key)))
        await asyncio.gather(*tasks)


@asynccontextmanager
async def served(*flags: str, seed: int = 1) -> AsyncIterator[Client]:
    """A client of a server of its own, warmed up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tailrace", "serve", "--port", str(port), *flags]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"}
    )
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
            url = f"http://127.0.0.1:{port}"
            await _ready(session, url, process)
            yield Client(url, session, random.Random(seed), pid=process.pid)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _ready(session: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process) -> None:
    for _ in range(600):
        if process.returncode is not None:
            raise SystemExit(f"the server ended with status {process.returncode}")
        try:
            async with session.get(f"{url}/health") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit("the server did not become ready within two minutes")


async def capacity(client: Client, size: tuple[int, int], count: int = 24, key: str = "") -> float:
    """Requests of this size that the server finishes in a second when all come at once."""
    begin = time.perf_counter()
    await asyncio.gather(*(client.ask("warm", *size, key=key) for _ in range(count)))
    return count / (time.perf_counter() - begin)


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


def ttfts(samples: Sequence[Sample], kind: str) -> list[float]:
    return [sample.ttft for sample in samples if sample.kind == kind and sample.ttft is not None]


def report(path: Path | None, facts: dict[str, Any]) -> None:
    """The facts as JSON: to a file where one is named."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
