"""Embeddings, rerank and score over HTTP, with a backend whose vectors count letters."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import EMBEDDING, FakeBackend
from tailrace.protocol.vectors import similarity, unit
from tests.serving import gauge, in_process, live, make_state, until

EMBED, RERANK, SCORE = "/v1/embeddings", "/v1/rerank", "/v1/score"


@pytest.fixture
async def state() -> AppState:
    return make_state(FakeBackend(max_context=64, max_sequences=4))


@pytest.fixture
async def client(state: AppState) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(state) as made:
        yield made


def expected(text: str, dimensions: int = EMBEDDING) -> np.ndarray:
    counts = np.bincount(np.frombuffer(text.encode(), np.uint8) % EMBEDDING, minlength=EMBEDDING)[:dimensions]
    return counts / np.linalg.norm(counts)


def vectors(body: dict[str, Any]) -> np.ndarray:
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    assert {entry["object"] for entry in body["data"]} == {"embedding"}
    return np.array([entry["embedding"] for entry in body["data"]])


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("hello", ["hello"]),
        (["hello", "Žďár", "aab"], ["hello", "Žďár", "aab"]),
        ([104, 105], ["hi"]),
        ([[104, 105], [97]], ["hi", "a"]),
    ],
)
async def test_a_vector_of_length_1_for_each_text_in_order(
    client: httpx.AsyncClient, value: Any, texts: list[str]
) -> None:
    body = (await client.post(EMBED, json={"input": value})).json()
    assert np.allclose(vectors(body), [expected(text) for text in texts], atol=1e-6)
    tokens = sum(len(text.encode()) for text in texts)
    assert (body["object"], body["model"]) == ("list", "fake")
    assert (body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]) == (tokens, tokens)
    assert body["timings"]["prompt_tokens"] == tokens


async def test_base64_holds_the_same_numbers(client: httpx.AsyncClient) -> None:
    plain = vectors((await client.post(EMBED, json={"input": ["one", "two"]})).json())
    body = (await client.post(EMBED, json={"input": ["one", "two"], "encoding_format": "base64"})).json()
    coded = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in body["data"]]
    assert np.array_equal(np.array(coded), plain.astype(np.float32))


async def test_fewer_dimensions_are_the_first_ones_at_length_1(client: httpx.AsyncClient) -> None:
    body = (await client.post(EMBED, json={"input": "abcdefgh", "dimensions": 5})).json()
    assert np.allclose(vectors(body), [expected("abcdefgh", 5)], atol=1e-6)


async def test_more_texts_than_run_at_once_come_in_order(state: AppState, client: httpx.AsyncClient) -> None:
    texts = [chr(97 + i % 26) * (1 + i % 7) + "z" for i in range(150)]
    body = (await client.post(EMBED, json={"input": texts})).json()
    assert np.allclose(vectors(body), [expected(text) for text in texts], atol=1e-6)
    assert (state.pipeline.waiting, state.pipeline.running) == (0, 0)


async def test_a_request_of_many_texts_takes_few_places() -> None:
    backend = FakeBackend(max_context=64, max_sequences=2, manual=True)
    state = make_state(backend)
    async with in_process(state) as client:
        asked = asyncio.ensure_future(client.post(EMBED, json={"input": ["text"] * 300}))
        await until(lambda: len(backend.started_ids) == 2)
        assert state.pipeline.waiting + state.pipeline.running == 32
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: not (state.pipeline.waiting or state.pipeline.running))


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({}, "input", "input is missing"),
        ({"input": []}, "input", "none empty"),
        ({"input": ""}, "input", "input has no tokens"),
        ({"input": ["a", ""]}, "input[1]", "input[1] has no tokens"),
        ({"input": [[]]}, "input", "none empty"),
        ({"input": [["a"]]}, "input", "none empty"),
        ({"input": {"a": 1}}, "input", "none empty"),
        ({"input": [1, 999]}, "input", "token id 999"),
        ({"input": "x" * 65}, "input", "input has 65"),
        ({"input": ["ok", "x" * 65]}, "input[1]", "input[1] has 65"),
        ({"input": [1] * 65}, "input", "context has 64 tokens; input has 65. Shorten it to 64 or fewer"),
        ({"input": "a", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"input": "a", "dimensions": 33}, "dimensions", "dimensions is 33; this model's vectors have 32"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "accepted is 1 to 64, or -1"),
        ({"input": "a", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "accepted is 1 to 64, or -1"),
        ({"input": ["a"] * 2049}, "input", "input holds 2049 texts; at most 2048"),
    ],
)
async def test_what_is_wrong_is_named(client: httpx.AsyncClient, fields: Any, param: str, said: str) -> None:
    response = await client.post(EMBED, json=fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert said in error["message"]


def test_a_cosine_stays_within_its_bounds() -> None:
    made = [unit(np.random.default_rng(seed).normal(size=384).astype(np.float32)) for seed in range(100)]
    assert any(float(np.sum(v.astype(np.float64) ** 2)) > 1.0 for v in made)
    assert all(0.999999 < similarity(v, v) <= 1.0 and -1.0 <= similarity(v, -v) < -0.999999 for v in made)


async def test_a_text_is_cut_only_when_asked_to(client: httpx.AsyncClient) -> None:
    for keep, text in ((3, "abc"), (-1, "abcdefgh" * 8)):
        body = (await client.post(EMBED, json={"input": "abcdefgh" * 9, "truncate_prompt_tokens": keep})).json()
        assert np.allclose(vectors(body), [expected(text)], atol=1e-6)
        assert body["usage"]["prompt_tokens"] == len(text)


async def test_documents_come_by_similarity(client: httpx.AsyncClient) -> None:
    documents = ["zzz", "aab", {"text": "aaa"}, "abz"]
    asked = {"query": "aaa", "documents": documents, "top_n": 3}
    body = (await client.post(RERANK, json=asked)).json()
    assert [result["index"] for result in body["results"]] == [2, 1, 3]
    scores = [result["relevance_score"] for result in body["results"]]
    assert np.allclose(scores, [1.0, 2 / 5**0.5, 1 / 3**0.5], atol=1e-6)
    assert [result["document"]["text"] for result in body["results"]] == ["aaa", "aab", "abz"]
    assert (body["model"], body["usage"]["total_tokens"]) == ("fake", 15)
    for path in ("/rerank", "/v2/rerank"):
        again = (await client.post(path, json={**asked, "return_documents": False})).json()["results"]
        assert again == [{"index": r["index"], "relevance_score": r["relevance_score"]} for r in body["results"]]


@pytest.mark.parametrize(
    ("first", "second", "scores"),
    [("ab", "ab", [1.0]), ("a", ["a", "b", "ab"], [1.0, 0.0, 0.5**0.5]), (["a", "b"], ["b", "b"], [0.0, 1.0])],
)
async def test_pairs_are_scored(client: httpx.AsyncClient, first: Any, second: Any, scores: list[float]) -> None:
    body = (await client.post(SCORE, json={"text_1": first, "text_2": second})).json()
    assert np.allclose([entry["score"] for entry in body["data"]], scores, atol=1e-6)
    assert [entry["index"] for entry in body["data"]] == list(range(len(scores)))


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (RERANK, {"documents": ["a"]}, "query"),
        (RERANK, {"query": "a", "documents": []}, "documents"),
        (RERANK, {"query": "a", "documents": ["a", 3]}, "documents[1]"),
        (RERANK, {"query": "a", "documents": ["a", "x" * 65]}, "documents[1]"),
        (RERANK, {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        (SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        (SCORE, {"text_1": "a", "text_2": []}, "text_2"),
        (SCORE, {"text_1": "a", "text_2": ["x" * 65]}, "text_2[0]"),
    ],
)
async def test_wrong_pairs_are_named(client: httpx.AsyncClient, path: str, fields: Any, param: str) -> None:
    response = await client.post(path, json=fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_the_request_has_its_class_its_headers_and_its_record(state: AppState, client: httpx.AsyncClient) -> None:
    response = await client.post(EMBED, json={"input": "hello"}, headers={"x-request-id": "mine"})
    assert response.headers["x-tailrace-class"] == "embedding"
    assert float(response.headers["x-tailrace-queue-ms"]) >= 0
    record = (await client.get("/v1/requests/mine")).json()
    assert (record["class"], record["outcome"], record["prompt_tokens"]) == ("embedding", "ok", 5)
    parts = (await client.post(EMBED, json={"input": "hello"})).json()["timings"]
    names = ("ingress_ms", "render_ms", "queue_ms", "prefill_ms", "decode_ms", "post_ms")
    assert sum(parts[name] for name in names) == pytest.approx(parts["total_ms"])
    assert gauge(state, "tailrace_prompt_tokens_total") == 10


async def test_a_model_without_vectors_says_so_and_one_of_vectors_writes_no_text() -> None:
    backend = FakeBackend()
    backend.caps = replace(backend.caps, embedding=0)
    async with in_process(make_state(backend)) as client:
        for path, body in ((EMBED, {"input": "a"}), (SCORE, {"text_1": "a", "text_2": "b"})):
            response = await client.post(path, json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
    backend = FakeBackend()
    backend.caps = replace(backend.caps, generates=False)
    async with in_process(make_state(backend)) as client:
        response = await client.post("/v1/completions", json={"prompt": "a"})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported")
        assert "makes embeddings" in response.json()["error"]["message"]


async def test_openais_client_gets_its_vectors(state: AppState) -> None:
    """It asks for base64 unless told otherwise."""
    async with live(state) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        answer = await sdk.embeddings.create(model="fake", input=["hello", "aab"])
        plain = await sdk.embeddings.create(model="fake", input="abcd", encoding_format="float", dimensions=5)
        assert np.allclose([entry.embedding for entry in answer.data], [expected("hello"), expected("aab")], atol=1e-6)
        assert np.allclose(plain.data[0].embedding, expected("abcd", 5), atol=1e-6)
        assert answer.usage.total_tokens == 8
        with pytest.raises(openai.NotFoundError, match="served: fake"):
            await sdk.embeddings.create(model="other", input="hello")
