"""`tailrace keys new`: what it prints opens the door it is put into."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tailrace.cli.main import app
from tailrace.config import load
from tailrace.control.tenants import Tenants
from tailrace.errors import ConfigError
from tests.serving import live, make_state


def test_a_new_key_works_with_the_lines_printed_for_it(tmp_path: Path) -> None:
    asked = ["keys", "new", "ops", "--scope", "admin", "--expires", "2100-01-31"]
    result = CliRunner().invoke(app, asked, catch_exceptions=False)
    key = result.stdout.strip()
    assert key.startswith("sk-")
    assert key not in result.stderr
    file = tmp_path / "t.toml"
    file.write_text('[[tenants]]\nname = "acme"\n' + result.stderr.partition("[[tenants]] entry:")[2], encoding="utf-8")
    principal = Tenants.of(load(str(file), {}).config).identify(key, 0.0)
    assert (principal.tenant, principal.key, principal.scopes) == ("acme", "ops", {"admin"})
    assert principal.expires == 4_105_036_800.0


@pytest.mark.parametrize(
    "wrong",
    [["--scope", "all"], ["--expires", "soon"], ["--expires", "2027-99-99"], ["--expires", "2027-01-31 25:00:00"]],
)
def test_what_would_not_be_read_is_not_printed(wrong: list[str]) -> None:
    with pytest.raises(ConfigError, match=wrong[0]):
        CliRunner().invoke(app, ["keys", "new", "x", *wrong], catch_exceptions=False)


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a\nb", "-x", "a" * 65])
def test_a_name_that_the_file_could_not_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a name is made of"):
        CliRunner().invoke(app, ["keys", "new", "--", name], catch_exceptions=False)


@pytest.mark.parametrize("expires", ["2100-01-31 10:00:00", "2100-01-31T10:00:00Z", "2100-01-31T12:00:00+02:00"])
def test_the_printed_moment_is_read_back(tmp_path: Path, expires: str) -> None:
    result = CliRunner().invoke(app, ["keys", "new", "ops", "--expires", expires], catch_exceptions=False)
    file = tmp_path / "t.toml"
    file.write_text('[[tenants]]\nname = "acme"\n' + result.stderr.partition("[[tenants]] entry:")[2], encoding="utf-8")
    principal = Tenants.of(load(str(file), {}).config).identify(result.stdout.strip(), 0.0)
    assert principal.expires == 4_105_072_800.0


async def test_a_key_is_made_at_a_server() -> None:
    state = make_state(api={"admin_keys": (sha256(b"root").hexdigest(),)})
    async with live(state) as base:

        def new(*more: str) -> Result:
            asked = ["keys", "new", "ci", "--url", base, "--key", "root", *more]
            return CliRunner().invoke(app, asked)

        made = await asyncio.to_thread(new)
        assert state.pipeline.tenants.identify(made.stdout.strip(), 0.0).key == "ci"
        assert "until the server ends" in made.stderr
        again = await asyncio.to_thread(new)
        assert "has a key ci" in str(again.exception)
        nobody = await asyncio.to_thread(new, "--tenant", "nobody")
        assert "no tenant nobody" in str(nobody.exception)
