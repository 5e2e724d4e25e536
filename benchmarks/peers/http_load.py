"""What clients see of a server: streamed completions over token ids, timed at the client."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from benchmarks.peers.servers import Server

TIMEOUT = aiohttp.ClientTimeout(total=900)


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds of one streamed answer, and the tokens that its usage counts."""

    ttft: float
    seconds: float
    tokens: int

    @property
    def tpot(self) -> float:
        return (self.seconds - self.ttft) / max(self.tokens - 1, 1)


def client() -> aiohttp.ClientSession:
    """A connection for each request: a server may close an idle one just as the next request is written to it."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=TIMEOUT)


async def complete(session: aiohttp.ClientSession, server: Server, prompt: list[int], tokens: int) -> Answer:
    """Raises RuntimeError with the server's words when it does not make exactly `tokens` tokens."""
    body: dict[str, Any] = {"model": server.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    body |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    begin = time.perf_counter()
    first = 0.0
    made = 0
    async with session.post(server.url + "/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{server.name}: {response.status} {(await response.text())[:200]}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            data = json.loads(line[6:])
            if not first and data.get("choices"):
                first = time.perf_counter() - begin
            made = (data.get("usage") or {}).get("completion_tokens", made)
    if made != tokens:
        raise RuntimeError(f"{server.name} made {made} tokens where {tokens} were asked for")
    return Answer(first, time.perf_counter() - begin, made)


async def together(server: Server, prompts: list[list[int]], tokens: int) -> tuple[float, list[Answer]]:
    """All at once; the seconds of the whole run."""
    async with client() as session:
        begin = time.perf_counter()
        answers = await asyncio.gather(*(complete(session, server, prompt, tokens) for prompt in prompts))
        return time.perf_counter() - begin, answers


@dataclass(frozen=True, slots=True)
class Mixture:
    """Short requests one after another in a few lanes, while long prompts arrive in a rhythm."""

    lanes: int = 2
    short_in: int = 64
    short_out: int = 64
    shorts: int = 12  # of each lane
    long_in: int = 1800
    long_out: int = 16
    longs_at_once: int = 2


class Mixed:
    """One run of a mixture against one server. `prompt(row, tokens)` makes a prompt that no other row shares."""

    def __init__(self, server: Server, mixture: Mixture, prompt: Callable[[int, int], list[int]]) -> None:
        self._server, self._mixture, self._prompt = server, mixture, prompt
        self._stop = asyncio.Event()

    async def run(self) -> list[Answer]:
        """The short requests' answers."""
        async with client() as session:
            longs = [asyncio.create_task(self._longs(session, i)) for i in range(self._mixture.longs_at_once)]
            try:
                lanes = await asyncio.gather(*(self._lane(session, lane) for lane in range(self._mixture.lanes)))
            finally:
                self._stop.set()
                await asyncio.gather(*longs)
            return [answer for lane in lanes for answer in lane]

    async def _lane(self, session: aiohttp.ClientSession, lane: int) -> list[Answer]:
        mix = self._mixture
        prompts = [self._prompt(lane * 1000 + i, mix.short_in) for i in range(mix.shorts)]
        return [await complete(session, self._server, prompt, mix.short_out) for prompt in prompts]

    async def _longs(self, session: aiohttp.ClientSession, lane: int) -> None:
        mix = self._mixture
        for number in itertools.count():
            if self._stop.is_set():
                return
            prompt = self._prompt(50_000 + lane * 1000 + number, mix.long_in)
            await complete(session, self._server, prompt, mix.long_out)
