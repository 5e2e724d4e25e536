"""The tables of request fields in docs/api.md name what the routes take, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.protocol.body import Shape
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.messages.request import CountRequest, MessagesRequest
from tailrace.protocol.responses.request import ResponsesRequest

TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
SECTION = TEXT.split("## Request fields")[1].split("**Unknown fields**")[0]
RESPONSES = TEXT.split("\n## Responses")[1].split("\n## ")[0]
MESSAGES = TEXT.split("\n## Messages")[1].split("\n## ")[0]


def rows(section: str) -> list[str]:
    return [line for line in section.splitlines() if line.startswith("| `")]


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)(?:\.[a-z_]+)?`", text))


@pytest.mark.parametrize("shape", [ChatRequest, CompletionRequest])
def test_every_field_is_told(shape: type[Shape]) -> None:
    assert set(shape.model_fields) - named(SECTION) == set()


@pytest.mark.parametrize(("shape", "section"), [(ResponsesRequest, RESPONSES), (MessagesRequest, MESSAGES)])
def test_every_field_of_the_other_forms_has_a_row(shape: type[Shape], section: str) -> None:
    assert {name for line in rows(section) for name in named(line.split("|")[1])} == set(shape.model_fields)


def test_counting_takes_what_messages_take() -> None:
    assert set(CountRequest.model_fields) < set(MessagesRequest.model_fields)


def test_rows_are_of_fields() -> None:
    fields = {name for line in rows(SECTION) for name in named(line.split("|")[1])}
    assert fields <= set(ChatRequest.model_fields) & set(CompletionRequest.model_fields)


@pytest.mark.parametrize("section", [SECTION, RESPONSES, MESSAGES])
def test_rows_have_four_cells(section: str) -> None:
    assert all(len(line.split("|")) == 6 for line in rows(section)), "field, accepted, default, notes"


@pytest.mark.parametrize(
    ("shape", "section"), [(ChatRequest, SECTION), (ResponsesRequest, RESPONSES), (MessagesRequest, MESSAGES)]
)
def test_bounds_are_those_of_the_code(shape: type[Shape], section: str) -> None:
    """Every number that a field's own type bounds it by stands in its row, or in that of chat."""
    wrong = []
    for line in rows(section):
        cell = line.split("|")[2]
        accepted = set(re.findall(r"-?\d+(?:\.\d+)?", cell))
        for name in named(line.split("|")[1]):
            bounds = [
                bound
                for rule in shape.model_fields[name].metadata
                for bound in (getattr(rule, kind, None) for kind in ("ge", "gt", "le", "min_length", "max_length"))
                if bound is not None and abs(bound) < 2**62
            ]
            wrong += [(name, bound) for bound in bounds if f"{bound:g}" not in accepted and cell != " as for chat "]
    assert wrong == []
