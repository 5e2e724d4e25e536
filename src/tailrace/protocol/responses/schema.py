"""Shapes of answers for /openapi.json. Documentation only: answers are written by `answer`."""

from __future__ import annotations

from typing import Any

from tailrace.protocol.schema import Shown, TimingsBody, TokenEntry


class OutputText(Shown):
    type: str
    text: str
    annotations: list[object]
    logprobs: list[TokenEntry]


class OutputMessage(Shown):
    id: str
    type: str
    status: str
    role: str
    content: list[OutputText]


class FunctionCall(Shown):
    id: str
    type: str
    status: str
    call_id: str
    name: str
    arguments: str


class ReasoningText(Shown):
    type: str
    text: str


class ReasoningItem(Shown):
    id: str
    type: str
    status: str
    summary: list[ReasoningText]
    content: list[ReasoningText]


class InputDetails(Shown):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Shown):
    reasoning_tokens: int


class ResponseUsage(Shown):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(Shown):
    code: str
    message: str
    type: str | None
    param: str | None


class Incomplete(Shown):
    reason: str


class ResponseBody(Shown):
    """Besides these, what the request said, with its defaults."""

    id: str
    object: str
    created_at: int
    completed_at: int | None
    status: str
    model: str
    output: list[OutputMessage | FunctionCall | ReasoningItem]
    error: ResponseFailure | None
    incomplete_details: Incomplete | None
    previous_response_id: str | None
    usage: ResponseUsage | None
    timings: TimingsBody | None = None


class ItemList(Shown):
    object: str
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class InputTokens(Shown):
    object: str
    input_tokens: int


class Deleted(Shown):
    id: str
    object: str
    deleted: bool
