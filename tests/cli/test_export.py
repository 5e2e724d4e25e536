"""`tailrace export` on both kinds of databases: every row once, in both formats, page by page."""

from __future__ import annotations

import asyncio
import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.database import export
from tailrace.database.database import Database
from tailrace.database.kept import Kept
from tailrace.errors import ConfigError
from tests.database.test_ledger import entry


@pytest.fixture
def filled(url: str) -> str:
    """Rows of the first seconds after 1970-01-01T00:16:40Z, a second apart."""

    async def fill() -> None:
        database = Database(url)
        await database.open()
        kept = Kept(database)
        await kept.ledger.add([entry(n, "acme" if n % 2 else "other").row() for n in range(10)])
        said = {"success": True, "score": 1.0, "task": "t", "comment": 'a "b",\nc', "tenant": "acme", "at": 1.0}
        (first,) = await kept.ledger.latest("acme", 1)
        await kept.feedback.put({"entry_id": first["entry_id"], **said})
        await database.close()

    asyncio.run(fill())
    return url


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def rows(file: Path) -> list[dict[str, Any]]:
    with open(file, encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def test_csv(filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_AT_ONCE", 5)
    file = tmp_path / "ledger.csv"
    assert run(str(file), "--database", filled) == f"10 rows in {file}\n"
    found = rows(file)
    assert [row["request_id"] for row in found] == [f"r{n}" for n in range(10)]
    assert json.loads(found[0]["phases"])["wait"] == 10_000
    assert (found[9]["feedback_comment"], found[8]["feedback_score"]) == ('a "b",\nc', "")
    since, until = "1970-01-01T00:16:42", "1970-01-01T01:16:47+01:00"
    run(str(file), "--database", filled, "--since", since, "--until", until, "--tenant", "acme")
    assert [row["request_id"] for row in rows(file)] == ["r3", "r5", "r7"]  # opened a moment before they ended


def test_no_text_is_a_formula_to_a_spreadsheet(url: str, tmp_path: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "a=1", "'"]

    async def fill() -> None:
        database = Database(url)
        await database.open()
        await Kept(database).ledger.add([replace(entry(n), task=text).row() for n, text in enumerate(texts)])
        await database.close()

    asyncio.run(fill())
    run(str(tmp_path / "ledger.csv"), "--database", url)
    found = [row["task"] for row in rows(tmp_path / "ledger.csv")]
    assert found == [f"'{text}" for text in texts[:6]] + texts[6:]
    run(str(tmp_path / "ledger.parquet"), "--database", url, "--format", "parquet")
    assert pq.read_table(tmp_path / "ledger.parquet")["task"].to_pylist() == texts


def test_parquet(filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_AT_ONCE", 4)
    file = tmp_path / "ledger.parquet"
    run(str(file), "--database", filled, "--format", "parquet")
    found = pq.read_table(file).to_pylist()
    assert [row["request_id"] for row in found] == [f"r{n}" for n in range(10)]
    assert (found[3]["total_us"], found[3]["tools"], found[3]["feedback_success"]) == (41_000, False, None)
    assert (found[9]["feedback_success"], found[9]["deadline_met"]) == (True, None)
    empty = tmp_path / "empty.parquet"
    run(str(empty), "--database", filled, "--format", "parquet", "--tenant", "nobody")
    assert pq.read_table(empty).num_rows == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["x.csv", "--database", "none"], "nothing is kept"),
        (["x.csv", "--database", "sqlite:///nowhere.db"], "there is no database"),
        (["x.csv", "--format", "xls"], "csv | parquet"),
        (["x.csv", "--since", "yesterday"], "--since yesterday"),
        (["no/such/x.csv"], "there is no folder"),
    ],
)
def test_what_cannot_be(arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, ["export", *arguments], catch_exceptions=False)
    assert says in caught.value.message
    assert list(tmp_path.iterdir()) == []
