"""`tailrace report`: the same numbers as tables, JSON and a page; nothing in a name is markup or moves a cursor."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tailrace.database.database import Database
from tailrace.database.entry_id import new_entry_id
from tailrace.database.ledger import LedgerTable
from tests.cli.test_main import call
from tests.database.test_ledger import entry

HOSTILE = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twenty requests of the last twenty hours."""
    url = f"sqlite:///{tmp_path_factory.mktemp('report') / 'kept.db'}"

    async def fill() -> None:
        database = Database(url)
        await database.open()
        now = time.time()
        rows = [
            replace(
                entry(n), entry_id=new_entry_id(now - 3600 * n - 60), opened=now - 3600 * n - 60, bucket="<256",
                tenant=HOSTILE if n % 2 else "acme", model="\x1b[31m[red]m", request_class="interactive",
                queue_us=1000 * n, ttft_us=2000 * n, tpot_us=None, total_us=9000, price=1_500_000, device_us=500_000,
                outcome="ok" if n else "error", deadline_met=n > 3,
            )
            for n in range(20)
        ]  # fmt: skip
        await LedgerTable(database).add([row.row() for row in rows])
        await database.close()

    asyncio.run(fill())
    return url


def written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert call(monkeypatch, "report", *arguments) == 0
    return capsys.readouterr().out


def test_the_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str) -> None:
    out = written(monkeypatch, capsys, "--database", url, "--by", "tenant,bucket")
    lines = [line.split() for line in out.splitlines()]
    assert "worst first: by the P99 of the time to the first token" in out
    begin = lines.index(["tenant", "bucket", "requests", "queue", "TTFT", "E2E"])  # no TPOT: nobody has one
    assert lines[begin + 1][:2] == ["all", "20"]
    assert lines[begin + 2][0].startswith("<script>") and lines[begin + 3][0] == "acme"
    assert lines[begin + 3][-2] == "18/34/36"  # 0, 4, ... 36 ms
    begin = lines.index(
        ["tenant", "bucket", "error", "ok", "prompt", "cached", "output", "device", "s", "USD", "in", "time"]
    )
    assert lines[begin + 1][:3] == ["all", "1", "19"]
    assert lines[begin + 1][-5:] == ["10.0", "30", "80.0%", "of", "20"]


def test_a_name_does_nothing_to_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    out = written(monkeypatch, capsys, "--database", url, "--by", "model")
    assert "\x1b" not in out
    assert "\ufffd[31m[red]m" in out


def test_json_is_what_the_api_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path
) -> None:
    settings = tmp_path / "t.toml"
    settings.write_text('[prices]\ncurrency = "EUR"\n')
    asked = ("--database", url, "--tenant", "acme", "--since", "12h", "--format", "json", "--config", str(settings))
    data = json.loads(written(monkeypatch, capsys, *asked))
    assert (data["tenant"], data["currency"], data["total"]["requests"], data["total"]["money"]) == (
        "acme",
        "EUR",
        6,
        9.0,
    )
    assert data["by"] == ["tenant", "class", "bucket"]


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_loads_nothing_and_shows_names_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path
) -> None:
    file = tmp_path / "out.html"
    assert written(monkeypatch, capsys, "--database", url, "--format", "html", "--output", str(file)) == ""
    text, page = file.read_text(encoding="utf-8"), Page()
    page.feed(text)
    assert not {"script", "link", "img", "iframe", "a"} & set(page.tags)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert HOSTILE in page.texts
    assert page.tags.count("svg") == 7  # three distributions, two latencies over time, requests, money
    assert page.tags.count("table") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--database", "sqlite:////nowhere/kept.db"), "there is no file /nowhere/kept.db"),
        (("--database", "none"), "there is no ledger to report on"),
        (("--since", "soon"), "--since 'soon': accepted is a time ago"),
        (("--by", "tenant,size"), "--by 'size': accepted are tenant, class, bucket, model, day"),
        (("--format", "pdf"), "--format 'pdf': accepted is table | json | html"),
    ],
)
def test_what_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert call(monkeypatch, "report", *arguments) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert call(monkeypatch, "report", "--database", url, "--output", "/nowhere/out.txt") == 2
    assert "--output /nowhere/out.txt: No such file or directory" in capsys.readouterr().err
