"""A flag for every setting, made from config.py's own rules, so that a knob is described once.

Values stay text here: config.load parses them, so flags, files and variables are refused in the same words.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import typer

from tailrace.cli.given import loaded_of
from tailrace.config import Setting, settings
from tailrace.options import dashed

Command = Callable[..., None]


def setting_flags(*wanted: str) -> Callable[[Command], Command]:
    """Give a command `--config FILE` and a flag per wanted setting ("engine.store") or section ("engine").

    It takes the result as `loaded`. The command's own arguments come first; one that has a setting's name
    stands in for that setting's flag.
    """

    def decorate(command: Command) -> Command:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "loaded"]
        taken = {p.name for p in own}
        chosen = [setting for setting in settings() if setting.section in wanted or setting.name in wanted]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            loaded = loaded_of(given, chosen)
            arguments = {name: value for name, value in given.items() if name in taken}
            command(**arguments, loaded=loaded)

        options = [_option(setting) for setting in chosen if setting.key not in taken]
        sign(run, [*own, _config_option(), *options])
        return run

    return decorate


def loaded_settings(command: Command) -> Command:
    """All sections' flags: for the commands that run a server, or explain one."""
    return setting_flags("engine", "control", "api", "data", "observe")(command)


def option_parameters(options: type) -> list[inspect.Parameter]:
    """A keyword parameter for each field of a dataclass of flags (`options.flag`)."""
    hints, parameters = get_type_hints(options), []
    for spec in fields(options):
        many = spec.metadata["many"]
        option = typer.Option(
            [] if many else spec.default,
            dashed(spec.name),
            metavar=spec.metadata["metavar"] or None,
            help=spec.metadata["help"],
        )
        parameters.append(_keyword(spec.name, list[str] if many else hints[spec.name], option))
    return parameters


def sign(command: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    """Give a function the signature that the command line reads its flags from."""
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}


def _config_option() -> inspect.Parameter:
    help = "TOML file with the sections [engine], [control], [api], [data] and [observe]"
    return _keyword("config", str | None, typer.Option(None, "--config", metavar="FILE", help=help))


def _option(setting: Setting) -> inspect.Parameter:
    if setting.type is bool:
        flag = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return _keyword(setting.key, bool | None, typer.Option(None, flag, help=setting.rule.help))
    kind = list[str] | None if setting.is_list else str | None
    option = typer.Option(None, setting.flag, metavar=_metavar(setting), help=setting.rule.help)
    return _keyword(setting.key, kind, option)


def _keyword(name: str, kind: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _metavar(setting: Setting) -> str:
    if setting.rule.choices:
        return "|".join(setting.rule.choices)
    units = {"bytes": "SIZE", "seconds": "TIME", "key": "KEY", "secret": "NAME=VALUE"}
    return units.get(setting.rule.unit) or ("TEXT" if setting.type is str else "N")
