"""OpenAI's Responses API: make one, read it again, its input, delete it."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.exchange import Exchange
from tailrace.api.openapi import body_schema, errors
from tailrace.api.plain import json_reply
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.control.answering.routes import RESPONSES
from tailrace.database.response import KeptResponse
from tailrace.errors import InvalidRequest, NotFound, Unsupported
from tailrace.protocol.responses.page import Page, page
from tailrace.protocol.responses.request import ResponsesRequest
from tailrace.protocol.responses.schema import Deleted, ItemList, ResponseBody

routes = Table("responses", prefix="/v1/responses", guard=authorize)


@routes.post("", responses={200: {"model": ResponseBody}, **errors()}, openapi_extra=body_schema(ResponsesRequest))
async def create(request: Request) -> Response:
    """Answer input items, behind those of earlier responses. With `stream: true` the events of its making.

    Kept, unless `store` is false, for its tenant alone.
    """
    return Exchange(state_of(request), RESPONSES, request)


@routes.get("/{response_id}", responses={200: {"model": ResponseBody}, **errors(400, 401, 403, 404)})
async def retrieve(request: Request, response_id: str) -> Response:
    """A response that is kept."""
    if request.query_params.get("stream") in ("true", "1"):
        raise Unsupported("stream is for responses made in the background, which are not supported yet", param="stream")
    return Response((await _kept(request, response_id)).body, media_type="application/json")


@routes.delete("/{response_id}", responses={200: {"model": Deleted}, **errors(401, 403, 404)})
async def delete(request: Request, response_id: str) -> Response:
    """Forget a response. What goes on from it cannot be asked for any more."""
    await _kept(request, response_id)
    await state_of(request).responses.delete(principal_of(request).tenant, response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


@routes.get("/{response_id}/input_items", responses={200: {"model": ItemList}, **errors(400, 401, 403, 404)})
async def input_items(request: Request, response_id: str) -> Response:
    """The items that a response was given, its own and those of the responses before it; `limit`, `order`, `after`."""
    asked = Page.of(request.query_params)
    await _kept(request, response_id)
    found = await state_of(request).responses.chain(principal_of(request).tenant, response_id)
    return json_reply(page(_input_of(found or []), asked))


@routes.post("/{response_id}/cancel", responses=errors(400, 401, 403, 404))
async def cancel(request: Request, response_id: str) -> Response:
    """Only what is made in the background can be cancelled; others end when their client leaves."""
    await _kept(request, response_id)
    raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")


async def _kept(request: Request, response_id: str) -> KeptResponse:
    found = await state_of(request).responses.get(principal_of(request).tenant, response_id)
    if found is None:
        raise NotFound(f"Response with id {response_id[:80]!a} not found", param="response_id")
    return found


def _input_of(found: list[KeptResponse]) -> list[dict[str, Any]]:
    """What came before the last one's answer."""
    items: list[dict[str, Any]] = []
    for kept in found:
        items += orjson.loads(kept.items)
        if kept is not found[-1]:
            items += orjson.loads(kept.body)["output"]
    return items
