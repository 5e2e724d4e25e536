"""What models, users and callers write is shown and does nothing, wherever it appears."""

from __future__ import annotations

import json
from typing import Any

from playwright.async_api import Page, Route, expect

from tailrace.backends.fake import FakeBackend, say
from tests.serving import live, make_state
from tests.ui.view import Visit

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script><iframe srcdoc='<script>alert(3)</script>'></iframe>"
MARKDOWN = "\n".join(
    (
        MARKUP,
        "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](data:text/html,<script>alert(1)</script>)",
        "[d](//evil.example)",
        '[e](https://example.org/"onmouseover="alert(1)) ![f](https://evil.example/pixel.png) <https://example.org/g>',
        "[![h](x)](vbscript:x) [i](\tjavascript:alert(1)) [j](https:evil) [k](http://[) **<b onclick=alert(1)>l</b>**",
        "# <svg onload=alert(1)>",
        "- <a href='javascript:alert(1)'>m</a>",
        "> <style>body{display:none}</style>",
        "```<script>alert(1)</script>",
        "</code></pre><script>alert(1)</script>",
    )
)  # fmt: skip


async def assert_inert(page: Page) -> None:
    """Nothing but our own elements; the test's end looks at dialogs, the console and requests."""
    strange = "main :is(img, script, iframe, style, object, embed, form[action], [onclick], [onerror], [onload])"
    assert await page.locator(strange).count() == 0
    links = await page.locator("main a").evaluate_all("all => all.map(each => each.href)")
    assert [link for link in links if not link.startswith(("http://", "https://"))] == []


async def test_a_models_answer(visit: Visit) -> None:
    async with live(make_state(FakeBackend(script=say(MARKDOWN), max_context=4096))) as base:
        page = await visit.open(base)
        await visit.ask(f"{MARKUP} {MARKDOWN}")
        await assert_inert(page)
        said = await page.locator(".turn.model .said").inner_text()
        assert MARKUP in said
        assert "[a](javascript:alert(1))" in said
        assert "</code></pre><script>alert(1)</script>" in said
        assert MARKUP in await page.locator(".turn.user .said").inner_text()
        await page.locator(".tokens .token").first.wait_for()
        await page.get_by_role("button", name="Text", exact=True).click()
        assert MARKUP in await page.locator(".prompt").inner_text()
        await page.get_by_text("Request", exact=True).click()
        await assert_inert(page)


def poisoned(value: Any) -> Any:
    """Every text in it is markup."""
    if isinstance(value, dict):
        return {key: poisoned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [poisoned(each) for each in value]
    return MARKUP if isinstance(value, str) else value


async def poison(page: Page, pattern: str, extra: dict[str, Any]) -> None:
    async def answer(route: Route) -> None:
        response = await route.fetch()
        await route.fulfill(status=200, json=poisoned({**await response.json(), **extra}))

    await page.route(pattern, answer)


async def test_names_of_tenants_models_and_requests_on_the_live_page(visit: Visit) -> None:
    run = {"id": "", "tenant": "", "class": "", "phase": "", "prompt_tokens": 1, "cached_tokens": 0, "generated": 1,
           "max_tokens": 2, "age_s": 1}  # fmt: skip
    queue = {"class": "", "tenant": "", "requests": 1, "prompt_tokens": 1, "oldest_s": 1.0}
    async with live(make_state()) as base:
        await poison(visit.page, "**/admin/state", {"running": [run], "queues": [queue], "rejects": {MARKUP: 3}})
        page = await visit.open(base, "live")
        await expect(page.locator("tbody td").filter(has_text=MARKUP).first).to_be_visible()
        await page.get_by_role("cell", name=MARKUP).first.wait_for()
        await assert_inert(page)
        await page.unroute_all(behavior="ignoreErrors")  # it looks each second, and may when the server has ended
        await page.close()


async def test_a_record(visit: Visit) -> None:
    async with live(make_state(FakeBackend(script=say("well")))) as base:
        page = await visit.open(base)
        await visit.ask("hello")
        nested = {
            "admission": {"decision": "", "reason": "", "more": {"deep": [""]}},
            "error": MARKUP,
            "outcome": "failed",
        }
        await poison(
            page, "**/v1/requests/*", nested | {MARKUP: MARKUP, "waited": [{"phase": "", "ms": 2, "because": ""}]}
        )
        await page.locator(".inspector a").click()
        await page.get_by_role("heading", name=MARKUP).wait_for()
        await assert_inert(page)
        await poison(page, "**/v1/requests?*", {})
        await page.get_by_role("link", name="All requests").click()
        await page.locator(".list").get_by_role("link", name=MARKUP).wait_for()
        await assert_inert(page)


async def test_an_address(visit: Visit) -> None:
    visit.expected = [404]
    async with live(make_state()) as base:
        for name in ("requests", "live", "playground", "nothing"):
            page = await visit.open(base, f"{name}/<img src=x onerror=alert(1)>%3Cscript%3Ealert(1)%3C/script%3E%zz%00")
            await page.get_by_role("heading", level=1).wait_for()
            await assert_inert(page)


async def test_errors_in_the_servers_words(visit: Visit) -> None:
    visit.expected = [400]

    async def refuse(route: Route) -> None:
        await route.fulfill(status=400, json={"error": {"message": MARKUP, "code": MARKUP, "param": MARKUP}})

    async with live(make_state()) as base:
        page = await visit.open(base)
        await page.route("**/v1/chat/completions", refuse)
        await page.fill("#composer", "hello")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text(MARKUP)
        await assert_inert(page)


SLOW = (
    "[" * 20_000, "**a " * 7_000, "`" * 20_000, "*a" * 10_000, "[a](" * 5_000, "# " * 10_000, "> " * 10_000,
    "\n".join(" " * depth + "- a" for depth in range(1500)), "```\n" * 4_001, "http://" * 3000,
)  # fmt: skip


async def test_markdown_made_to_be_slow_or_deep(visit: Visit) -> None:
    async with live(make_state()) as base:
        page = await visit.open(base)
        depths = await page.evaluate(
            """async (texts) => {
                const { render } = await import("./markdown.js");
                const depth = (node) => 1 + Math.max(0, ...[...node.children].map(depth));
                return texts.map((text) => {
                    const place = document.createElement("div");
                    render(place, text);
                    return depth(place);
                });
            }""",
            SLOW,
        )
        assert len(depths) == len(SLOW)
        assert max(depths) < 25


async def test_an_answer_of_many_events_that_are_cut_anywhere(visit: Visit) -> None:
    events = [json.dumps({"text": f"é🚀 {at}"}, ensure_ascii=False) for at in range(3)]
    text = f": ping\r\n\r\ndata: {events[0]}\n\nevent: x\nid: 1\ndata:{events[1]}\r\n\r\n"
    text += f"data: a\rdata: b\r\rdata: {events[2]}\n\n"
    async with live(make_state()) as base:
        page = await visit.open(base)
        found = await page.evaluate(
            """async (text) => {
                const { EventParser } = await import("./sse.js");
                const all = [];
                for (let size = 1; size <= text.length; size += 1) {
                    const parser = new EventParser(), got = [];
                    for (let at = 0; at < text.length; at += size) got.push(...parser.feed(text.slice(at, at + size)));
                    all.push(JSON.stringify(got));
                }
                return [...new Set(all)];
            }""",
            text,
        )
        assert [json.loads(each) for each in found] == [[events[0], events[1], "a\nb", events[2]]]
