"""Clients of every kind, a given part of whose requests hang up at a random moment."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

WORDS = ("river", "machine", "every", "old", "light", "under", "some", "quiet", "number", "their", "first", "town")
SOON = 0.5  # of the time that a request takes: until then who hangs up has done so
USUAL = 0.5  # seconds that a request takes, until others of its kind have said
THINKING = 0.1  # seconds between a client's requests, on average
Body = dict[str, Any]


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


def _chat(draw: random.Random, **fields: Any) -> tuple[str, Body]:
    messages = [{"role": "user", "content": words(draw, draw.randint(4, 60))}]
    body = {"messages": messages, "max_tokens": draw.randint(4, 48), "seed": draw.randrange(99), **fields}
    return "/v1/chat/completions", body


def _shared(draw: random.Random) -> tuple[str, Body]:
    """One of few long beginnings, so that prefixes are found again and blocks are shared."""
    path, body = _chat(draw, stream=True)
    system = words(random.Random(draw.randrange(4)), 200)
    return path, {**body, "messages": [{"role": "system", "content": system}, *body["messages"]]}


def _wrong(draw: random.Random) -> tuple[str, Body]:
    return _chat(draw, **draw.choice([{"temperature": -1}, {"n": 0}, {"model": "nobody"}, {"messages": "x"}]))


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
KINDS: dict[str, tuple[int, Callable[[random.Random], tuple[str, Body]]]] = {
    "streamed chat": (35, lambda draw: _chat(draw, stream=True)),
    "chat": (12, _chat),
    "shared beginning": (15, _shared),
    "four choices": (6, lambda draw: _chat(draw, stream=True, n=4)),
    "schema": (6, lambda draw: _chat(draw, response_format=FORM)),
    "several prompts": (6, lambda draw: ("/v1/completions", {"prompt": [words(draw, 20)] * 3, "max_tokens": 12})),
    "response": (6, lambda draw: ("/v1/responses", {"input": words(draw, 20), "max_output_tokens": 16})),
    "message": (
        6,
        lambda draw: ("/v1/messages", {"messages": [{"role": "user", "content": words(draw, 9)}], "max_tokens": 16}),
    ),
    "wrong": (5, _wrong),
    "models": (3, lambda draw: ("/v1/models", {})),
}


@dataclass
class Traffic:
    """`leaving`: the part of the requests that hang up. `ends` counts what became of them, by kind."""

    url: str
    keys: list[str]
    leaving: float
    seed: int
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    took: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, USUAL))  # seconds, lately, by kind

    async def run(self, clients: int, seconds: float) -> None:
        """So many clients, each with one request at a time, for so long."""
        stop = asyncio.get_running_loop().time() + seconds
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
            await asyncio.gather(*(self._client(session, number, stop) for number in range(clients)))

    async def _client(self, session: aiohttp.ClientSession, number: int, stop: float) -> None:
        draw = random.Random(f"{self.seed} {number}")
        headers = {"authorization": f"Bearer {self.keys[number % len(self.keys)]}"}
        weights = [weight for weight, _ in KINDS.values()]
        while asyncio.get_running_loop().time() < stop:
            (kind,) = draw.choices([*KINDS], weights)
            path, body = KINDS[kind][1](draw)
            work = asyncio.create_task(self._ask(session, path, body, headers))
            if draw.random() < self.leaving:
                await asyncio.wait([work], timeout=draw.uniform(0, SOON * self.took[kind]))
                work.cancel()  # aiohttp closes the connection of an answer that was not read
            begin = asyncio.get_running_loop().time()
            self.ends[kind, end := await _end(work)] += 1
            if end != "left":
                self.took[kind] += 0.1 * (asyncio.get_running_loop().time() - begin - self.took[kind])
            await asyncio.sleep(draw.expovariate(1 / THINKING))

    async def _ask(self, session: aiohttp.ClientSession, path: str, body: Body, headers: dict[str, str]) -> str:
        method = "POST" if body else "GET"
        async with session.request(method, self.url + path, json=body or None, headers=headers) as answer:
            async for _ in answer.content.iter_any():
                pass
            return str(answer.status)


async def _end(work: asyncio.Task[str]) -> str:
    await asyncio.wait([work])
    if work.cancelled():
        return "left"
    error = work.exception()
    return work.result() if error is None else type(error).__name__
