"""Texts that become vectors: the request shapes of /v1/embeddings, /v1/rerank and /v1/score, and their answers.

A text's tokens are the model's own for a whole text, with the tokens it puts around one; the names of control tokens in
it are text. A vector has length 1. Nothing is cut unless `truncate_prompt_tokens` asks for it. Similarity is the
cosine.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import BeforeValidator, Field, WithJsonSchema

from tailrace.errors import InvalidRequest, Unsupported
from tailrace.observe.timings import Timings
from tailrace.protocol.ask import Ask, TextModel, check_fits, check_size
from tailrace.protocol.body import Items, Part
from tailrace.protocol.completions import PROMPT_SCHEMA, Prompt, prompts_of
from tailrace.protocol.prompt import check_cut
from tailrace.protocol.sampling import Asking, Limits, check_ids, check_model
from tailrace.text.tokenizer import clean_text
from tailrace.types import (
    Capabilities,
    GenerateRequest,
    SamplingParams,
    StopConditions,
    TokenEvent,
    Tokens,
    Traits,
    Usage,
    Vector,
)

Json = dict[str, Any]

MOST_TEXTS = 2048  # in one request; OpenAI's
_GREEDY = SamplingParams(temperature=0.0)
_NOTHING = StopConditions(max_tokens=0)


@dataclass(frozen=True, slots=True)
class Made:
    """What an answer is written from. The vectors are in the order of the request's texts, each of length 1."""

    id: str
    created: int
    model: str
    vectors: Sequence[Vector]


class VectorRequest(Asking):
    """Fields of all three."""

    model: str | None = Field(None, description="Name of a served model; absent: the first.")
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    user: str | None = None
    service_tier: str | None = None
    priority: int | None = None

    def texts(self) -> Sequence[tuple[str, Prompt]]:
        """What is to become vectors, each with the name of its field."""
        raise NotImplementedError

    def form(self, made: Made) -> Json:
        """The answer's own part."""
        raise NotImplementedError

    def check(self, limits: Limits) -> None:
        """What a type cannot say. Raises InvalidRequest naming the field."""
        count = len(self.texts())
        if count > MOST_TEXTS:
            field = self.texts()[-1][0].partition("[")[0]
            raise InvalidRequest(f"{field} holds {count} texts; at most {MOST_TEXTS} are taken at once", param=field)
        check_cut(self.truncate_prompt_tokens, limits)

    def check_size(self, caps: Capabilities) -> None:
        """Raises InvalidRequest for vectors that the model does not make."""

    def traits(self, route: str) -> Traits:
        return Traits(route=route, service_tier=self.service_tier or "", priority=self.priority or 0)

    def ask(self, request_id: str, tokenizer: TextModel, limits: Limits, caps: Capabilities) -> Ask:
        """Tokenize and check every text. Raises RequestError."""
        model = check_model(self.model, limits)
        if not caps.embedding:
            raise Unsupported(f"The model {model} makes no embeddings", param="model")
        self.check_size(caps)
        texts = self.texts()
        requests = tuple(
            GenerateRequest(
                id=request_id if len(texts) == 1 else f"{request_id}-{i}",
                model=model,
                prompt=self._tokens(text, field, tokenizer, limits),
                sampling=_GREEDY,
                stop=_NOTHING,
                pooling=caps.pooling,
            )
            for i, (field, text) in enumerate(texts)
        )
        return Ask(requests, False, False, 1, False, form=self)

    def _tokens(self, text: Prompt, field: str, tokenizer: TextModel, limits: Limits) -> Tokens:
        keep = self.truncate_prompt_tokens
        if isinstance(text, str):
            if keep is None:
                check_size(len(text), tokenizer, limits, field)
            ids = tokenizer.encode(clean_text(text, field=field), add_special=True, parse_special=False)
            if keep is not None:
                ids = _cut(ids, tokenizer, limits.max_context if keep < 0 else keep)
        else:
            ids = np.array(check_ids(text, limits.vocab_size, field), dtype=np.int32)
            if keep is not None:
                ids = ids[: limits.max_context if keep < 0 else keep]
        if not len(ids):
            raise InvalidRequest(f"{field} has no tokens", param=field)
        check_fits(len(ids), limits, field, room=0)
        return ids


class EmbeddingRequest(VectorRequest):
    input: Annotated[Any, BeforeValidator(prompts_of), WithJsonSchema(PROMPT_SCHEMA)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)

    def texts(self) -> Sequence[tuple[str, Prompt]]:
        single = len(self.input) == 1
        return [("input" if single else f"input[{i}]", text) for i, text in enumerate(self.input)]

    def check_size(self, caps: Capabilities) -> None:
        if (self.dimensions or 0) > caps.embedding:
            raise InvalidRequest(
                f"dimensions is {self.dimensions}; this model's vectors have {caps.embedding}", param="dimensions"
            )

    def form(self, made: Made) -> Json:
        cut = [vector if self.dimensions is None else unit(vector[: self.dimensions]) for vector in made.vectors]
        data = [{"object": "embedding", "index": i, "embedding": self._written(v)} for i, v in enumerate(cut)]
        return {"object": "list", "data": data, "model": made.model}

    def _written(self, vector: Vector) -> Vector | str:
        if self.encoding_format != "base64":
            return vector
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()


class Document(Part):
    text: str


class RerankRequest(VectorRequest):
    query: str
    documents: Items[str | Document] = Field(min_length=1)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None

    def texts(self) -> Sequence[tuple[str, Prompt]]:
        return [("query", self.query), *((f"documents[{i}]", text) for i, text in enumerate(self._documents()))]

    def form(self, made: Made) -> Json:
        query, *others = made.vectors
        scores = [similarity(query, vector) for vector in others]
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: self.top_n]
        return {"id": made.id, "model": made.model, "results": [self._result(i, scores[i]) for i in order]}

    def _result(self, index: int, score: float) -> Json:
        result: Json = {"index": index, "relevance_score": score}
        if self.return_documents is not False:
            result["document"] = {"text": self._documents()[index]}
        return result

    def _documents(self) -> list[str]:
        return [each if isinstance(each, str) else each.text for each in self.documents]


class ScoreRequest(VectorRequest):
    """One text against each of several, or each of several against the one in its place."""

    text_1: str | Items[str]
    text_2: str | Items[str]

    def check(self, limits: Limits) -> None:
        first, second = _several(self.text_1), _several(self.text_2)
        if not first or not second:
            empty = "text_2" if first else "text_1"
            raise InvalidRequest(f"{empty} is empty", param=empty)
        if len(first) > 1 and len(first) != len(second):
            raise InvalidRequest(
                f"text_1 holds {len(first)} texts and text_2 {len(second)}: one, or as many, are needed", param="text_1"
            )
        super().check(limits)

    def texts(self) -> Sequence[tuple[str, Prompt]]:
        both = (("text_1", self.text_1), ("text_2", self.text_2))
        return [
            (name if isinstance(value, str) else f"{name}[{i}]", text)
            for name, value in both
            for i, text in enumerate(_several(value))
        ]

    def form(self, made: Made) -> Json:
        split = len(_several(self.text_1))
        first, second = made.vectors[:split], made.vectors[split:]
        scores = [similarity(first[i if split > 1 else 0], vector) for i, vector in enumerate(second)]
        data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
        return {"id": made.id, "object": "list", "created": made.created, "model": made.model, "data": data}


class VectorAnswer:
    """Feed `collect` the events of all texts, then take the body."""

    def __init__(self, ask: Ask, answer_id: str, created: int) -> None:
        assert isinstance(ask.form, VectorRequest)
        self._asked = ask.form
        self._id, self._created, self._model = answer_id, created, ask.requests[0].model
        self._vectors: list[Vector | None] = [None] * len(ask.requests)

    def collect(self, index: int, event: TokenEvent) -> None:
        if event.embedding is not None:
            self._vectors[index] = event.embedding

    def body(self, usage: Usage, timings: Timings) -> bytes:
        vectors = [unit(vector) for vector in self._vectors if vector is not None]
        assert len(vectors) == len(self._vectors), "a request ended without its vector"
        form = self._asked.form(Made(self._id, self._created, self._model, vectors))
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }
        whole = {**form, "usage": counts, "timings": timings.body()}
        return orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)


def unit(vector: Vector) -> Vector:
    """The same direction with length 1; nothing has no direction, and stays nothing."""
    length = float(np.sqrt(np.sum(vector.astype(np.float64) ** 2)))
    scaled: Vector = (vector / length).astype(np.float32) if length else vector
    return scaled


def similarity(a: Vector, b: Vector) -> float:
    """The cosine of two vectors of length 1; rounding does not take it past that of equal ones."""
    return min(1.0, max(-1.0, float(np.sum(a.astype(np.float64) * b.astype(np.float64)))))


def _several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _cut(ids: Tokens, tokenizer: TextModel, keep: int) -> Tokens:
    """The first tokens; the one that the model puts behind a text stays there."""
    if len(ids) <= keep:
        return ids
    end = tokenizer.end_of_text
    if end is None or ids[-1] != end or keep < 2:
        return ids[:keep]
    return np.append(ids[: keep - 1], np.int32(end))
