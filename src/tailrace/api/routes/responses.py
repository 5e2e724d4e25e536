"""OpenAI's Responses API: make one, read it again, its input, delete it."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize, principal_of
from tailrace.api.deferral import FollowReply, background
from tailrace.api.exchange import Exchange
from tailrace.api.openapi import body_schema, errors
from tailrace.api.plain import body_of, json_reply
from tailrace.api.resumable import last_event
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.control.answering.answering import Wishes
from tailrace.control.answering.off_loop import off_loop
from tailrace.control.answering.routes import RESPONSES, recall
from tailrace.control.deferred.standing import RESPONSE, Standing
from tailrace.database.response import KeptResponse
from tailrace.errors import InvalidRequest, NotFound
from tailrace.protocol.body import parse
from tailrace.protocol.responses.page import Page, page
from tailrace.protocol.responses.request import ResponsesRequest
from tailrace.protocol.responses.schema import Deleted, InputTokens, ItemList, ResponseBody

routes = Table("responses", prefix="/v1/responses", guard=authorize)


@routes.post("", responses={200: {"model": ResponseBody}, **errors()}, openapi_extra=body_schema(ResponsesRequest))
async def create(request: Request) -> Response:
    """Answer input items, behind those of earlier responses. With `stream: true` the events of its making.

    Kept, unless `store` is false, for its tenant alone. With `background: true` it is made without the connection.
    """
    return ResponseExchange(state_of(request), RESPONSES, request)


class ResponseExchange(Exchange):
    """Of a request that may be made in the background."""

    async def _work(self, body: bytes, wishes: Wishes) -> None:
        parsed = await self._answering.read(body)
        if not parsed.background:
            await super()._work(body, wishes)
            return
        standing = await background(self._state, self._answering, body)
        if parsed.stream:
            reply: Response = FollowReply(self._state, standing, -1)
        else:
            reply = json_reply(standing.response(), parsed)
        self._answering.done()
        await self.reply(reply)


@routes.post(
    "/input_tokens", responses={200: {"model": InputTokens}, **errors()}, openapi_extra=body_schema(ResponsesRequest)
)
async def input_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a response has; nothing is generated."""
    state, principal = state_of(request), principal_of(request)
    body = await body_of(request)
    parsed = await off_loop(len(body), lambda: parse(ResponsesRequest, body))
    size = len(body) + await recall(parsed, state.responses, principal.tenant)
    async with state.using(parsed.model, principal, request.state.timeline) as (model, limits):
        parsed.check(limits)
        known = (model.template, model.tokenizer, limits, model.dialect)
        tokens = await off_loop(size, lambda: parsed.tokens(*known))
    return json_reply({"object": "response.input_tokens", "input_tokens": len(tokens)}, parsed)


@routes.get("/{response_id}", responses={200: {"model": ResponseBody}, **errors(400, 401, 403, 404, 503)})
async def retrieve(request: Request, response_id: str) -> Response:
    """A response that is kept, or is made in the background. Of the latter with `stream=true` the events of its making,
    from behind the one with the number `starting_after`, or that `Last-Event-ID` names."""
    if request.query_params.get("stream") in ("true", "1"):
        standing = await _deferred(request, response_id)
        if standing is None:
            await _kept(request, response_id)
            raise InvalidRequest("stream is for responses made in the background", param="stream")
        after = last_event(request.scope, request.query_params.get("starting_after"))
        return FollowReply(state_of(request), standing, after)
    return Response(await _body(request, response_id), media_type="application/json")


@routes.delete("/{response_id}", responses={200: {"model": Deleted}, **errors(400, 401, 403, 404, 503)})
async def delete(request: Request, response_id: str) -> Response:
    """Forget a response. What goes on from it cannot be asked for any more."""
    state, standing = state_of(request), await _deferred(request, response_id)
    if standing is None:
        await _kept(request, response_id)
    elif not standing.ended:
        raise InvalidRequest("The response is still being made: cancel it first", param="response_id")
    else:
        await state.deferred.remove(standing)
    await state.responses.delete(principal_of(request).tenant, response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


@routes.get("/{response_id}/input_items", responses={200: {"model": ItemList}, **errors(400, 401, 403, 404)})
async def input_items(request: Request, response_id: str) -> Response:
    """The items that a response was given, its own and those of the responses before it; `limit`, `order`, `after`."""
    asked, tenant = Page.of(request.query_params), principal_of(request).tenant
    state = state_of(request)
    if await state.responses.get(tenant, response_id) is not None:
        return json_reply(page(_input_of(await state.responses.chain(tenant, response_id) or []), asked))
    standing = await _deferred(request, response_id)
    if standing is None:
        raise _not_found(response_id)
    previous = standing.about["response"]["previous_response_id"]
    before = [] if previous is None else await state.responses.chain(tenant, previous) or []
    return json_reply(page([*_items_of(before), *standing.about["items"]], asked))


@routes.post("/{response_id}/cancel", responses=errors(400, 401, 403, 404))
async def cancel(request: Request, response_id: str) -> Response:
    """End a response that is made in the background; others end when their client leaves."""
    standing = await _deferred(request, response_id)
    if standing is None:
        await _kept(request, response_id)
        raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")
    standing = await state_of(request).deferred.cancel(standing)
    return json_reply(standing.response())


async def _body(request: Request, response_id: str) -> bytes:
    found = await state_of(request).responses.get(principal_of(request).tenant, response_id)
    if found is not None:
        return found.body
    standing = await _deferred(request, response_id)
    if standing is None:
        raise _not_found(response_id)
    return orjson.dumps(standing.response())


async def _kept(request: Request, response_id: str) -> None:
    if await state_of(request).responses.get(principal_of(request).tenant, response_id) is None:
        raise _not_found(response_id)


async def _deferred(request: Request, response_id: str) -> Standing | None:
    """One that was made in the background, or is."""
    state = state_of(request)
    if not state.keeping.wanted:
        return None
    return await state.deferred.find(principal_of(request).tenant, RESPONSE, response_id)


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id {response_id[:80]!a} not found", param="response_id")


def _items_of(found: list[KeptResponse]) -> list[dict[str, Any]]:
    """All that was said."""
    return [item for kept in found for item in (*orjson.loads(kept.items), *orjson.loads(kept.body)["output"])]


def _input_of(found: list[KeptResponse]) -> list[dict[str, Any]]:
    """What came before the last one's answer."""
    return [*_items_of(found[:-1]), *(item for kept in found[-1:] for item in orjson.loads(kept.items))]
