"""The tokenizer over HTTP, on the same path as the generating routes."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize
from tailrace.api.openapi import body_schema, errors
from tailrace.api.plain import asked_of_model
from tailrace.api.table import Table
from tailrace.control.models import Loaded
from tailrace.protocol.sampling import Limits
from tailrace.protocol.schema import Detokenized, Rendered, TokenList
from tailrace.protocol.tokenize import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest

routes = Table("text", guard=authorize)


@routes.post("/tokenize", responses={200: {"model": TokenList}, **errors()}, openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """The ids that the engine would see for a prompt or for messages."""
    return await asked_of_model(request, TokenizeRequest, _tokens)


@routes.post(
    "/detokenize", responses={200: {"model": Detokenized}, **errors()}, openapi_extra=body_schema(DetokenizeRequest)
)
async def detokenize(request: Request) -> Response:
    """The text of token ids; bytes that are no whole characters become U+FFFD."""
    return await asked_of_model(request, DetokenizeRequest, _text)


@routes.post(
    "/apply-template", responses={200: {"model": Rendered}, **errors()}, openapi_extra=body_schema(ApplyTemplateRequest)
)
async def apply_template(request: Request) -> Response:
    """Messages as the model's chat template writes them, with what it puts in front of an answer."""
    return await asked_of_model(request, ApplyTemplateRequest, _rendered)


def _tokens(asked: TokenizeRequest, model: Loaded, limits: Limits) -> dict[str, Any]:
    generates = model.backend.caps.generates
    ids = asked.tokens(model.template, model.tokenizer, limits, model.dialect, generates=generates).tolist()
    found: dict[str, Any] = {"count": len(ids), "tokens": ids, "max_model_len": limits.max_context}
    if asked.return_token_strs:
        found["token_strs"] = [model.tokenizer.decode([token]) for token in ids]
    return found


def _text(asked: DetokenizeRequest, model: Loaded, limits: Limits) -> dict[str, Any]:
    text = asked.text(model.tokenizer, limits)
    return {"prompt": text, "content": text}


def _rendered(asked: ApplyTemplateRequest, model: Loaded, limits: Limits) -> dict[str, Any]:
    return {"prompt": asked.rendered(model.template, model.tokenizer, limits, model.dialect)}
