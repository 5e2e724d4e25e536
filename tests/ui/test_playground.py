"""The playground in a real browser: answers stream, stop, are data where asked, and say where their time went."""

from __future__ import annotations

import json

from playwright.async_api import Page, expect

from tailrace.backends.fake import FakeBackend, say
from tests.api.conftest import drawing
from tests.serving import chat, live, make_state, patient, until
from tests.ui.view import Visit

ANSWER = "# A plan\n\n- first **bold**\n- second `code`\n\n```python\nprint(1)\n```\nSee [here](https://example.org/a)."


async def milliseconds(page: Page, rows: str) -> list[float]:
    texts = await page.locator(rows).all_inner_texts()
    return [float(text.replace(",", "")) for text in texts]


async def test_an_answer_streams_and_shows_as_markdown(visit: Visit) -> None:
    backend = FakeBackend(script=say(ANSWER), manual=True)
    async with live(make_state(backend)) as base:
        page = await visit.open(base)
        await page.fill("#composer", "Plan it")
        await page.keyboard.press("Enter")
        await until(lambda: backend.load().running == 1)
        backend.step(8)
        await expect(page.locator(".turn.model h3")).to_have_text("A plan")
        assert await page.locator(".log").get_attribute("aria-busy") == "true"
        backend.step(len(ANSWER))
        await page.wait_for_selector(".facts-line")
        model = page.locator(".turn.model")
        assert await model.locator("h3").inner_text() == "A plan"
        assert await model.locator("li").all_inner_texts() == ["first bold", "second code"]
        assert await model.locator("strong").inner_text() == "bold"
        assert await model.locator("pre code").inner_text() == "print(1)"
        link = model.locator("a")
        assert await link.get_attribute("href") == "https://example.org/a"
        assert "noopener" in (await link.get_attribute("rel") or "")
        assert await page.locator(".log").get_attribute("aria-busy") == "false"


async def test_the_parts_of_its_time_add_up(visit: Visit) -> None:
    async with live(make_state(FakeBackend(script=say("well")))) as base:
        page = await visit.open(base)
        await visit.ask("hello")
        parts = await milliseconds(page, ".inspector .facts tbody td:nth-child(2)")
        (total,) = await milliseconds(page, ".inspector .facts tfoot td:nth-child(2)")
        assert abs(sum(parts) - total) <= 0.006 * (len(parts) + 1)  # each is rounded
        shares = await page.locator(".turn .phase").evaluate_all("all => all.map(each => Number(each.style.flexGrow))")
        assert abs(sum(shares) - 1) < 1e-6
        assert len(shares) == len(parts)


async def test_the_prompt_is_shown_as_the_model_saw_it(visit: Visit) -> None:
    async with live(make_state(FakeBackend(script=say("well")))) as base:
        page = await visit.open(base)
        await visit.ask("Žďár 🚀")
        tokens = page.locator(".tokens .token")
        await tokens.first.wait_for()
        async with patient(base_url=base) as client:
            expected = (await client.post("/tokenize", json=chat("Žďár 🚀"))).json()["tokens"]
        titles = await tokens.evaluate_all("all => all.map(each => each.title)")
        assert titles == [f"token {at}: id {token}" for at, token in enumerate(expected)]
        await page.get_by_role("button", name="Text", exact=True).click()
        prompt = await page.locator(".prompt").inner_text()
        assert prompt == "<|im_start|>user\nŽďár 🚀<|im_end|>\n<|im_start|>assistant\n"


async def test_stopping_ends_the_answer_and_keeps_what_there_is(visit: Visit) -> None:
    backend = FakeBackend(script=say("abcdefgh"), manual=True)
    state = make_state(backend)
    async with live(state) as base:
        page = await visit.open(base)
        await page.fill("#composer", "Count")
        await page.keyboard.press("Enter")
        await until(lambda: backend.load().running == 1)
        backend.step(3)
        await expect(page.locator(".turn.model .said")).to_have_text("abc")
        await page.get_by_role("button", name="Stop").click()
        await until(lambda: state.pipeline.running == 0)
        await page.get_by_text("Stopped by you").wait_for()
        assert await page.get_by_role("button", name="Send").is_visible()
        assert await page.locator(".turn.model .said").inner_text() == "abc"


async def test_what_is_asked_for_is_what_the_fields_say(visit: Visit) -> None:
    state = make_state(FakeBackend(script=say("one two")))
    async with live(state) as base:
        page = await visit.open(base)
        await page.get_by_text("More parameters").click()
        for label, value in {
            "System prompt": "Be short", "Temperature": "0.5", "Top p": "0.9", "Max tokens": "5",
            "Seed": "12345678901234567", "Stop strings": " t\nxyz",
        }.items():  # fmt: skip
            await page.get_by_label(label).fill(value)
        async with page.expect_request("**/v1/chat/completions") as sent:
            await visit.ask("hello")
        raw = (await sent.value).post_data or ""
        body = json.loads(raw)
        assert body["messages"] == [
            {"role": "system", "content": "Be short"}, {"role": "user", "content": "hello"},
        ]  # fmt: skip
        assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.5, 0.9, 5)
        assert (body["seed"], body["stop"]) == (12345678901234567, [" t", "xyz"])
        assert "top_k" not in body
        assert await page.locator(".turn.model .said").inner_text() == "one"


async def test_an_answer_that_is_data_follows_its_schema(visit: Visit) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2, 3]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    async with drawing() as state, live(state) as base:
        page = await visit.open(base)
        await page.get_by_label("Answer as").select_option("JSON Schema")
        await page.get_by_label("Schema", exact=True).fill(json.dumps(schema))
        await visit.ask("hello")
        text = await page.locator(".turn.model pre.said").inner_text()
        assert json.loads(text)["n"] in (1, 2, 3)
        assert text.startswith("{\n  ")


async def test_a_schema_that_is_none_is_said_before_anything_is_sent(visit: Visit) -> None:
    async with live(make_state()) as base:
        page = await visit.open(base)
        await page.get_by_label("Answer as").select_option("JSON Schema")
        await page.get_by_label("Schema", exact=True).fill('{"type": <img src=x onerror=alert(1)>}')
        await page.fill("#composer", "hello")
        await page.keyboard.press("Enter")
        message = await page.get_by_label("Schema", exact=True).evaluate("field => field.validationMessage")
        assert message.startswith("This is not JSON")
        assert not any("completions" in url for url in visit.urls)


async def test_a_refusal_is_shown_in_the_servers_words_and_what_it_was_for_is_not_said_again(visit: Visit) -> None:
    visit.expected = [400]
    async with live(make_state(FakeBackend(script=say("well")))) as base:
        page = await visit.open(base)
        await page.fill("#composer", "long " * 400)
        await page.keyboard.press("Enter")
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text("context_length_exceeded")
        async with page.expect_request("**/v1/chat/completions") as sent:
            await visit.ask("short")
        assert (await sent.value).post_data_json["messages"] == [{"role": "user", "content": "short"}]
        async with page.expect_request("**/v1/chat/completions"):
            await alert.get_by_role("button", name="Try again").click()
        await expect(alert).to_contain_text("context_length_exceeded")


async def test_a_conversation_goes_on_and_begins_anew(visit: Visit) -> None:
    async with live(make_state(FakeBackend(script=say("well")))) as base:
        page = await visit.open(base)
        await visit.ask("one")
        async with page.expect_request("**/v1/chat/completions") as sent:
            await visit.ask("two")
        said = [(each["role"], each["content"]) for each in (await sent.value).post_data_json["messages"]]
        assert said == [("user", "one"), ("assistant", "well"), ("user", "two")]
        await page.get_by_role("button", name="New chat").click()
        async with page.expect_request("**/v1/chat/completions") as sent:
            await visit.ask("three")
        assert (await sent.value).post_data_json["messages"] == [{"role": "user", "content": "three"}]
