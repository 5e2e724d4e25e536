"""Stopping a server process (case 23): signals, what running and waiting answers get, the exit code."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager

import httpx
import pytest

from tests.scenarios.child import child
from tests.serving import chat, parse_stream

CHAT = "/v1/chat/completions"


def server(drain_timeout: float, *more: str) -> AbstractAsyncContextManager[tuple[asyncio.subprocess.Process, str]]:
    """Nothing is answered before `go_on`."""
    return child("tests.scenarios.fake_server", str(drain_timeout), *more)


def go_on(process: asyncio.subprocess.Process, line: bytes = b"\n") -> None:
    assert process.stdin is not None
    process.stdin.write(line)


async def running(client: httpx.AsyncClient, base: str, count: int) -> None:
    """Return when that many requests run."""
    await shown(client, base, f"tailrace_requests_running {count}.0")


async def shown(client: httpx.AsyncClient, base: str, line: str) -> None:
    """Return when the metrics say so. Each look is a round trip, so nothing spins."""
    async with asyncio.timeout(120):
        while line not in (await client.get(base + "/metrics")).text:
            pass


async def not_ready(client: httpx.AsyncClient, base: str) -> None:
    """Return when the server has begun to stop."""
    async with asyncio.timeout(120):
        while (await client.get(base + "/health/ready")).status_code != 503:
            pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_running_and_waiting_answers_finish(number: signal.Signals) -> None:
    async with server(600) as (process, base), httpx.AsyncClient(timeout=120) as client:
        bodies = [chat(stream=i % 2 == 0, max_tokens=30, ignore_eos=True) for i in range(8)]
        tasks = [asyncio.create_task(client.post(base + CHAT, json=body)) for body in bodies]
        await running(client, base, 4)
        process.send_signal(number)
        await not_ready(client, base)
        refused = [await client.post(base + CHAT, json=chat(stream=stream)) for stream in (True, False)]
        assert [r.status_code for r in refused] == [503, 503]
        assert all(int(r.headers["retry-after"]) >= 1 for r in refused)
        go_on(process)
        answers = await asyncio.gather(*tasks)
        assert [a.status_code for a in answers] == [200] * 8
        assert all(parse_stream(a.text).done for a in answers[::2])
        assert await asyncio.wait_for(process.wait(), 120) == 0


async def test_when_the_drain_time_is_up_the_rest_get_errors() -> None:
    async with server(0.2) as (process, base), httpx.AsyncClient(timeout=120) as client:
        bodies = [chat(stream=i % 2 == 0, max_tokens=400, ignore_eos=True) for i in range(6)]
        tasks = [asyncio.create_task(client.post(base + CHAT, json=body)) for body in bodies[:4]]
        await running(client, base, 4)
        tasks += [asyncio.create_task(client.post(base + CHAT, json=body)) for body in bodies[4:]]
        await shown(client, base, "tailrace_requests_waiting 2.0")
        process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*tasks)
        for answer in answers:
            if answer.status_code == 200:
                assert parse_stream(answer.text).events[-1]["error"]["code"] == "draining"
            else:
                assert answer.status_code == 503
        assert sum(a.status_code == 200 for a in answers) == 2
        assert await asyncio.wait_for(process.wait(), 120) == 0


async def test_a_second_signal_stops_at_once() -> None:
    async with server(1000) as (process, base), httpx.AsyncClient(timeout=120) as client:
        task = asyncio.create_task(client.post(base + CHAT, json=chat(stream=True, max_tokens=400, ignore_eos=True)))
        await running(client, base, 1)
        process.send_signal(signal.SIGTERM)
        await not_ready(client, base)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 120) == 0
        assert parse_stream((await task).text).events[-1]["error"]["code"] == "draining"


async def test_eight_run_eight_wait_and_two_signals_come() -> None:
    """Case 23: everyone has an end, the late ones a 503, and the second signal is the last."""
    async with server(1000, "8") as (process, base), httpx.AsyncClient(timeout=120) as client:
        bodies = [chat(stream=True, max_tokens=400, ignore_eos=True) for _ in range(16)]
        tasks = [asyncio.create_task(client.post(base + CHAT, json=body)) for body in bodies]
        await running(client, base, 8)
        await shown(client, base, "tailrace_requests_waiting 8.0")
        process.send_signal(signal.SIGTERM)
        await not_ready(client, base)
        assert (await client.get(base + "/health/live")).status_code == 200
        for late in [await client.post(base + CHAT, json=chat(stream=stream)) for stream in (True, False)]:
            assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
            assert int(late.headers["retry-after"]) >= 1
        assert not any(task.done() for task in tasks)
        process.send_signal(signal.SIGTERM)
        answers = await asyncio.gather(*tasks)
        assert await asyncio.wait_for(process.wait(), 120) == 0
    streams = [answer for answer in answers if answer.status_code == 200]
    assert len(streams) >= 8
    assert all(parse_stream(answer.text).events[-1]["error"]["code"] == "draining" for answer in streams)
    for answer in answers:
        if answer not in streams:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")


async def test_an_engine_that_is_given_up_ends_the_process_with_status_1() -> None:
    async with server(1000, "1", "0") as (process, base), httpx.AsyncClient(timeout=120) as client:
        bodies = [chat(stream=stream, max_tokens=400, ignore_eos=True) for stream in (True, False)]
        streamed = asyncio.create_task(client.post(base + CHAT, json=bodies[0]))
        await running(client, base, 1)
        waits = asyncio.create_task(client.post(base + CHAT, json=bodies[1]))
        await shown(client, base, "tailrace_requests_waiting 1.0")
        go_on(process, b"fault\n")
        assert parse_stream((await streamed).text).events[-1]["error"]["code"] == "engine_stalled"
        refused = await waits
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stalled")
        assert refused.headers["retry-after"] == "1"
        assert await asyncio.wait_for(process.wait(), 120) == 1


async def test_two_servers_of_which_one_is_drained_lose_nothing() -> None:
    """Clients that go to the other server on a 503, as a load balancer does."""
    async with server(600) as (first, a), server(600) as (second, b), httpx.AsyncClient(timeout=120) as client:

        async def ask(order: list[str]) -> str:
            for base in order:
                answer = await client.post(base + CHAT, json=chat(stream=True, max_tokens=5, ignore_eos=True))
                if answer.status_code != 503:
                    assert answer.status_code == 200
                    assert parse_stream(answer.text).done
                    return base
            raise AssertionError("nobody took it")

        early = [asyncio.create_task(ask([a, b])) for _ in range(12)]
        await running(client, a, 4)
        first.send_signal(signal.SIGTERM)
        await not_ready(client, a)
        late = [asyncio.create_task(ask([a, b])) for _ in range(12)]
        await running(client, b, 4)
        go_on(first)
        go_on(second)
        assert await asyncio.gather(*early) == [a] * 12
        assert await asyncio.gather(*late) == [b] * 12
        assert await asyncio.wait_for(first.wait(), 120) == 0
