"""Streams that are read on after a cut, over real connections."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import Any

import httpx
import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend, say
from tailrace.policy import KeyPolicy, Policy, TenantPolicy
from tests.serving import chat, live, make_state, parse_stream, patient, until

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
TEXT = "A swift fox, Žďár and 👩🏽‍🚀, over and over again: " * 4
RESUMABLE = {"x-tailrace-resumable": "true"}


class Follower:
    """Reads a stream through connections that break, as a browser's EventSource does."""

    def __init__(self, client: httpx.AsyncClient, base: str) -> None:
        self._client = client
        self._base = base
        self.name = ""
        self.last = -1
        self.text = ""  # of whole events, without their numbers
        self.ended = False

    async def begin(self, path: str, body: dict[str, Any], most: int) -> None:
        async with self._client.stream("POST", self._base + path, json=body, headers=RESUMABLE) as response:
            assert response.status_code == 200
            self.name = response.headers["x-tailrace-stream"]
            await self._read(response, most)

    async def go_on(self, most: int) -> None:
        headers = {} if self.last < 0 else {"last-event-id": str(self.last)}
        async with self._client.stream("GET", f"{self._base}/v1/streams/{self.name}", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            await self._read(response, most)

    async def _read(self, response: httpx.Response, most: int) -> None:
        taken = b""
        async for data in response.aiter_raw():
            taken += data[: most - len(taken)]
            if len(taken) == most:
                break
        else:
            self.ended = True
        *whole, _rest = taken.decode(errors="ignore").split("\n\n")
        for event in whole:
            if not event.startswith(":"):
                number, _, data = event.partition("\n")
                assert number == f"id: {self.last + 1}"
                self.last += 1
                self.text += data + "\n\n"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", RESPONSES])
async def test_joined_pieces_are_the_plain_answer(path: str) -> None:
    cuts = random.Random(path)
    body: dict[str, Any] = {CHAT: chat("hi"), RESPONSES: {"input": "hi"}}.get(
        path, {"prompt": "hi", "max_tokens": 1000}
    )
    state = make_state(FakeBackend(script=say(TEXT), max_context=4096))
    async with live(state) as base, patient() as client:
        plain = (await client.post(base + path, json=body)).json()
        for _ in range(5):
            follower = Follower(client, base)
            await follower.begin(path, body | {"stream": True}, cuts.randrange(1, 3000))
            while not follower.ended:
                await follower.go_on(cuts.randrange(1, 3000))
            assert said(path, follower.text) == whole(path, plain) == TEXT


def whole(path: str, plain: dict[str, Any]) -> str:
    if path == RESPONSES:
        return str(plain["output"][0]["content"][0]["text"])
    choice = plain["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def said(path: str, text: str) -> str:
    if path != RESPONSES:
        streamed = parse_stream(text)
        assert streamed.done
        return streamed.text()
    events = parse_stream("".join(block.split("\n")[1] + "\n\n" for block in text.split("\n\n") if block)).events
    return "".join(event.get("delta", "") for event in events)


def slow(**options: Any) -> tuple[FakeBackend, AppState]:
    backend = FakeBackend(script=say(TEXT), max_context=4096, manual=True)
    return backend, make_state(backend, **options)


async def test_an_answer_goes_on_while_its_client_is_away() -> None:
    backend, state = slow()
    async with live(state) as base, patient() as client:
        follower = Follower(client, base)
        beginning = asyncio.create_task(follower.begin(CHAT, chat("hi", stream=True), 10))
        while not beginning.done():
            backend.step()
            await asyncio.sleep(0)
        await beginning
        stream = state.streams.find("default", follower.name)
        assert stream is not None
        await until(lambda: stream.readers == 0)
        assert state.pipeline.running == 1
        while not stream.ended:
            backend.step()
            await asyncio.sleep(0)
        await follower.go_on(1 << 20)
        assert parse_stream(follower.text).text() == TEXT
        await until(lambda: state.pipeline.running == 0)
        ended = {"route": "chat", "outcome": "ok"}
        assert state.metrics.registry.get_sample_value("tailrace_requests_total", ended) == 1


async def test_a_client_that_never_returns_frees_its_place() -> None:
    backend, state = slow(api={"stream_grace": 0.05})
    async with live(state) as base, patient() as client:
        follower = Follower(client, base)
        beginning = asyncio.create_task(follower.begin(CHAT, chat("hi", stream=True), 10))
        while not beginning.done():
            backend.step()
            await asyncio.sleep(0)
        await until(lambda: state.pipeline.running == 0 and not len(state.streams))
        gone = await client.get(f"{base}/v1/streams/{follower.name}")
        assert (gone.status_code, state.streams.size) == (404, 0)


async def test_refusals_and_plain_answers_are_as_ever() -> None:
    state = make_state(FakeBackend(script=say("ok")))
    async with live(state) as base, patient(headers=RESUMABLE) as client:
        refused = await client.post(base + CHAT, json=chat("hi", stream=True, temperature=9))
        plain = await client.post(base + CHAT, json=chat("hi"))
        wrong = await client.post(base + CHAT, json=chat("hi"), headers={"x-tailrace-resumable": "maybe"})
        assert (refused.status_code, plain.status_code, wrong.status_code) == (400, 200, 400)
        assert plain.json()["choices"][0]["message"]["content"] == "ok"
        assert wrong.json()["error"]["param"] == "x-tailrace-resumable"
        assert len(state.streams) == 0


async def test_nobody_reads_anothers_stream() -> None:
    tenants = tuple(
        TenantPolicy(name, keys=(KeyPolicy(name, f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"),))
        for name in ("a", "b")
    )
    state = make_state(FakeBackend(script=say("ok")), policy=Policy(tenants=tenants))
    async with live(state) as base, patient() as client:
        mine, other = ({"authorization": f"Bearer {name}"} for name in ("a", "b"))
        made = await client.post(base + CHAT, json=chat("hi", stream=True), headers=mine | RESUMABLE)
        path = f"{base}/v1/streams/{made.headers['x-tailrace-stream']}"
        assert (await client.get(path, headers=mine)).text == made.text
        assert (await client.get(path, headers=other)).status_code == 404
        assert (await client.get(path, headers=mine | {"last-event-id": "99"})).status_code == 404
        for bad in ("-1", "x", "9" * 40):
            assert (await client.get(path, headers=mine | {"last-event-id": bad})).status_code == 400
