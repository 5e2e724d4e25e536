"""Small servers that speak OpenAI's routes each in their own way: what `bench` meets that is not ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

Json = dict[str, Any]
LINE = b"data: %b\n\n"


@dataclass
class Odd:
    """Says one word for each token of max_tokens. What it lacks or breaks is switched on by its fields.

    Its prompt tokens are the words of a text, plus 5 for a message.
    """

    key: str = ""
    usage: bool = True
    tokenizer: bool = False
    completions: bool = True
    chat: bool = True
    takes_ids: bool = False
    refuses: tuple[str, ...] = ()  # request fields that are a 400
    script: list[Callable[[Json], Any]] = field(default_factory=list)  # answers for the next generating requests
    bodies: list[Json] = field(default_factory=list)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/v1/completions", self.generate)
        app.router.add_post("/v1/chat/completions", self.generate)
        return app

    async def models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, "invalid_api_key", "no such key")
        return web.json_response({"data": [{"id": "odd"}, {"id": "other"}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        if not self.tokenizer:
            return error(404, "not_found", "no such route")
        body = orjson.loads(await request.read())
        return web.json_response({"tokens": list(range(self._count(body.get("messages") or body.get("prompt"))))})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.bodies.append(body)
        chat = "messages" in body
        if not (self.chat if chat else self.completions):
            return error(404, "not_found", "no such route")
        if refused := [name for name in self.refuses if name in body]:
            return error(400, "invalid_value", f"{refused[0]} is unknown")
        if isinstance(body.get("prompt"), list) and not self.takes_ids:
            return error(400, "invalid_value", "prompt must be a text")
        if self.script:
            answer = self.script.pop(0)(body)
            if not isinstance(answer, bytes):
                return answer
            return await _send(request, [answer])
        return await _send(request, self._events(body, chat))

    def _events(self, body: Json, chat: bool) -> list[bytes]:
        count = body["max_tokens"]
        events = [{"choices": [piece("w ", chat)]} for _ in range(count)]
        events.append(
            {"choices": [{"index": 0, "finish_reason": "length", **({"delta": {}} if chat else {"text": ""})}]}
        )
        if self.usage and body.get("stream_options"):
            prompt = self._count(body.get("messages") or body["prompt"])
            usage = {"prompt_tokens": prompt, "completion_tokens": count}
            events.append({"choices": [], "usage": usage})
        return [LINE % orjson.dumps(event) for event in events] + [LINE % b"[DONE]"]

    def _count(self, prompt: Any) -> int:
        if isinstance(prompt, str):
            return len(prompt.split())
        if isinstance(prompt[0], int):
            return len(prompt)
        return sum(5 + len(message["content"].split()) for message in prompt)


def piece(text: str, chat: bool) -> Json:
    return {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}


def error(status: int, code: str, message: str, headers: dict[str, str] | None = None, **more: Any) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message, **more}}, status=status, headers=headers)


async def _send(request: web.Request, parts: list[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    return response


@asynccontextmanager
async def serving(odd: Odd) -> AsyncIterator[str]:
    """Its address."""
    runner = web.AppRunner(odd.app(), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def dropping(head: bytes) -> AsyncIterator[str]:
    """A server that reads a request, answers with `head` and closes the connection."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        if length := re.search(rb"(?i)content-length: (\d+)", asked):  # what is left unread resets the connection
            await reader.readexactly(int(length[1]))
        writer.write(head)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
