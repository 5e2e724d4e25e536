"""What the routes take and answer, for people and programs: /openapi.json, and the page /docs that shows it.

Written by FastAPI from the table of routes, at the first request: neither serving nor starting needs FastAPI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tailrace.api.table import Table
from tailrace.protocol.adapters import LoadAdapter, UnloadAdapter
from tailrace.protocol.batches import BatchRequest
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.feedback import Feedback
from tailrace.protocol.messages.request import CountRequest, MessagesRequest
from tailrace.protocol.responses.request import ResponsesRequest
from tailrace.protocol.schema import ErrorBody, Shown
from tailrace.protocol.tokenize import ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from tailrace.protocol.vectors import EmbeddingRequest, RerankRequest, ScoreRequest

if TYPE_CHECKING:
    from pydantic import BaseModel

_TITLE = "tailrace"
_TEMPLATE = "#/components/schemas/{model}"
_BODIES: tuple[type[BaseModel], ...] = (
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    MessagesRequest,
    CountRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
    DetokenizeRequest,
    ApplyTemplateRequest,
    LoadAdapter,
    UnloadAdapter,
    Feedback,
    BatchRequest,
)
_KEY = "An API key; only asked for when the server has keys."
_MEANING = {
    400: "The request is wrong, or asks for something not supported; the message names the field",
    401: "No API key, or not an accepted one",
    403: "The key may not do this",
    404: "No such model, request or tenant",
    409: "It is there already",
    413: "The body is too large",
    429: "A limit of the caller's own, or a full queue; Retry-After says when to come back",
    500: "This request failed inside the server",
    503: "Not ready, stopping, or the deadline cannot be met",
}


_OF_ANSWERS = tuple(status for status in _MEANING if status != 409)


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`."""
    reference = {"$ref": _TEMPLATE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def errors(*statuses: int, model: type[Shown] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`; all statuses of a generating route by default."""
    return {status: {"model": model, "description": _MEANING[status]} for status in statuses or _OF_ANSWERS}


class Pages:
    """`routes` of the two pages about other `tables`."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self._tables = tuple(tables)
        self._schema: bytes | None = None
        self.routes = Table("pages")
        self.routes.get("/openapi.json")(self._openapi)
        self.routes.get("/docs")(self._docs)

    async def _openapi(self, request: Request) -> Response:
        if self._schema is None:
            self._schema = await asyncio.to_thread(lambda: orjson.dumps(_document(self._tables)))
        return Response(self._schema, media_type="application/json")

    async def _docs(self, request: Request) -> Response:
        return await asyncio.to_thread(_page)


def _page() -> HTMLResponse:
    from fastapi.openapi.docs import get_swagger_ui_html  # noqa: PLC0415 - a third of a second, for this page alone

    return get_swagger_ui_html(openapi_url="/openapi.json", title=f"{_TITLE} - Swagger UI")


def _document(tables: Iterable[Table]) -> dict[str, Any]:
    from fastapi import APIRouter, Depends  # noqa: PLC0415
    from fastapi.openapi.utils import get_openapi  # noqa: PLC0415
    from fastapi.security import HTTPBearer  # noqa: PLC0415
    from pydantic.json_schema import models_json_schema  # noqa: PLC0415

    key, router = HTTPBearer(auto_error=False, description=_KEY), APIRouter()
    for table in tables:
        guards = [Depends(key)] if table.guard is not None else []
        for each in table:
            router.add_api_route(
                each.path, each.handler, methods=[each.method], tags=[table.tag], dependencies=guards, **each.described
            )
    about = "OpenAI-compatible inference"
    schema = get_openapi(title=_TITLE, version="0.1.0", description=about, routes=router.routes)
    _, definitions = models_json_schema([(model, "validation") for model in _BODIES], ref_template=_TEMPLATE)
    schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
    return schema
