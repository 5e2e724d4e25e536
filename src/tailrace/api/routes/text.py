"""The tokenizer over HTTP, on the same path as the generating routes."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.openapi import body_schema, errors
from tailrace.api.state import AppState, state_of
from tailrace.api.table import Table
from tailrace.api.wire import off_loop, read_body
from tailrace.protocol.body import Shape, parse, unknown_fields
from tailrace.protocol.schema import Detokenized, Rendered, TokenList
from tailrace.protocol.tokenize import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest

routes = Table("text", guard=authorize)


@routes.post("/tokenize", responses={200: {"model": TokenList}, **errors()}, openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """The ids that the engine would see for a prompt or for messages."""
    state = state_of(request)
    body = await _body(request, state)
    parsed = await off_loop(len(body), lambda: parse(TokenizeRequest, body))
    async with state.using(parsed.model, principal_of(request), request.state.timeline) as (model, limits):

        def work() -> Response:
            ids: list[int] = parsed.tokens(
                model.template, model.tokenizer, limits, model.dialect, generates=model.backend.caps.generates
            ).tolist()
            found: dict[str, Any] = {"count": len(ids), "tokens": ids, "max_model_len": limits.max_context}
            if parsed.return_token_strs:
                found["token_strs"] = [model.tokenizer.decode([token]) for token in ids]
            return _json(found, parsed)

        return await off_loop(len(body), work)


@routes.post(
    "/detokenize", responses={200: {"model": Detokenized}, **errors()}, openapi_extra=body_schema(DetokenizeRequest)
)
async def detokenize(request: Request) -> Response:
    """The text of token ids; bytes that are no whole characters become U+FFFD."""
    state = state_of(request)
    body = await _body(request, state)

    parsed = await off_loop(len(body), lambda: parse(DetokenizeRequest, body))
    async with state.using(parsed.model, principal_of(request), request.state.timeline) as (model, limits):

        def work() -> Response:
            text = parsed.text(model.tokenizer, limits)
            return _json({"prompt": text, "content": text}, parsed)

        return await off_loop(len(body), work)


@routes.post(
    "/apply-template", responses={200: {"model": Rendered}, **errors()}, openapi_extra=body_schema(ApplyTemplateRequest)
)
async def apply_template(request: Request) -> Response:
    """Messages as the model's chat template writes them, with what it puts in front of an answer."""
    state = state_of(request)
    body = await _body(request, state)
    parsed = await off_loop(len(body), lambda: parse(ApplyTemplateRequest, body))
    async with state.using(parsed.model, principal_of(request), request.state.timeline) as (model, limits):

        def work() -> Response:
            text = parsed.rendered(model.template, model.tokenizer, limits, model.dialect)
            return _json({"prompt": text}, parsed)

        return await off_loop(len(body), work)


async def _body(request: Request, state: AppState) -> bytes:
    return await read_body(request.scope, request.receive, state.config.api.max_body_bytes)


def _json(body: dict[str, Any], asked: Shape) -> Response:
    warning = unknown_fields(asked)
    headers = None if warning is None else {"x-tailrace-warning": warning}
    return Response(orjson.dumps(body), headers=headers, media_type="application/json")
