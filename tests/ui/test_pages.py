"""Live, requests and keys in a real browser: what runs is seen and can be ended, and keys stay where they belong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tailrace.backends.fake import FakeBackend, say
from tests.api.test_operator import POLICY
from tests.serving import chat, live, make_state, patient, until
from tests.ui.view import Visit


async def storage(page: Page) -> tuple[dict[str, str], dict[str, str]]:
    found: list[dict[str, str]] = await page.evaluate("[{...sessionStorage}, {...localStorage}]")
    return found[0], found[1]


async def enter_key(page: Page, *, user: str = "", admin: str = "", remember: bool = False) -> None:
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("API key", exact=True).fill(user)
    await dialog.get_by_label("Admin key", exact=True).fill(admin)
    await dialog.get_by_label("Remember on this computer").set_checked(remember)
    await dialog.get_by_role("button", name="Save").click()
    await dialog.wait_for(state="detached")


async def test_the_live_page_shows_what_runs_and_waits_and_ends_it(visit: Visit) -> None:
    backend = FakeBackend(max_sequences=1, manual=True)
    state = make_state(backend)
    async with live(state) as base, patient(base_url=base) as client:
        bodies = [chat(f"hello {at}", stream=True, max_tokens=40) for at in range(3)]
        tasks = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for body in bodies]
        await until(lambda: (state.pipeline.running, state.pipeline.waiting) == (1, 2))
        backend.step(5)
        await until(lambda: state.pipeline.runs()[0].generated == 5)
        page = await visit.open(base, "live")
        running = page.get_by_role("region", name="Running requests").locator("tbody tr")
        await expect(running).to_have_count(1)
        await expect(running).to_contain_text("5 / 40")
        await expect(running).to_contain_text("decode")
        queues = page.get_by_role("region", name="Waiting requests by class and tenant").locator("tbody td")
        assert (await queues.all_inner_texts())[:3] == ["interactive", "default", "2"]
        tiles = dict(
            zip(*[await page.locator(f".board > .tiles {tag}").all_inner_texts() for tag in ("dt", "dd")], strict=True)
        )
        assert (tiles["Running"], tiles["Waiting"]) == ("1", "2")
        kv = state.pipeline.lanes[0].backend.inspect()
        await expect(page.locator(".kv")).to_have_attribute(
            "aria-label",
            f"KV blocks: {kv.kv_referenced} in use, {kv.kv_cached} cached, can be evicted, {kv.kv_free} free",
        )
        first = state.pipeline.runs()[0].id
        ending = page.get_by_role("button", name=f"Cancel {first}")
        await ending.click()
        await page.get_by_role("button", name=f"Really cancel {first}").click()
        assert "cancelled_by_operator" in (await tasks[0]).text
        await expect(running).to_have_count(1)  # the next
        assert state.pipeline.runs()[0].id != first
        for task in tasks[1:]:
            await until(lambda task=task: backend.step(8) or task.done())  # type: ignore[misc]
        await expect(page.get_by_text("Nothing runs.")).to_be_visible()
        await expect(page.get_by_role("region", name="Latency")).to_contain_text("first token")


async def test_looking_stops_with_the_page_and_by_the_button(visit: Visit) -> None:
    async with live(make_state()) as base:
        page = await visit.open(base, "live")

        def looks() -> int:
            return sum("/admin/state" in url for url in visit.urls)

        await expect(page.locator(".board")).to_be_visible()
        async with page.expect_request("**/admin/state"):  # the next by itself
            pass
        await page.get_by_role("button", name="Pause").click()
        before = looks()
        async with page.expect_request("**/admin/state"):
            await page.get_by_role("button", name="Pause").click()
        assert looks() == before + 1
        await page.get_by_role("link", name="Playground").click()
        await page.wait_for_load_state("networkidle")
        before = looks()
        await visit.ask("hello")
        assert looks() == before


async def test_a_record_is_found_from_its_answer(visit: Visit) -> None:
    visit.expected = [404]
    async with live(make_state(FakeBackend(script=say("well")))) as base, patient(base_url=base) as client:
        page = await visit.open(base)
        await visit.ask("hello")
        link = page.locator(".inspector a")
        request_id = await link.inner_text()
        await link.click()
        await page.get_by_role("heading", name=request_id).wait_for()
        record: dict[str, Any] = (await client.get(f"/v1/requests/{request_id}")).json()
        rows = page.locator(".times tbody tr")
        names = await rows.locator("th").all_inner_texts()
        assert names == [name for name, spent in record["phases_ms"].items() if spent]
        values = await rows.locator("td:nth-child(2)").all_inner_texts()
        shown = [float(value.replace(",", "")) for value in values]
        assert shown == pytest.approx([spent for spent in record["phases_ms"].values() if spent], abs=0.0051)
        total = await page.locator(".times tfoot td").first.inner_text()
        assert float(total.replace(",", "")) == pytest.approx(record["total_ms"], abs=0.0051)
        await expect(page.locator("main")).to_contain_text(record["admission"]["reason"])
        await page.get_by_role("link", name="All requests").click()
        await expect(page.locator(".list tbody tr")).to_have_count(1)
        await page.locator(".list").get_by_role("link", name=request_id).click()
        await page.get_by_role("heading", name=request_id).wait_for()
        await page.get_by_label("Request", exact=True).fill("never-was")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("There is no record of a request 'never-was'")


async def test_a_key_is_asked_for_and_stays_in_the_tab(visit: Visit) -> None:
    visit.expected = [401, 403]
    async with live(make_state(FakeBackend(script=say("well")), policy=POLICY)) as base:
        page = await visit.open(base)
        await page.get_by_role("button", name="Enter a key").click()
        await enter_key(page, user="alice")
        await expect(page.get_by_role("alert")).to_have_count(0)
        await visit.ask("hello")
        assert await storage(page) == ({"tailrace.key": "alice"}, {})
        await page.get_by_role("link", name="Live").click()
        await expect(page.get_by_role("alert")).to_contain_text("scope admin")
        await page.get_by_role("button", name="Enter a key").click()
        await enter_key(page, user="alice", admin="root")
        await expect(page.locator(".board")).to_be_visible()
        assert not [url for url in visit.urls if "alice" in url or "root" in url]
        assert "alice" not in await page.content()
        await page.get_by_role("button", name="Keys").click()
        await enter_key(page, user="alice", remember=True)
        assert await storage(page) == ({}, {"tailrace.key": "alice"})
        await page.get_by_role("button", name="Keys").click()
        await page.get_by_role("button", name="Forget both").click()
        assert await storage(page) == ({}, {})


async def test_a_key_that_no_header_can_hold_is_not_taken(visit: Visit) -> None:
    async with live(make_state()) as base:
        page = await visit.open(base)
        await page.get_by_role("button", name="Keys").click()
        field = page.get_by_role("dialog").get_by_label("API key", exact=True)
        await field.fill("schlüssel")
        await page.get_by_role("button", name="Save").click()
        assert "ASCII" in await field.evaluate("field => field.validationMessage")
        assert await storage(page) == ({}, {})
        await page.keyboard.press("Escape")
        await page.get_by_role("dialog").wait_for(state="detached")
