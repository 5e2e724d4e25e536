"""The generating routes, of which jobs may use those in `FOR_JOBS`."""

from __future__ import annotations

import orjson

from tailrace.control.answering.route import Route, ask_as_chat
from tailrace.control.answering.vectors import AT_ONCE
from tailrace.control.models import Loaded
from tailrace.control.responses import ResponseStore
from tailrace.database.response import KeptResponse
from tailrace.errors import InvalidRequest
from tailrace.protocol.answer import ChatAnswer, CompletionAnswer
from tailrace.protocol.ask import Ask
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.completions import CompletionRequest
from tailrace.protocol.messages.answer import MessageAnswer
from tailrace.protocol.messages.request import MessagesRequest
from tailrace.protocol.responses.answer import ResponseAnswer
from tailrace.protocol.responses.items import response_of
from tailrace.protocol.responses.request import History, ResponsesRequest
from tailrace.protocol.sampling import Limits
from tailrace.protocol.vectors import EmbeddingRequest, RerankRequest, ScoreRequest, VectorAnswer, VectorRequest


def _ask_completion(body: CompletionRequest, request_id: str, model: Loaded, limits: Limits) -> Ask:
    return body.ask(request_id, model.tokenizer, limits)


def _ask_vectors(body: VectorRequest, request_id: str, model: Loaded, limits: Limits) -> Ask:
    return body.ask(request_id, model.tokenizer, limits, model.backend.caps)


def _places(body: VectorRequest) -> int:
    return min(len(body.texts()), AT_ONCE)


async def recall(body: ResponsesRequest, store: ResponseStore, tenant: str) -> int:
    """Raises InvalidRequest for a response that is not kept."""
    size = await _refer(body, store, tenant)
    if body.previous_response_id is None:
        return size
    found = await store.chain(tenant, body.previous_response_id)
    if found is None:
        raise InvalidRequest(
            f"Previous response with id {body.previous_response_id[:80]!a} not found, or one before it",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    size += sum(kept.size for kept in found)
    body.remember(History(tuple((kept.items, kept.body) for kept in found)))
    return size


async def _refer(body: ResponsesRequest, store: ResponseStore, tenant: str) -> int:
    """Give it the kept items that it refers to, as far as they are there; their bytes."""
    wanted = set(body.references())
    if not wanted:
        return 0
    made_by = {name: await store.get(tenant, name) for name in {response_of(each) for each in wanted} if name}
    kept = [each for each in made_by.values() if each is not None]
    items = [item for each in kept for item in orjson.loads(each.body)["output"]]
    body.refer({item["id"]: item for item in items if item["id"] in wanted})
    return sum(each.size for each in kept)


async def _keep(answer: ResponseAnswer, store: ResponseStore, tenant: str) -> None:
    about = answer.ask.about
    if not about["store"]:
        return
    response = answer.response
    assert response is not None, "what is kept has ended"
    body, items = orjson.dumps(response), orjson.dumps(about["input"])
    await store.put(tenant, KeptResponse(answer.id, body, items, response["previous_response_id"]))


CHAT = Route("chat", ChatRequest, ChatAnswer, "chatcmpl-", ask_as_chat)
COMPLETIONS = Route(
    "completions", CompletionRequest, CompletionAnswer, "cmpl-", _ask_completion, lambda body: len(body.prompt)
)
RESPONSES = Route("responses", ResponsesRequest, ResponseAnswer, "resp_", ask_as_chat, recall=recall, keep=_keep)
MESSAGES = Route("messages", MessagesRequest, MessageAnswer, "msg_", ask_as_chat)
EMBEDDINGS = Route("embeddings", EmbeddingRequest, VectorAnswer, "embd-", _ask_vectors, _places, vectors=True)
RERANK = Route("rerank", RerankRequest, VectorAnswer, "rerank-", _ask_vectors, _places, vectors=True)
SCORE = Route("score", ScoreRequest, VectorAnswer, "score-", _ask_vectors, _places, vectors=True)

FOR_JOBS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/responses": RESPONSES,
}
