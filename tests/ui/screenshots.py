"""The pictures of docs/ui.md, taken of a server with the default model: `python -m tests.ui.screenshots`."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from playwright.async_api import Browser, Page, async_playwright

from tests.ui.view import CHROMIUM

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "images"
WINDOW = {"width": 1280, "height": 800}
QUESTION = "Explain in three short points why rivers bend. Use a list."
OTHERS = (
    ("interactive", "Write a long story about a lighthouse keeper and the sea."),
    ("interactive", "List many kinds of bridges and what each is good for."),
    ("background", "Describe the history of maps, in detail."),
    ("interactive", "Tell me everything about how tides work. " * 40),
)


@asynccontextmanager
async def server(folder: str) -> AsyncIterator[str]:
    """The address of `tailrace serve`, with room for three requests at once."""
    flags = ("--port", "0", "--data-folder", folder, "--max-sequences", "3")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tailrace", "serve", *flags,
        stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        found = None
        while found is None:
            line = (await process.stdout.readline()).decode()
            assert line, "the server ended before it listened"
            found = re.search(r"at .*?(http://[\d.:]+)", line)
        yield found[1]
    finally:
        process.terminate()
        await process.communicate()


async def busy(base: str) -> None:
    """Requests of several classes, a few at once."""
    async with httpx.AsyncClient(base_url=base, timeout=600) as client:

        async def ask(tier: str, text: str) -> None:
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 160, "seed": 7}
            await client.post(
                "/v1/chat/completions", json={**body, "service_tier": "flex" if tier == "background" else "auto"}
            )

        await asyncio.gather(*(ask(*each) for each in OTHERS * 2))


async def ask(page: Page) -> None:
    for label, value in {"Temperature": "0.2", "Max tokens": "140", "Seed": "5"}.items():
        await page.get_by_label(label).fill(value)
    await page.fill("#composer", QUESTION)
    await page.keyboard.press("Enter")
    await page.locator(".facts-line").wait_for()
    await page.locator(".tokens .token").first.wait_for()


async def shoot(page: Page, name: str) -> None:
    await page.evaluate("document.activeElement.blur()")
    await page.screenshot(path=PICTURES / f"{name}.png")


async def take(browser: Browser, base: str, theme: str) -> None:
    page = await browser.new_page(viewport=WINDOW, color_scheme=theme)  # type: ignore[arg-type]
    page.set_default_timeout(300_000)
    await page.goto(f"{base}/ui/")
    await page.locator("#model option[value]").first.wait_for(state="attached")
    await ask(page)
    await shoot(page, f"ui-playground-{theme}")
    await page.locator(".inspector a").click()
    await page.locator(".times").wait_for()
    await shoot(page, f"ui-request-{theme}")
    await page.goto(f"{base}/ui/#/live")
    work = asyncio.create_task(busy(base))
    await asyncio.sleep(12)
    await shoot(page, f"ui-live-{theme}")
    await work
    await page.close()


async def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with server(folder) as base, async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for theme in ("light", "dark"):
                await take(browser, base, theme)
            await browser.close()
    for picture in sorted(PICTURES.glob("ui-*.png")):
        print(picture.name, picture.stat().st_size)


if __name__ == "__main__":
    asyncio.run(main())
