"""Adapters come and go while the server runs: vLLM's two routes, behind a key with the scope `admin`."""

from __future__ import annotations

from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tailrace.api.auth import authorize_admin
from tailrace.api.openapi import body_schema, errors
from tailrace.api.plain import body_of, warned
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.errors import Unsupported
from tailrace.protocol.adapters import LoadAdapter, UnloadAdapter
from tailrace.protocol.body import Shape, parse

routes = Table("adapters", prefix="/v1", guard=authorize_admin)
_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
S = TypeVar("S", bound=Shape)


@routes.post(
    "/load_lora_adapter", responses={**_TEXT, **errors(400, 401, 403, 404, 503)}, openapi_extra=body_schema(LoadAdapter)
)
async def load_lora_adapter(request: Request) -> Response:
    """Serve an adapter (PEFT's files, in a folder inside `--lora-folder`) under a name, as a model of its own."""
    body = await _body(request, LoadAdapter)
    if body.load_inplace:
        raise Unsupported("load_inplace is not supported: unload the adapter, then load it", param="load_inplace")
    adapters = state_of(request).adapters
    await adapters.load(body.lora_name, body.lora_path, body.base_model_name, request.state.timeline)
    return _told(body, f"The adapter {body.lora_name} is loaded")


@routes.post(
    "/unload_lora_adapter", responses={**_TEXT, **errors(400, 401, 403, 404)}, openapi_extra=body_schema(UnloadAdapter)
)
async def unload_lora_adapter(request: Request) -> Response:
    """From now on the name is not found. Answered when the requests that already have the adapter have ended."""
    body = await _body(request, UnloadAdapter)
    await state_of(request).adapters.unload(body.lora_name)
    return _told(body, f"The adapter {body.lora_name} is unloaded")


async def _body(request: Request, shape: type[S]) -> S:
    return parse(shape, await body_of(request))


def _told(body: Shape, text: str) -> Response:
    return PlainTextResponse(text, headers=warned(body))
