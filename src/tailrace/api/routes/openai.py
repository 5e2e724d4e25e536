"""OpenAI's routes: chat and text completions, and the list of models."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.exchange import Exchange
from tailrace.api.openapi import body_schema, errors
from tailrace.api.plain import json_reply
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.control.answering.routes import CHAT, COMPLETIONS
from tailrace.control.models import Served
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.schema import ChatCompletion, Completion, ModelCard, ModelList

routes = Table("openai", prefix="/v1", guard=authorize)


@routes.post(
    "/chat/completions", responses={200: {"model": ChatCompletion}, **errors()}, openapi_extra=body_schema(ChatRequest)
)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation. With `stream: true` server-sent events of type chat.completion.chunk, then [DONE].

    The prompt and the answer share the context: a prompt that leaves no room is refused, a larger `max_tokens` than
    what is left is lowered to it.
    """
    return Exchange(state_of(request), CHAT, request)


@routes.post(
    "/completions",
    responses={200: {"model": Completion}, **errors()},
    openapi_extra=body_schema(CompletionRequest),
)
async def completions(request: Request) -> Response:
    """Continue prompts given as text or as token ids. Choice `i` of prompt `p` has index `p * n + i`.

    `max_tokens` is 16 when absent, and is lowered to what the context leaves.
    """
    return Exchange(state_of(request), COMPLETIONS, request)


@routes.get("/models", response_model=ModelList)
async def models(request: Request) -> Response:
    models, tenant = state_of(request).models, principal_of(request).tenant
    cards = [_card(request, models.find(name, tenant)) for name in models.names(tenant)]
    return json_reply({"object": "list", "data": cards})


@routes.get("/models/{model:path}", response_model=ModelCard, responses=errors(404))
async def model_card(request: Request, model: str) -> Response:
    return json_reply(_card(request, state_of(request).models.find(model, principal_of(request).tenant)))


def _card(request: Request, served: Served) -> dict[str, Any]:
    """The context's length is known once the model has been loaded."""
    limits = state_of(request).limits_of(principal_of(request), served.name, served.loaded)
    return {
        "id": served.name,
        "object": "model",
        "created": int(served.created),
        "owned_by": "tailrace",
        "max_model_len": None if served.loaded is None else limits.max_context,
        "loaded": served.loaded is not None,
        "parent": None if served.adapter is None else served.base.name,
    }
