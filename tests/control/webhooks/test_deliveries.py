"""Webhooks on their way: signed as clients check, tried again, followed nowhere, given up in the end."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai
import pytest
from aiohttp import web

from tailrace.clock import ManualClock
from tailrace.control.deferred.standing import RESPONSE
from tailrace.control.tenants import Tenants
from tailrace.control.webhooks.deliveries import Deliveries
from tailrace.database.job import Job, JobState, NewLine
from tailrace.database.keeping import Keeping
from tailrace.database.kept import Kept
from tailrace.database.webhook import Webhook
from tailrace.errors import InvalidRequest
from tailrace.policy import Policy, TenantPolicy
from tests.serving import until

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
Answer = Callable[[int], web.Response]


@dataclass
class Receiver:
    """A server that says what `answer` makes of the number of requests before."""

    answer: Answer
    place: str = ""
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        number = len(self.got)
        self.got.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        return self.answer(number)


@asynccontextmanager
async def receiver(answer: Answer) -> AsyncIterator[Receiver]:
    made = Receiver(answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.place = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


@dataclass
class Sending:
    clock: ManualClock
    kept: Kept
    keeping: Keeping
    deliveries: Deliveries | None = None
    id: str = ""

    def start(self, *hosts: str, secret: str = SECRET) -> Deliveries:
        tenants = Tenants(Policy(tenants=(TenantPolicy("default", webhook_secret=secret),)))
        self.deliveries = Deliveries(self.keeping, tenants, hosts, self.clock)
        self.deliveries.start()
        return self.deliveries

    async def send(self, url: str) -> None:
        """Of a background response that has ended."""
        now = self.clock.wall()
        self.id = (await self.kept.webhooks.add("default", "resp_0", url, now)).id
        job = Job("resp_0", RESPONSE, "default", "", "/v1/responses", now, now + 99, state=JobState.IN_PROGRESS)
        await self.kept.jobs.add(job, [NewLine(0, "", "/v1/responses", "fake", "{}")])
        await self.kept.jobs.cancel("default", RESPONSE, "resp_0", now)

    async def state(self) -> Webhook:
        found = await self.kept.webhooks.of("default", "resp_0")
        assert found is not None
        return found

    async def tried(self, times: int) -> Webhook:
        """After so many tries, the next of them as soon as one is noted."""
        assert self.deliveries is not None
        while (found := await self.state()).attempts < times:
            if found.due is not None and found.attempts and found.due > self.clock.wall():
                self.clock.advance(found.due - self.clock.wall())
            self.deliveries.nudge()
            await asyncio.sleep(0.001)
        return found


@pytest.fixture
async def sending(tmp_path: Path) -> AsyncIterator[Sending]:
    keeping = Keeping(f"sqlite:///{tmp_path / 'kept.db'}", patience=60)
    keeping.start()
    made = Sending(ManualClock(wall=time.time()), await keeping.needed(), keeping)
    yield made
    if made.deliveries is not None:
        await made.deliveries.close()
    await keeping.close()


async def test_a_webhook_is_signed_as_clients_check(sending: Sending) -> None:
    async with receiver(lambda number: web.Response()) as target:
        await sending.send(f"http://{target.place}/hook")
        sending.start(target.place)
        assert (await sending.tried(1)).state == "delivered"
    ((headers, body),) = target.got
    assert headers["webhook-id"] == sending.id
    client = openai.OpenAI(api_key="x")
    event = client.webhooks.unwrap(body, headers, secret=SECRET)
    assert (event.type, event.data.id) == ("response.cancelled", "resp_0")
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body + b" ", headers, secret=SECRET)


async def test_what_fails_is_tried_again_with_the_same_id(sending: Sending) -> None:
    async with receiver(lambda number: web.Response(status=(500, 429, 302, 204)[number])) as target:
        await sending.send(f"http://{target.place}/")
        sending.start(target.place)
        begun = sending.clock.wall()
        found = await sending.tried(4)
        assert (found.state, found.status, found.error) == ("delivered", 204, None)
        assert [headers["webhook-id"] for headers, _ in target.got] == [sending.id] * 4
        assert sending.clock.wall() - begun >= 0.8 * (5 + 30 + 120)
        assert sending.deliveries is not None
        assert sending.deliveries.tried == {"again": 3, "delivered": 1}
        assert (found.due, await sending.kept.webhooks.pending()) == (None, 0)


async def test_redirects_are_not_followed(sending: Sending) -> None:
    async with receiver(lambda number: web.Response()) as inner:
        to_inner = {"location": f"http://{inner.place}/secret"}
        async with receiver(lambda number: web.Response(status=307, headers=to_inner)) as target:
            await sending.send(f"http://{target.place}/")
            sending.start(target.place)
            found = await sending.tried(1)
    assert (found.state, found.status, found.error, inner.got) == ("waiting", 307, "status 307", [])


async def test_it_is_given_up_in_the_end_or_at_once_where_nobody_wants_it(sending: Sending) -> None:
    async with receiver(lambda number: web.Response(status=503)) as target:
        await sending.send(f"http://{target.place}/")
        sending.start(target.place)
        found = await sending.tried(9)
        assert (found.state, found.attempts, len(target.got)) == ("failed", 9, 9)


async def test_gone_is_an_answer(sending: Sending) -> None:
    async with receiver(lambda number: web.Response(status=410)) as target:
        await sending.send(f"http://{target.place}/")
        sending.start(target.place)
        assert (await sending.tried(1)).state == "failed"


async def test_where_it_may_go_is_asked_at_each_try(sending: Sending) -> None:
    async with receiver(lambda number: web.Response()) as target:
        await sending.send(f"http://{target.place}/")
        sending.start("hooks.example.com")
        found = await sending.tried(1)
    assert (found.state, found.status, target.got) == ("waiting", None, [])
    assert found.error is not None
    assert "may not go to" in found.error


async def test_a_listed_name_that_stands_for_this_machine(sending: Sending, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def poisoned(host: str, port: int, **options: object) -> object:
        return await real("127.0.0.1", port, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "getaddrinfo", poisoned)
    async with receiver(lambda number: web.Response()) as target:
        port = target.place.split(":")[1]
        await sending.send(f"https://hooks.example.com:{port}/")
        sending.start(f"hooks.example.com:{port}")
        found = await sending.tried(1)
    assert (found.state, found.status, target.got) == ("waiting", None, [])
    assert found.error is not None
    assert "may not go to" in found.error


async def test_nobody_there(sending: Sending) -> None:
    async with receiver(lambda number: web.Response()) as target:
        pass
    await sending.send(f"http://{target.place}/")
    sending.start(target.place)
    found = await sending.tried(1)
    assert (found.state, found.status) == ("waiting", None)
    assert found.error is not None


async def test_without_a_secret_none_is_taken(sending: Sending) -> None:
    deliveries = sending.start("hooks.example.com", secret="")
    with pytest.raises(InvalidRequest) as refused:
        deliveries.check("default", "https://hooks.example.com/", "webhook")
    assert "webhook_secret" in refused.value.message


async def test_a_server_that_dies_between_answer_and_note_sends_it_again(sending: Sending) -> None:
    async with receiver(lambda number: web.Response()) as target:
        await sending.send(f"http://{target.place}/")
        await sending.kept.webhooks.ripen(sending.clock.wall(), lambda *_: "{}")
        assert len(await sending.kept.webhooks.claim(sending.clock.wall(), 60.0, 9)) == 1  # and then it was killed
        deliveries = sending.start(target.place)
        sending.clock.advance(61.0)
        deliveries.nudge()
        await until(lambda: target.got)
        assert (await sending.tried(1)).state == "delivered"
