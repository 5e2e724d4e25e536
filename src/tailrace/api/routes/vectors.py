"""Routes whose answers are made of vectors: embeddings as OpenAI has them, rerank and score as vLLM has them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tailrace.api.auth import authorize
from tailrace.api.exchange import Exchange
from tailrace.api.openapi import body_schema, errors
from tailrace.api.state import state_of
from tailrace.api.table import Table
from tailrace.control.answering.routes import EMBEDDINGS, RERANK, SCORE
from tailrace.protocol.schema import Embeddings, Reranked, Scored
from tailrace.protocol.vectors import EmbeddingRequest, RerankRequest, ScoreRequest

routes = Table("vectors", guard=authorize)


@routes.post(
    "/v1/embeddings",
    responses={200: {"model": Embeddings}, **errors()},
    openapi_extra=body_schema(EmbeddingRequest),
)
async def embeddings(request: Request) -> Response:
    """A vector of length 1 for each text, given as text or as token ids.

    Each must fit the model's context; nothing is cut unless `truncate_prompt_tokens` asks for it.
    """
    return Exchange(state_of(request), EMBEDDINGS, request)


@routes.post("/v2/rerank", include_in_schema=False)
@routes.post("/rerank", include_in_schema=False)
@routes.post("/v1/rerank", responses={200: {"model": Reranked}, **errors()}, openapi_extra=body_schema(RerankRequest))
async def rerank(request: Request) -> Response:
    """The documents by their similarity to the query, the most similar first: the cosine of their vectors."""
    return Exchange(state_of(request), RERANK, request)


@routes.post("/score", include_in_schema=False)
@routes.post("/v1/score", responses={200: {"model": Scored}, **errors()}, openapi_extra=body_schema(ScoreRequest))
async def score(request: Request) -> Response:
    """The similarity of pairs of texts: the cosine of their vectors. One text stands against all others."""
    return Exchange(state_of(request), SCORE, request)
