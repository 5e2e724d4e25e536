"""The report page in a real browser: what the ledger says, in groups, and nothing that names could do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import expect

from tailrace.api.state import AppState
from tailrace.policy import Policy, Price, Prices
from tests.serving import chat, live, make_state, patient
from tests.ui.test_hostile import MARKUP, assert_inert, poison
from tests.ui.view import Visit

PRICES = Prices("EUR", {"default": Price(output_million=1000 * 10**9)})


@asynccontextmanager
async def used(folder: Path) -> AsyncIterator[tuple[AppState, str]]:
    """A server that has answered two requests and refused one, all in its ledger."""
    state = make_state(policy=Policy(prices=PRICES), database=f"sqlite:///{folder / 'kept.db'}")
    state.keeping.start()
    try:
        async with live(state) as base, patient(base_url=base) as client:
            for max_tokens in (3, 5, 0):
                await client.post("/v1/chat/completions", json=chat(max_tokens=max_tokens, ignore_eos=True))
            await state.ledger.close()
            yield state, base
    finally:
        await state.close()


async def test_requests_are_counted_in_the_groups_that_are_asked_for(visit: Visit, tmp_path: Path) -> None:
    async with used(tmp_path) as (_, base):
        page = await visit.open(base, "report")
        tiles = page.locator(".report .tiles dd")
        await expect(tiles.first).to_have_text("3")
        assert (await tiles.all_inner_texts())[:2] == ["3", "66.7 %"]
        assert (await tiles.all_inner_texts())[-1] == "0.01"  # 8 tokens at 1000 a million
        head, row = page.locator(".report thead th"), page.locator(".report tbody tr").first
        await expect(head.nth(1)).to_have_text("class")
        assert (await row.locator("td").all_inner_texts())[:2] == ["default", "interactive"]
        await page.get_by_label("class").uncheck()
        await page.get_by_label("bucket").uncheck()
        await expect(head.nth(1)).to_have_text("requests")
        async with page.expect_request("**/v1/report?*"):
            await page.get_by_label("Requests of").select_option("my own")
        await expect(row.locator("td").first).to_have_text("default")


async def test_names_do_nothing(visit: Visit, tmp_path: Path) -> None:
    async with used(tmp_path) as (_, base):
        await poison(visit.page, "**/admin/report?*", {})
        page = await visit.open(base, "report")
        await expect(page.locator(".report thead th").first).to_have_text(MARKUP)  # what it is grouped by
        await assert_inert(page)
