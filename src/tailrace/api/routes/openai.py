"""OpenAI's routes: chat and text completions, and the list of models."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Depends, Request, Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.exchange import Exchange, Route
from tailrace.api.openapi import body_schema, errors
from tailrace.api.state import AppState
from tailrace.errors import NotFound
from tailrace.protocol.answer import ChatAnswer, CompletionAnswer
from tailrace.protocol.ask import Ask
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.sampling import Limits, check_model
from tailrace.protocol.schema import ChatCompletion, Completion, ModelCard, ModelList


def _ask_chat(body: ChatRequest, request_id: str, state: AppState, limits: Limits) -> Ask:
    return body.ask(request_id, state.template, state.tokenizer, limits, state.dialect)


def _ask_completion(body: CompletionRequest, request_id: str, state: AppState, limits: Limits) -> Ask:
    return body.ask(request_id, state.tokenizer, limits)


CHAT = Route("chat", ChatRequest, ChatAnswer, "chatcmpl", lambda body: 1, _ask_chat)
COMPLETIONS = Route(
    "completions", CompletionRequest, CompletionAnswer, "cmpl", lambda body: len(body.prompt), _ask_completion
)

router = APIRouter(prefix="/v1", tags=["openai"], dependencies=[Depends(authorize)])


@router.post(
    "/chat/completions", responses={200: {"model": ChatCompletion}, **errors()}, openapi_extra=body_schema(ChatRequest)
)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation. With `stream: true` server-sent events of type chat.completion.chunk, then [DONE].

    The prompt and the answer share the context: a prompt that leaves no room is refused, a larger `max_tokens` than
    what is left is lowered to it.
    """
    return Exchange(request.app.state.tailrace, CHAT, request)


@router.post(
    "/completions",
    responses={200: {"model": Completion}, **errors()},
    openapi_extra=body_schema(CompletionRequest),
)
async def completions(request: Request) -> Response:
    """Continue prompts given as text or as token ids. Choice `i` of prompt `p` has index `p * n + i`.

    `max_tokens` is 16 when absent, and is lowered to what the context leaves.
    """
    return Exchange(request.app.state.tailrace, COMPLETIONS, request)


@router.get("/models", response_model=ModelList)
async def models(request: Request) -> dict[str, Any]:
    state: AppState = request.app.state.tailrace
    return {"object": "list", "data": [_card(state, name) for name in _limits(request).models]}


@router.get("/models/{model:path}", response_model=ModelCard, responses=errors(404))
async def model_card(request: Request, model: str) -> dict[str, Any]:
    state: AppState = request.app.state.tailrace
    return _card(state, check_model(model, _limits(request)))


@router.get("/requests/{request_id}", responses={200: {"content": {"application/json": {}}}, **errors(401, 404)})
async def decisions(request: Request, request_id: str) -> Response:
    """Ours: why a request of one's own went the way it did, by the `x-request-id` of its answer."""
    state: AppState = request.app.state.tailrace
    found = state.records.find(request_id, principal_of(request).tenant)
    if found is None:
        raise NotFound("There is no record of this request; the latest 2048 that ended are kept", param="request_id")
    return Response(orjson.dumps(found), media_type="application/json")


def _limits(request: Request) -> Limits:
    state: AppState = request.app.state.tailrace
    return state.limits_of(principal_of(request))


def _card(state: AppState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "tailrace",
        "max_model_len": state.limits.max_context,
    }
