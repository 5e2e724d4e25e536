"""What differs between the generating routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tailrace.control.models import Loaded
from tailrace.control.responses import ResponseStore
from tailrace.frozen import frozen
from tailrace.protocol.ask import Ask
from tailrace.protocol.sampling import Asking, Limits


async def _nothing_to_recall(body: Any, store: ResponseStore, tenant: str) -> int:
    return 0


async def _not_kept(answer: Any, store: ResponseStore, tenant: str) -> None:
    return None


def ask_as_chat(body: Any, request_id: str, model: Loaded, limits: Limits) -> Ask:
    """Of a body that is a conversation."""
    ask: Ask = body.ask(request_id, model.template, model.tokenizer, limits, model.dialect)
    return ask


@frozen
class Route:
    """`prompts` counts the prompts of a body before any work on them.

    `recall` gives the body what it refers to, and says how many bytes that is; `keep` gets the answer once it is whole,
    before its client has the end of it. `vectors`: its answers are made of vectors.
    """

    name: str
    shape: type[Asking]
    answer: Callable[[Ask, str, int], Any]  # a Form; of vectors a VectorAnswer
    id_prefix: str
    ask: Callable[[Any, str, Loaded, Limits], Ask]
    prompts: Callable[[Any], int] = lambda body: 1
    recall: Callable[[Any, ResponseStore, str], Awaitable[int]] = _nothing_to_recall
    keep: Callable[[Any, ResponseStore, str], Awaitable[None]] = _not_kept
    vectors: bool = False
