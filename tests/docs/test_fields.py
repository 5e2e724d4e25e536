"""The table of request fields in docs/api.md names what the routes take, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.protocol.body import Shape
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SECTION = TEXT.split("## Request fields")[1].split("**Unknown fields**")[0]
TABLE = [line for line in SECTION.splitlines() if line.startswith("| `")]


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)(?:\.[a-z_]+)?`", text))


@pytest.mark.parametrize("shape", [ChatRequest, CompletionRequest])
def test_every_field_is_told(shape: type[Shape]) -> None:
    assert set(shape.model_fields) - named(SECTION) == set()


def test_rows_are_of_fields() -> None:
    fields = {name for line in TABLE for name in named(line.split("|")[1])}
    assert fields <= set(ChatRequest.model_fields) & set(CompletionRequest.model_fields)
    assert all(len(line.split("|")) == 6 for line in TABLE), "field, accepted, default, notes"


def test_bounds_are_those_of_the_code() -> None:
    """Every number that a field's own type bounds it by stands in its row."""
    wrong = []
    for line in TABLE:
        accepted = set(re.findall(r"-?\d+(?:\.\d+)?", line.split("|")[2]))
        for name in named(line.split("|")[1]):
            bounds = [
                bound
                for rule in ChatRequest.model_fields[name].metadata
                for bound in (getattr(rule, kind, None) for kind in ("ge", "gt", "le", "min_length", "max_length"))
                if bound is not None and abs(bound) < 2**62
            ]
            wrong += [(name, bound) for bound in bounds if f"{bound:g}" not in accepted]
    assert wrong == []
