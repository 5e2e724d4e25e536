"""Shapes of answers for /openapi.json. Documentation only: answers are written by `answer`."""

from __future__ import annotations

from tailrace.protocol.schema import Shown, TimingsBody


class AnthropicErrorDetail(Shown):
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_ms: int | None = None
    detail: dict[str, object] | None = None


class AnthropicError(Shown):
    type: str
    error: AnthropicErrorDetail
    request_id: str


class TextBlock(Shown):
    type: str
    text: str


class ThinkingBlock(Shown):
    type: str
    thinking: str
    signature: str


class ToolUseBlock(Shown):
    type: str
    id: str
    name: str
    input: dict[str, object]


class ThinkingDetails(Shown):
    thinking_tokens: int


class MessageUsage(Shown):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: str
    output_tokens_details: ThinkingDetails | None = None


class MessageBody(Shown):
    id: str
    type: str
    role: str
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: str
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: MessageUsage
    timings: TimingsBody


class Counted(Shown):
    input_tokens: int
