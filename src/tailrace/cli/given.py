"""From what a command line gave, by name, to the settings that hold. Whoever reads command lines ends here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tailrace.config import Loaded, Setting, load


def loaded_of(given: dict[str, Any], chosen: Iterable[Setting]) -> Loaded:
    """`given` has values by a setting's key, as text, and the file as `config`. Raises ConfigError."""
    _divide_models(given)
    flags = {setting.name: given[setting.key] for setting in chosen if given.get(setting.key) not in (None, [])}
    return load(given.get("config") or "", flags=flags)


def _divide_models(given: dict[str, Any]) -> None:
    """Several models of a command line: the first, and more."""
    if isinstance(given.get("model"), list):
        first, *more = given["model"] or [None]
        given["model"], given["more_models"] = first, [*more, *(given.get("more_models") or [])]
