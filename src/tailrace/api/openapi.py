"""Schemas of bodies that the routes read themselves, published as if FastAPI had read them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.schema import ErrorBody
from tailrace.protocol.tokenize import DetokenizeRequest, TokenizeRequest

_TEMPLATE = "#/components/schemas/{model}"
_BODIES: tuple[type[BaseModel], ...] = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
_MEANING = {
    400: "The request is wrong, or asks for something not supported; the message names the field",
    401: "No API key, or not an accepted one",
    403: "The key may not do this",
    404: "No such model, request or tenant",
    413: "The body is too large",
    429: "A limit of the caller's own, or a full queue; Retry-After says when to come back",
    500: "This request failed inside the server",
    503: "Not ready, stopping, or the deadline cannot be met",
}


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """For a route's `openapi_extra`."""
    reference = {"$ref": _TEMPLATE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`; all statuses of a generating route by default."""
    return {status: {"model": ErrorBody, "description": _MEANING[status]} for status in statuses or _MEANING}


def publish(app: FastAPI) -> None:
    """Make `/openapi.json` complete; built on first use."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, definitions = models_json_schema([(m, "validation") for m in _BODIES], ref_template=_TEMPLATE)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(definitions["$defs"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
