"""Routes that answer in one piece: the body in, JSON out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import principal_of
from tailrace.api.state import state_of
from tailrace.api.wire import read_body
from tailrace.control.answering.off_loop import off_loop
from tailrace.control.models import Loaded
from tailrace.errors import InvalidRequest
from tailrace.protocol.body import Shape, ignored, parse, unknown_fields
from tailrace.protocol.sampling import Limits

S = TypeVar("S", bound=Shape)


async def body_of(request: Request) -> bytes:
    """Raises BodyTooLarge, ClientGone."""
    return await read_body(request.scope, request.receive, state_of(request).config.api.max_body_bytes)


async def asked_of_model(
    request: Request, shape: type[S], answer: Callable[[S, Loaded, Limits], dict[str, Any]]
) -> Response:
    """What `answer` makes of the body and of the model that its `model` names. Raises TailraceError."""
    body = await body_of(request)
    parsed: Any = await off_loop(len(body), lambda: parse(shape, body))
    async with state_of(request).using(parsed.model, principal_of(request), request.state.timeline) as (model, limits):
        return await off_loop(len(body), lambda: json_reply(answer(parsed, model, limits), parsed))


def json_reply(body: dict[str, Any], asked: Shape | Iterable[str] | None = None) -> Response:
    """With a warning where `asked` holds fields that nothing here knows, or is their names."""
    headers = None if asked is None else warned(asked)
    return Response(orjson.dumps(body), headers=headers, media_type="application/json")


def warned(asked: Shape | Iterable[str]) -> dict[str, str] | None:
    """The header that names unknown fields; None when there are none."""
    warning = unknown_fields(asked) if isinstance(asked, Shape) else ignored(asked)
    return None if warning is None else {"x-tailrace-warning": warning}


async def object_of(request: Request) -> dict[str, Any]:
    """A JSON object; an empty body is an empty one. Raises InvalidRequest, BodyTooLarge, ClientGone."""
    body = await body_of(request)
    try:
        found = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise InvalidRequest("The request body must be a JSON object", code="invalid_json")
    return found
