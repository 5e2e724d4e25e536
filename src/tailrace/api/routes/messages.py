"""Anthropic's Messages API over the same plane: messages, and the tokens of one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize
from tailrace.api.exchange import Exchange
from tailrace.api.openapi import body_schema, errors
from tailrace.api.plain import asked_of_model
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.api.wire import header
from tailrace.control.answering.routes import MESSAGES
from tailrace.control.models import Loaded
from tailrace.errors import InvalidRequest
from tailrace.protocol.messages.request import VERSIONS, CountRequest, MessagesRequest
from tailrace.protocol.messages.schema import AnthropicError, Counted, MessageBody
from tailrace.protocol.sampling import Limits

routes = Table("anthropic", prefix="/v1/messages", guard=authorize)


@routes.post(
    "",
    responses={200: {"model": MessageBody}, **errors(model=AnthropicError)},
    openapi_extra=body_schema(MessagesRequest),
)
async def messages(request: Request) -> Response:
    """Anthropic's form of a chat. With `stream: true` its named events, from message_start to message_stop.

    `max_tokens` above what the context leaves is lowered to it.
    """
    _check_version(request)
    return Exchange(state_of(request), MESSAGES, request)


@routes.post(
    "/count_tokens",
    responses={200: {"model": Counted}, **errors(model=AnthropicError)},
    openapi_extra=body_schema(CountRequest),
)
async def count_tokens(request: Request) -> Response:
    """How many tokens a message's prompt has; nothing is generated."""
    _check_version(request)
    return await asked_of_model(request, CountRequest, _count)


def _count(asked: CountRequest, model: Loaded, limits: Limits) -> dict[str, int]:
    return {"input_tokens": len(asked.tokens(model.template, model.tokenizer, limits, model.dialect))}


def _check_version(request: Request) -> None:
    """None is as good as those there are. Raises InvalidRequest."""
    asked = header(request.scope, b"anthropic-version")
    if asked is not None and asked.strip() not in VERSIONS:
        raise InvalidRequest(
            f"the header anthropic-version is {asked[:40]!a}; this server speaks {' and '.join(VERSIONS)}",
            param="anthropic-version",
        )
