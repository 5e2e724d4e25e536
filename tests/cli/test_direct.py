"""A start that is read without Typer holds what Typer would have read; what is not plain is left to it."""

from __future__ import annotations

import pytest
import typer

from tailrace.cli.direct import command, plain_serve
from tailrace.cli.flags import loaded_settings
from tailrace.cli.given import loaded_of
from tailrace.cli.main import ModelArguments, main
from tailrace.config import Loaded, settings

SWITCHES = [each.flag for each in settings() if each.type is bool]


def by_typer(words: list[str]) -> Loaded:
    seen: list[Loaded] = []
    app = typer.Typer()

    @app.command()
    @loaded_settings
    def serve(model: ModelArguments = None, *, loaded: Loaded) -> None:
        seen.append(loaded)

    app(words, standalone_mode=False)
    (loaded,) = seen
    return loaded


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["one.gguf"],
        ["one.gguf", "two", "three"],
        ["--more-model", "three", "one", "two"],
        ["--more-model=two", "--more-model", "three"],
        ["--port", "9000", "one", "--host=0.0.0.0", "--kv-memory", "1GiB"],
        ["--port", "1", "--port=2"],
        ["--served-name", "a=b", "--api-key=a=b="],
        ["--served-name="],
        SWITCHES,
        [flag.replace("--", "--no-", 1) for flag in SWITCHES],
        [word for flag in SWITCHES for word in (flag, flag.replace("--", "--no-", 1))],
    ],
)
def test_plain_words_mean_what_they_mean_to_typer(words: list[str]) -> None:
    given = plain_serve(["serve", *words])
    assert given is not None
    found, expected = loaded_of(given, settings()), by_typer(words)
    assert found.config == expected.config
    assert found.origins == expected.origins


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["chat"],
        ["--help"],
        ["serve", "--help"],
        ["serve", "--"],
        ["serve", "-"],
        ["serve", "--model", "one"],
        ["serve", "--prot", "9000"],
        ["serve", "--port"],
        ["serve", "--port", "--host", "::"],
        ["serve", "--port", "-1"],
        ["serve", "--port=-1"],
        ["serve", "--no-port", "1"],
        ["serve", "--no-prot"],
        ["serve", f"{SWITCHES[0]}=true"],
    ],
)
def test_all_else_is_left_to_typer(words: list[str]) -> None:
    assert plain_serve(words) is None
    assert command(words) is main


def test_a_mistake_in_a_setting_ends_as_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command(["serve", "--port", "70000"])()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: api.port = '70000' (--port): accepted is a whole number from 0 to 65535\n"
