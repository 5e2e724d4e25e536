"""On a real socket: clients that hang up, late statuses, pings, stopping."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from typing import Any

import httpx
import pytest

from tailrace.api import connection
from tailrace.api.connection import MAX_HEAD, BoundedConnection
from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tests.serving import chat, gauge, live, make_state, parse_stream, patient, until

CHAT = "/v1/chat/completions"
LONG = {"max_tokens": 400, "ignore_eos": True}


def gauges(state: AppState) -> tuple[float, float]:
    return gauge(state, "tailrace_requests_running"), gauge(state, "tailrace_requests_waiting")


class Caller:
    """A raw connection, so that it can be closed at any moment."""

    def __init__(self, base: str) -> None:
        self.host, port = base.removeprefix("http://").split(":")
        self.port = int(port)

    async def send(self, body: dict[str, Any]) -> None:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        data = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_waiting(stream: bool) -> None:
    backend = FakeBackend(max_sequences=1, manual=True)
    state = make_state(backend, api={"commit_after": 0.0})
    async with live(state) as base:
        first, second = Caller(base), Caller(base)
        await first.send(chat(**LONG))
        await until(lambda: gauges(state) == (1, 0))
        await second.send(chat(stream=stream, **LONG))
        await until(lambda: gauges(state) == (1, 1))
        await second.leave()
        await until(lambda: gauges(state) == (1, 0))
        await first.leave()
        await until(lambda: gauges(state) == (0, 0))
        assert len(backend.started_ids) == 1


@pytest.mark.parametrize("padding", [0, 200_000])  # behind a large body the web server does not read on by itself
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_during_prefill(stream: bool, padding: int) -> None:
    backend = FakeBackend(manual=True)
    state = make_state(backend)
    async with live(state) as base:
        caller = Caller(base)
        await caller.send(chat("word " * 80, stream=stream, n=2, max_tokens=50, user="x" * padding))
        await until(lambda: backend.load().running == 2)
        await caller.leave()
        await until(lambda: gauges(state) == (0, 0))
        load = backend.load()
        assert (load.running, load.kv_blocks_free) == (0, load.kv_blocks_total)
        assert state.metrics.registry.get_sample_value("tailrace_generated_tokens_total") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_tokens_flow(stream: bool) -> None:
    backend = FakeBackend(manual=True)
    state = make_state(backend)
    async with live(state) as base:
        caller = Caller(base)
        await caller.send(chat(stream=stream, **LONG))
        await until(lambda: backend.load().running == 1)
        backend.step(3)
        await until(lambda: gauge(state, "tailrace_generated_tokens_total") == 3)
        if stream:
            await caller.reader.readuntil(b"content")
        await caller.leave()
        await until(lambda: gauges(state) == (0, 0))
        assert backend.load().running == 0
        backend.step(5)
        assert gauge(state, "tailrace_generated_tokens_total") == 3
        outcome = {"route": "chat", "outcome": "cancelled"}
        await until(lambda: state.metrics.registry.get_sample_value("tailrace_requests_total", outcome) == 1)
        answer = asyncio.create_task(patient().post(base + CHAT, json=chat(max_tokens=2)))
        await until(lambda: backend.load().running == 1)
        backend.step(2)
        assert (await answer).status_code == 200


async def test_leaving_while_the_prompt_is_worked_on() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow:
        def render(self, *args: Any, **kwargs: Any) -> str:
            begun.set()
            assert go_on.wait(120)
            return "prompt"

    backend = FakeBackend()
    state = make_state(backend, chat=Slow())  # type: ignore[arg-type]
    async with live(state) as base:
        caller = Caller(base)
        await caller.send(chat(user="u" * 20_000))  # a body that is worked on in a thread
        await until(begun.is_set)
        assert gauges(state) == (0, 1)
        async with patient() as client:
            assert (await client.get(base + "/health/live")).status_code == 200
        await caller.leave()
        await until(lambda: gauges(state) == (0, 0))
        go_on.set()
    assert backend.prompts == []


async def test_leaving_while_the_body_is_sent() -> None:
    state = make_state()
    async with live(state) as base:
        caller = Caller(base)
        caller.reader, caller.writer = await asyncio.open_connection(caller.host, caller.port)
        caller.writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{{".encode())
        await caller.writer.drain()
        await caller.leave()
        outcome = {"route": "chat", "outcome": "cancelled"}
        await until(lambda: state.metrics.registry.get_sample_value("tailrace_requests_total", outcome) == 1)
        assert gauges(state) == (0, 0)


async def test_a_refusal_has_its_status_though_a_stream_was_asked_for() -> None:
    state = make_state(FakeBackend(max_sequences=1, manual=True), control={"max_waiting_requests": 0})
    async with live(state) as base, patient() as client:
        running = Caller(base)
        await running.send(chat(stream=True))
        await until(lambda: gauges(state) == (1, 0))
        response = await client.post(base + CHAT, json=chat(stream=True))
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["retry_after_ms"] > 0
        assert response.json()["error"]["code"] == "queue_full"
        assert response.headers["content-type"] == "application/json"
        await running.leave()


async def test_a_waiting_stream_is_committed_in_time_and_then_pinged() -> None:
    backend = FakeBackend(max_sequences=1, manual=True)
    state = make_state(backend, api={"commit_after": 0.0, "ping_interval": 0.001})
    async with live(state) as base, patient() as client:
        first = Caller(base)
        await first.send(chat(**LONG))
        await until(lambda: gauges(state) == (1, 0))
        async with client.stream("POST", base + CHAT, json=chat(stream=True, max_tokens=2)) as response:
            assert response.status_code == 200
            lines = response.aiter_lines()
            assert (await anext(lines)).startswith(":")
            assert gauges(state) == (1, 1)
            await first.leave()
            await until(lambda: len(backend.started_ids) == 2)
            backend.step(2)
            rest = "\n".join([line async for line in lines])
        assert parse_stream(rest.strip("\n")).finish() == ["length"]


async def test_the_status_goes_out_at_dispatch_not_at_the_first_token() -> None:
    backend = FakeBackend(manual=True)
    state = make_state(backend, api={"commit_after": 1000.0})
    async with (
        live(state) as base,
        patient() as client,
        client.stream("POST", base + CHAT, json=chat(stream=True)) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert gauges(state) == (1, 0)


async def test_stopping_lets_running_answers_finish_and_refuses_new_ones() -> None:
    backend = FakeBackend(max_sequences=2, manual=True)
    state = make_state(backend, control={"drain_timeout": 60.0})
    async with patient() as client:
        server = live(state)
        base = await server.__aenter__()
        tasks = [
            asyncio.create_task(client.post(base + CHAT, json=chat(stream=i % 2 == 0, max_tokens=3))) for i in range(4)
        ]
        await until(lambda: gauges(state) == (2, 2))
        drain = asyncio.create_task(state.pipeline.drain(60))
        await until(lambda: state.pipeline.draining)
        refused = await client.post(base + CHAT, json=chat(stream=True))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert (await client.get(base + "/health/ready")).status_code == 503
        assert (await client.get(base + "/health/live")).status_code == 200
        for started in (2, 4):
            await until(lambda started=started: len(backend.started_ids) == started)
            backend.step(3)
        answers = await asyncio.gather(*tasks)
        assert [answer.status_code for answer in answers] == [200] * 4
        assert [parse_stream(answer.text).done for answer in answers[::2]] == [True, True]
        await drain
        await server.__aexit__(None, None, None)


async def test_a_second_stop_ends_everything_with_typed_errors() -> None:
    backend = FakeBackend(max_sequences=2, manual=True)
    state = make_state(backend, control={"drain_timeout": 1000.0}, api={"commit_after": 0.0})
    async with patient() as client:
        async with live(state) as base:
            bodies = [chat(stream=stream, **LONG) for stream in (True, False, True, False)]
            tasks = []
            for body, expected in zip(bodies, [(1, 0), (2, 0), (2, 1), (2, 2)], strict=True):
                tasks.append(asyncio.create_task(client.post(base + CHAT, json=body)))
                await until(lambda expected=expected: gauges(state) == expected)
            # leaving the block stops twice
        running_stream, running_plain, waiting_stream, waiting_plain = await asyncio.gather(*tasks)
    for streamed in (running_stream, waiting_stream):
        assert streamed.status_code == 200
        parsed = parse_stream(streamed.text)
        assert parsed.events[-1]["error"]["code"] == "draining"
        assert not parsed.done
    for plain in (running_plain, waiting_plain):
        assert plain.status_code == 503
        assert plain.headers["retry-after"]
    assert gauges(state) == (0, 0)


async def test_a_hanging_backend_does_not_hold_the_server() -> None:
    state = make_state(FaultyBackend(FakeBackend(), lambda request: Fault(Kind.HANG, 1)))
    async with patient() as client:
        async with live(state) as base:
            task = asyncio.create_task(client.post(base + CHAT, json=chat()))
            await until(lambda: gauge(state, "tailrace_generated_tokens_total") == 1)
        result = (await asyncio.gather(task, return_exceptions=True))[0]
    assert isinstance(result, httpx.TransportError) or result.status_code == 503
    assert gauges(state) == (0, 0)


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_a_body_that_never_comes_does_not_hold_the_server_nor_fill_its_log(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with live(state := make_state()) as base:
        caller = Caller(base)
        caller.reader, caller.writer = await asyncio.open_connection(caller.host, caller.port)
        caller.writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
        async with patient(base_url=base) as client:  # its answer shows that the other's head has been read
            assert (await client.post(CHAT, json=chat(max_tokens=1))).status_code == 200
    assert await caller.reader.read() == b""
    assert "Traceback" not in caplog.text
    assert gauges(state) == (0, 0)


async def test_a_large_body_is_refused_and_the_connection_serves_on() -> None:
    state = make_state(api={"max_body_bytes": 100_000})
    async with live(state) as base, patient() as client:
        response = await client.post(base + CHAT, content=b"x" * 10_000_000)
        assert response.status_code == 413
        assert (await client.post(base + CHAT, json=chat(max_tokens=1))).status_code == 200


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nx: ", b"GET / HTTP/1.1\r\n"])
async def test_an_endless_head_is_refused_and_does_not_fill_the_memory(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    received, refused, receive = 0, False, BoundedConnection.data_received

    def counted(connection: BoundedConnection, data: bytes) -> None:
        nonlocal received, refused
        receive(connection, data)
        received += len(data)
        refused = refused or connection._refused is not None

    monkeypatch.setattr(BoundedConnection, "data_received", counted)
    more = b"y" * 65536 if not start.endswith(b"\r\n") else b"name: value\r\n" * 5000
    async with live(make_state()) as base:
        caller = Caller(base)
        caller.reader, caller.writer = await asyncio.open_connection(caller.host, caller.port)
        caller.writer.write(start)
        sent = len(start)
        while not refused:
            caller.writer.write(more)
            sent += len(more)
            assert sent < 2 * MAX_HEAD
            await until(lambda: received == sent or refused)  # noqa: B023 - awaited here
        caller.writer.write(more)  # what is on its way then does not cost it the answer
        answer = await caller.reader.read()
        await caller.leave()
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "head_too_large"
        async with patient(base_url=base) as client:
            large = {"x-large": "z" * 60_000}
            assert (await client.get("/v1/models", headers=large)).status_code == 200


async def test_a_refused_client_that_stays_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER", 0.01)
    lost, lose = asyncio.Event(), BoundedConnection.connection_lost

    def losing(self: BoundedConnection, error: Exception | None) -> None:
        lose(self, error)
        lost.set()

    monkeypatch.setattr(BoundedConnection, "connection_lost", losing)
    async with live(make_state()) as base:
        caller = Caller(base)
        caller.reader, caller.writer = await asyncio.open_connection(caller.host, caller.port)
        caller.writer.write(b"GET /" + b"y" * 4 * MAX_HEAD)
        async with asyncio.timeout(120):
            await lost.wait()
        await caller.leave()


async def test_a_connection_that_breaks_is_not_kept_for_its_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[tuple[BoundedConnection, Exception | None]] = []
    lose = BoundedConnection.connection_lost

    def losing(self: BoundedConnection, error: Exception | None) -> None:
        lose(self, error)
        broken.append((self, error))

    monkeypatch.setattr(BoundedConnection, "connection_lost", losing)
    async with live(make_state()) as base:
        caller = Caller(base)
        await caller.send(chat(max_tokens=1))
        await caller.reader.readuntil(b"}]")
        reset = struct.pack("ii", 1, 0)  # what closing sends: not an end, but that nothing counts any more
        caller.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        caller.writer.transport.abort()
        await until(lambda: broken)
    (gone, error) = broken[0]
    assert isinstance(error, ConnectionResetError)
    assert gone.timeout_keep_alive_task is None


async def test_a_client_that_takes_nothing_is_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "max_stall", 0.05)
    state = make_state(FakeBackend(max_context=1 << 16))
    async with live(state) as base:
        caller = Caller(base)
        await caller.send({**chat(stream=True, logprobs=True, top_logprobs=20), **LONG, "max_tokens": 20_000})
        caller.writer.transport.pause_reading()  # type: ignore[attr-defined]
        ended = {"route": "chat", "outcome": "cancelled"}
        await until(lambda: state.metrics.registry.get_sample_value("tailrace_requests_total", ended) == 1)
        assert gauges(state) == (0, 0)
