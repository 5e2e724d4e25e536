"""Shapes of answers and errors for /openapi.json. Documentation only: answers are written by `answer`, not by these."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from pydantic import BaseModel, GetCoreSchemaHandler
    from pydantic_core import CoreSchema


class Shown:
    """Its annotations are the fields. Pydantic hears of it when the page is written: sixty models would cost each start
    a fiftieth of its time."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(_model(source))


@cache
def _model(shape: type[Shown]) -> type[BaseModel]:
    from pydantic import create_model  # noqa: PLC0415

    hints = get_type_hints(shape, include_extras=True)
    fields: dict[str, Any] = {name: (kind, getattr(shape, name, ...)) for name, kind in hints.items()}
    return create_model(shape.__name__, __doc__=shape.__doc__, **fields)


class ErrorDetail(Shown):
    message: str
    type: str
    param: str | None
    code: str | None
    retry_after_ms: int | None = None
    detail: dict[str, object] | None = None


class ErrorBody(Shown):
    error: ErrorDetail


class PromptDetails(Shown):
    cached_tokens: int


class CompletionDetails(Shown):
    reasoning_tokens: int


class UsageBody(Shown):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | None = None


class TimingsBody(Shown):
    ingress_ms: float
    render_ms: float
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    post_ms: float
    total_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    tokens_per_second: float | None


class Alternative(Shown):
    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobsBody(Shown):
    content: list[TokenEntry]
    refusal: None = None


class CalledFunction(Shown):
    name: str
    arguments: str


class ToolCall(Shown):
    id: str
    type: str
    function: CalledFunction


class AssistantMessage(Shown):
    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Shown):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobsBody | None
    finish_reason: str
    stop_reason: int | str | None


class PromptLogprob(Shown):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]  # for each prompt token, by token id


class ChatCompletion(Shown):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | None = None
    usage: UsageBody
    timings: TimingsBody


class CompletionLogprobsBody(Shown):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Shown):
    index: int
    text: str
    logprobs: CompletionLogprobsBody | None
    finish_reason: str
    stop_reason: int | str | None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(Shown):
    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody
    timings: TimingsBody


class ModelCard(Shown):
    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int | None
    loaded: bool
    parent: str | None


class ModelList(Shown):
    object: str
    data: list[ModelCard]


class VectorUsage(Shown):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Embedding(Shown):
    object: str
    index: int
    embedding: list[float] | str


class Embeddings(Shown):
    object: str
    data: list[Embedding]
    model: str
    usage: VectorUsage
    timings: TimingsBody


class RerankedDocument(Shown):
    text: str


class RerankResult(Shown):
    index: int
    relevance_score: float
    document: RerankedDocument | None = None


class Reranked(Shown):
    id: str
    model: str
    results: list[RerankResult]
    usage: VectorUsage
    timings: TimingsBody


class ScoreEntry(Shown):
    index: int
    object: str
    score: float


class Scored(Shown):
    id: str
    object: str
    created: int
    model: str
    data: list[ScoreEntry]
    usage: VectorUsage
    timings: TimingsBody


class Rendered(Shown):
    prompt: str


class TokenList(Shown):
    count: int
    tokens: list[int]
    max_model_len: int
    token_strs: list[str] | None = None


class Detokenized(Shown):
    prompt: str
    content: str


class Status(Shown):
    status: str
