"""From the words of a command line to what runs. A server's start is read here where its words are plain: Typer takes a
sixth of a warm start to import and to make seventy flags. All else, help and mistakes too, is Typer's."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tailrace.cli.given import loaded_of
from tailrace.cli.output import EXIT_INTERRUPTED, user_errors
from tailrace.config import Loaded, Setting, settings
from tailrace.knobs import Rule

_CONFIG = Setting("", "config", str, Rule("the file"))  # `--config FILE`


def command(words: Sequence[str]) -> Callable[[], None]:
    """What those words ask for; imported, except for what a server needs."""
    given = plain_serve(words)
    if given is not None:
        return partial(_run, given)
    from tailrace.cli.main import main

    return main


def plain_serve(words: Sequence[str]) -> dict[str, Any] | None:
    """What `serve` is given, as Typer would say it: values by a setting's key, the file as `config`. None for other
    commands, and where a flag is unknown or has no value that looks like one."""
    if not words or words[0] != "serve":
        return None
    flags = {each.flag: each for each in (*settings(), _CONFIG)}
    del flags["--model"]  # models are words without a flag
    given: dict[str, Any] = {"model": []}
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            given["model"].append(word)
            continue
        flag, equals, value = word.partition("=")
        on = flag in flags
        setting = flags.get(flag if on else flag.replace("--no-", "--", 1))
        if setting is not None and setting.type is bool and not equals:
            given[setting.key] = on
            continue
        value = value if equals else next(rest, "-")
        if setting is None or setting.type is bool or not on or value.startswith("-"):
            return None
        given[setting.key] = [*given.get(setting.key, []), value] if setting.is_list else value
    return given


def serve(loaded: Loaded) -> bool:
    """See `cli.serve.run_server`."""
    gc.disable()  # while parts load nothing becomes garbage; run_server turns it on again
    from tailrace.cli.serve import run_server

    return run_server(loaded)


def _run(given: dict[str, Any]) -> None:
    try:
        with user_errors():
            if not serve(loaded_of(given, settings())):
                raise SystemExit(1)
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
