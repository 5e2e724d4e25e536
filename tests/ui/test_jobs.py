"""Batches made, watched and fetched in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.async_api import expect

from tailrace.backends.fake import FakeBackend, say
from tests.api.test_batches import line, server
from tests.ui.view import Visit


async def test_a_batch_is_made_of_a_file_and_its_output_fetched(visit: Visit, tmp_path: Path) -> None:
    lines, output = tmp_path / "lines.jsonl", tmp_path / "output.jsonl"
    lines.write_bytes(b"\n".join(line(f"ask-{at}") for at in range(3)))
    async with server(f"sqlite:///{tmp_path / 'kept.db'}", FakeBackend(script=say("well"))) as (_, base):
        page = await visit.open(base, "jobs")
        await page.get_by_label("Requests, one a line").set_input_files(lines)
        await page.get_by_role("button", name="Make a batch").click()
        row = page.locator(".jobs tbody tr")
        await expect(row).to_contain_text("completed")
        await expect(row).to_contain_text("3 / 3")
        async with page.expect_download() as fetched:
            await row.get_by_role("button", name="Output").click()
        await (await fetched.value).save_as(output)
        answers = [json.loads(each) for each in output.read_text().splitlines()]
        assert sorted(each["custom_id"] for each in answers) == ["ask-0", "ask-1", "ask-2"]
        assert {each["response"]["body"]["choices"][0]["message"]["content"] for each in answers} == {"well"}


async def test_a_file_that_is_no_batch_says_where_it_is_wrong(visit: Visit, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_bytes(line("same") + b"\n" + line("same") + b"\n<img src=x onerror=alert(1)>")
    async with server(f"sqlite:///{tmp_path / 'kept.db'}") as (_, base):
        page = await visit.open(base, "jobs")
        await page.get_by_label("Requests, one a line").set_input_files(lines)
        await page.get_by_role("button", name="Make a batch").click()
        status = page.locator(".jobs tbody tr td span", has_text="failed")
        await expect(status).to_be_visible()
        assert "line 2" in (await status.get_attribute("title") or "")
