"""A real Prometheus scrapes a live server, evaluates the rules, and answers everything that the dashboard asks."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import anyio

from tailrace.backends.fake import FakeBackend, say
from tailrace.types import Accelerator
from tests.deploy.expressions import drawn, everything
from tests.prometheus_server import TOOL, Prometheus, needs_prometheus, prometheus
from tests.serving import chat, live, make_state, patient

pytestmark = needs_prometheus


async def shown(server: Prometheus, expression: str, value: str) -> None:
    """Wait until an expression has one sample, of this value. The limit only ends what hangs."""
    with anyio.fail_after(120):
        while [each["value"][1] for each in await server.query(expression)] != [value]:  # noqa: ASYNC110
            await anyio.sleep(0.05)


async def evaluated(server: Prometheus) -> None:
    """Wait until each rule has been."""
    with anyio.fail_after(120):
        while any(rule["health"] == "unknown" for rule in await server.rules()):  # noqa: ASYNC110 - another process' state
            await anyio.sleep(0.05)


async def test_a_real_prometheus_makes_sense_of_it(tmp_path: Path) -> None:
    backend = FakeBackend(script=say("pong"))
    backend.accelerators = (Accelerator("gpu0", 0.5, 1, 2),)
    async with live(make_state(backend)) as url, patient(base_url=url) as client:
        for fields in ({}, {"stream": True}, {"max_tokens": 0, "temperature": -1}):
            await client.post("/v1/chat/completions", json=chat(**fields))
        async with prometheus(tmp_path, url.removeprefix("http://")) as server:
            await shown(server, 'up{job="tailrace"}', "1")
            await shown(server, "tailrace_ready", "1")
            await shown(server, 'tailrace_requests_total{route="chat",outcome="ok"}', "2")
            await shown(server, 'tailrace_errors_total{domain="ingress",kind="format"}', "1")
            await shown(server, 'sum(tailrace_slo_requests_total{met="true"})', "2")
            await shown(server, 'tailrace_ttft_seconds_count{outcome="ok",model="fake"}', "2")
            await evaluated(server)
            assert {rule["name"]: rule["lastError"] for rule in await server.rules() if rule.get("lastError")} == {}
            for expression in everything():
                await server.query(expression)
            assert (await server.query("ALERTS{alertstate='firing'}")) == []


async def test_the_text_passes_promtool() -> None:
    async with live(make_state()) as url, patient(base_url=url) as client:
        await client.post("/v1/chat/completions", json=chat())
        text = (await client.get("/metrics")).content
    tool = await asyncio.create_subprocess_exec(str(TOOL), "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=STDOUT)
    said, _ = await tool.communicate(text)
    assert (tool.returncode, said) == (0, b"")


def test_the_dashboard_asks_for_something() -> None:
    assert len(list(drawn())) > 60
