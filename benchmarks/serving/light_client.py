"""A load generator that takes next to nothing of the cores: raw sockets, one request written at once, bytes searched.

Runs in its own process, so that its processor time can be told: `python -m benchmarks.serving.light_client URL ...`
prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import uvloop

_END = b"data: [DONE]"


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request under way. `times` gets (first event, end) in seconds."""

    def __init__(self, pool: deque[Connection], times: list[tuple[float, float]]) -> None:
        self._pool, self._times = pool, times
        self._transport: asyncio.Transport | None = None
        self._begin = self._first = 0.0
        self._tail = b""
        self.done: asyncio.Event | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pool.append(self)

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._first, self._tail, self.done = 0.0, b"", asyncio.Event()
        self._begin = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self._first and b"data: " in data:
            self._first = time.perf_counter()
        tail = self._tail + data
        if _END in tail:
            self._times.append((self._first - self._begin, time.perf_counter() - self._begin))
            self._pool.append(self)
            assert self.done is not None
            self.done.set()
        elif b" 200 " not in data[:15] and data.startswith(b"HTTP/"):
            raise RuntimeError(data[:300].decode(errors="replace"))
        self._tail = tail[-32:]


def request_bytes(host: str, key: str, number: int, max_tokens: int) -> bytes:
    messages = [{"role": "user", "content": f"Ping {number}"}]
    body = json.dumps({"messages": messages, "max_tokens": max_tokens, "stream": True}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(options: argparse.Namespace) -> dict[str, object]:
    """Poisson arrivals, whatever is still under way (open loop); without a rate one after another."""
    loop, parts, rng = asyncio.get_running_loop(), urlsplit(options.url), random.Random(options.seed)
    pool: deque[Connection] = deque()
    times: list[tuple[float, float]] = []
    requests = [request_bytes(parts.netloc, options.key, n, options.tokens) for n in range(options.requests)]
    for _ in range(8):
        await loop.create_connection(lambda: Connection(pool, times), parts.hostname, parts.port)
    cpu, due, waiting = time.process_time(), time.perf_counter(), []
    for request in requests:
        if options.rate:
            due += rng.expovariate(options.rate)
            await asyncio.sleep(max(due - time.perf_counter(), 0))
        if not pool:
            await loop.create_connection(lambda: Connection(pool, times), parts.hostname, parts.port)
        connection = pool.pop()
        connection.send(request)
        assert connection.done is not None
        waiting.append(connection.done)
        if not options.rate:
            await connection.done.wait()
    for done in waiting:
        await done.wait()
    return {"cpu": time.process_time() - cpu, "times": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--key", default="")
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(load(parser.parse_args()))))


if __name__ == "__main__":
    main()
