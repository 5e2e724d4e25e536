"""A headless Chromium for the tests of the web view: one for all of them, a fresh context for each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.ui.view import CHROMIUM, Visit


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one loop, the browser's."""
    for item in items:
        if item.path.parent.name == "ui":
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )  # root has no sandbox
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="package")
async def visit(browser: Browser) -> AsyncIterator[Visit]:
    """A page that has not been anywhere; at the end it must have nothing to complain of."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    made = await Visit.begin(context)
    yield made
    await context.close()
    assert made.complaints == []
