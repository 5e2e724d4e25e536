"""How many requests and prompt tokens wait, from the door on, wherever they are: in all, by tenant and by class."""

from __future__ import annotations

from collections.abc import Iterable

ALL = "all"


def tenant_scope(name: str) -> str:
    return f"tenant {name}"


def class_scope(name: str) -> str:
    return f"class {name}"


class Waiting:
    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {ALL: [0, 0]}

    def add(self, scopes: Iterable[str], requests: int, tokens: int) -> None:
        """Negative numbers take away what was added."""
        for scope in scopes:
            count = self._counts.setdefault(scope, [0, 0])
            count[0] += requests
            count[1] += tokens
            assert min(count) >= 0, f"{scope} counts {count}"

    def of(self, scope: str) -> tuple[int, int]:
        """(requests, prompt tokens)."""
        requests, tokens = self._counts.get(scope, (0, 0))
        return requests, tokens

    @property
    def requests(self) -> int:
        return self._counts[ALL][0]
