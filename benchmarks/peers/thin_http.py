"""The thin HTTP front that in-process peers get: OpenAI-style streamed completions over token ids, and nothing else.

Standard library only, because it runs in the peer's own environment. One JSON chunk for each step's tokens of a
request, a usage chunk, `[DONE]`. `python thin_http.py PORT` serves an engine that costs nothing, which is how the
front's own overhead is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Streamer(Protocol):
    def stream(self, prompt: list[int], tokens: int) -> AsyncIterator[str]:
        """Greedily, exactly `tokens` new tokens; each item is the text that one step made of this request."""


async def _request(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]] | None:
    head = await reader.readline()
    if not head:
        return None
    length = 0
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        if name.lower() == "content-length":
            length = int(value)
    body = await reader.readexactly(length)
    return head.decode().split()[1], json.loads(body) if body else {}


def _chunk(data: str) -> bytes:
    raw = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(raw), raw)


async def _answer(engine: Streamer, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD)
    async for text in engine.stream(body["prompt"], body["max_tokens"]):
        writer.write(_chunk(json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}]})))
        await writer.drain()
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
    writer.write(_chunk(json.dumps({"choices": [], "usage": usage})) + _chunk("[DONE]") + b"0\r\n\r\n")
    await writer.drain()


def handler(engine: Streamer) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _request(reader)) is not None:
                path, body = request
                if path.endswith("/completions"):
                    await _answer(engine, body, writer)
                else:
                    writer.write(_EMPTY)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    return handle


async def serve(engine: Streamer, port: int) -> None:
    server = await asyncio.start_server(handler(engine), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


class Nothing:
    """An engine that costs nothing."""

    async def stream(self, prompt: list[int], tokens: int) -> AsyncIterator[str]:
        for _ in range(tokens):
            await asyncio.sleep(0)
            yield " word"


if __name__ == "__main__":
    asyncio.run(serve(Nothing(), int(sys.argv[1])))
