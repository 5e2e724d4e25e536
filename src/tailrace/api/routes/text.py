"""The tokenizer over HTTP, on the same path as the generating routes."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize
from tailrace.api.openapi import body_schema, errors
from tailrace.api.state import AppState, state_of
from tailrace.api.table import Table
from tailrace.api.wire import off_loop, read_body
from tailrace.protocol.body import Shape, parse, unknown_fields
from tailrace.protocol.schema import Detokenized, TokenList
from tailrace.protocol.tokenize import DetokenizeRequest, TokenizeRequest

routes = Table("text", guard=authorize)


@routes.post("/tokenize", responses={200: {"model": TokenList}, **errors()}, openapi_extra=body_schema(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """The ids that the engine would see for a prompt or for messages."""
    state = state_of(request)
    body = await _body(request, state)

    def work() -> Response:
        parsed = parse(TokenizeRequest, body)
        ids: list[int] = parsed.tokens(state.template, state.tokenizer, state.limits, state.dialect).tolist()
        return _json({"count": len(ids), "tokens": ids, "max_model_len": state.limits.max_context}, parsed)

    return await off_loop(len(body), work)


@routes.post(
    "/detokenize", responses={200: {"model": Detokenized}, **errors()}, openapi_extra=body_schema(DetokenizeRequest)
)
async def detokenize(request: Request) -> Response:
    """The text of token ids; bytes that are no whole characters become U+FFFD."""
    state = state_of(request)
    body = await _body(request, state)

    def work() -> Response:
        parsed = parse(DetokenizeRequest, body)
        return _json({"prompt": parsed.text(state.tokenizer, state.limits)}, parsed)

    return await off_loop(len(body), work)


async def _body(request: Request, state: AppState) -> bytes:
    return await read_body(request.scope, request.receive, state.config.api.max_body_bytes)


def _json(body: dict[str, Any], asked: Shape) -> Response:
    warning = unknown_fields(asked)
    headers = None if warning is None else {"x-tailrace-warning": warning}
    return Response(orjson.dumps(body), headers=headers, media_type="application/json")
