from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.protocol.body import parse
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.thinking import leaving_room
from tailrace.text.parsers.dialect import Dialect
from tailrace.types import Thinking
from tests.protocol.test_requests import HI, LIMITS, TOKENIZER
from tests.serving import template


def budget(**fields: Any) -> int | None:
    """Of a model that thinks, its context of 64 tokens."""
    chat = template("{{ messages[0]['content'] }}")
    body = parse(ChatRequest, json.dumps({"messages": HI, **fields}).encode())
    dialect = Dialect.of(chat, TOKENIZER, reasoning_parser="think")
    found = body.ask("id", chat, TOKENIZER, LIMITS, dialect).requests[0].thinking
    assert found is not None
    return found.budget


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"guided_regex": "a+"}, 10),
        ({"guided_regex": "a+", "max_tokens": 9}, 4),
        ({"guided_regex": "a+", "thinking_token_budget": 15}, 15),
        ({"guided_regex": "a+", "reasoning_effort": "minimal"}, 256),
    ],
)
def test_an_answer_that_must_follow_a_grammar_has_room(fields: dict[str, Any], expected: int | None) -> None:
    assert budget(**{"max_tokens": 20} | fields) == expected


def test_no_thoughts_need_no_bound() -> None:
    assert leaving_room(None, 20) is None
    kept = Thinking("<a>", "</a>", budget=0)
    assert leaving_room(kept, 20) == kept
