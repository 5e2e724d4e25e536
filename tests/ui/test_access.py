"""The view for everyone: by keyboard alone, in the dark, on a phone, by what is read aloud, without motion."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tailrace.backends.fake import FakeBackend, say
from tests.serving import live, make_state, until
from tests.ui.view import Visit

PAGES = ("playground", "live", "requests", "report", "jobs")
ROLES = {"button", "link", "textbox", "searchbox", "combobox", "checkbox", "spinbutton", "image", "progressbar",
         "navigation", "dialog", "table", "region", "log"}  # fmt: skip

# Texts whose contrast with what they stand on is below 4.5, as [text, contrast].
CONTRASTS = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r / 255, g / 255, b / 255].map(linear)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility() || element.closest("noscript, option")) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push([node.data.trim(), contrast]);
  }
  return found;
}"""


async def through_pages(page: Page) -> Any:
    """Each page once, with what it has."""
    for name in PAGES:
        await page.locator(f"#nav a[data-page={name}]").click()
        await expect(page.locator("h1, .turn").first).to_be_visible()
        await page.wait_for_load_state("networkidle")
        yield name


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_texts_stand_out_in_both_themes_and_controls_have_names(visit: Visit, theme: str) -> None:
    visit.expected = [404, 503]
    page = visit.page
    await page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    async with live(make_state(FakeBackend(script=say("# Well\n> quoted `code` [link](https://example.org)")))) as base:
        await visit.open(base)
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", ground))) < 60) == (theme == "dark")
        await visit.ask("hello")
        session = await page.context.new_cdp_session(page)
        async for name in through_pages(page):
            assert await page.evaluate(CONTRASTS) == [], name
            tree = (await session.send("Accessibility.getFullAXTree"))["nodes"]
            unnamed = [
                node for node in tree if not node["ignored"] and node["role"]["value"] in ROLES
                and not node.get("name", {}).get("value", "").strip()
            ]  # fmt: skip
            assert [node["role"]["value"] for node in unnamed] == [], name
        assert await page.evaluate("getComputedStyle(document.querySelector('button')).transitionDuration") == "0s"


async def test_the_theme_can_be_chosen_and_stays(visit: Visit) -> None:
    async with live(make_state()) as base:
        page = await visit.open(base)
        button = page.locator("#theme")
        for expected in ("light", "dark"):
            await button.click()
            await expect(button).to_have_text(f"Theme: {expected}")
        await page.reload()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert await page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
        await button.click()
        assert await page.evaluate("({...localStorage})") == {}


async def test_a_narrow_window_shows_everything(visit: Visit) -> None:
    visit.expected = [404, 503]
    page = visit.page
    await page.set_viewport_size({"width": 400, "height": 800})
    async with live(make_state(FakeBackend(script=say("word " * 30 + "```\n" + "x" * 300 + "\n```")))) as base:
        await visit.open(base)
        await visit.ask("hello")
        async for name in through_pages(page):
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 400, name
        await page.get_by_role("link", name="Playground").click()
        await page.get_by_text("Settings", exact=True).click()
        await page.get_by_label("Temperature").fill("0.1")
        await page.get_by_role("button", name="Send").scroll_into_view_if_needed()


async def focused(page: Page) -> str:
    """The name of what has the focus, which must be seen to have it; nothing when it has left the page."""
    name, seen = await page.evaluate(
        """() => {
            const at = document.activeElement;
            if (at === document.body) return ["", true];
            const lined = (each) => each && getComputedStyle(each).outlineStyle !== "none";
            return [at.id || at.textContent.trim() || at.tagName, lined(at) || lined(at.closest(".composer"))];
        }"""
    )
    assert seen, name
    return str(name)


async def tab_to(page: Page, name: str) -> None:
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await focused(page) == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


async def test_a_conversation_by_keyboard_alone(visit: Visit) -> None:
    backend = FakeBackend(script=say("abcdefgh"), manual=True)
    state = make_state(backend)
    async with live(state) as base:
        page = await visit.open(base)
        await page.keyboard.press("Tab")
        assert await focused(page) == "skip"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        await tab_to(page, "composer")
        await page.keyboard.type("one")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("two")
        await page.keyboard.press("Enter")
        await until(lambda: backend.load().running == 1)
        await expect(page.locator("#said")).to_have_text("Answering")
        assert bytes(token for token in backend.prompts[0].tolist() if token < 256).decode().count("one\ntwo") == 1
        backend.step(2)
        await expect(page.locator(".turn.model .said")).to_have_text("ab")
        await page.keyboard.press("Escape")
        await until(lambda: state.pipeline.running == 0)
        await page.keyboard.type("again")
        await page.keyboard.press("Enter")
        await until(lambda: backend.load().running == 1)
        backend.step(20)
        await expect(page.locator("#said")).to_have_text("Answer complete, 9 tokens")  # with its end
        await tab_to(page, "Inspect")
