"""What stands around the generating routes: keys, models, probes, the published schema."""

from __future__ import annotations

import hashlib

import pytest

from tailrace.backends.fake import FakeBackend
from tailrace.types import Health
from tests.serving import chat, in_process, make_state

KEYS = tuple(hashlib.sha256(key.encode()).hexdigest() for key in ("first", "second"))


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"authorization": "Bearer first"}, 200, None),
        ({"authorization": "Bearer second"}, 200, None),
        ({"authorization": "bearer second"}, 200, None),
        ({"x-api-key": "first"}, 200, None),
        ({"authorization": "Bearer third"}, 401, "invalid_api_key"),
        ({"authorization": f"Bearer {KEYS[0]}"}, 401, "invalid_api_key"),
        ({"authorization": "Basic first"}, 401, "missing_api_key"),
        ({"authorization": "Bearer "}, 401, "missing_api_key"),
        ({}, 401, "missing_api_key"),
    ],
)
async def test_keys(headers: dict[str, str], status: int, code: str | None) -> None:
    backend = FakeBackend()
    async with in_process(make_state(backend, api={"api_keys": KEYS})) as client:
        for method, path, body in (
            ("POST", "/v1/chat/completions", chat(max_tokens=1)),
            ("POST", "/tokenize", {"prompt": "x"}),
            ("GET", "/v1/models", None),
        ):
            response = await client.request(method, path, json=body, headers=headers)
            assert response.status_code == status
            if code is not None:
                assert response.json()["error"]["code"] == code
                assert response.json()["error"]["type"] == "authentication_error"
                assert response.headers["www-authenticate"] == "Bearer"
    assert len(backend.prompts) == (status == 200)


async def test_probes_and_metrics_are_open() -> None:
    async with in_process(make_state(api={"api_keys": KEYS})) as client:
        for path in ("/health", "/health/live", "/health/ready", "/metrics", "/openapi.json"):
            assert (await client.get(path)).status_code == 200


async def test_metrics_name_tenants_to_operators_alone() -> None:
    state = make_state(api={"api_keys": KEYS, "admin_keys": (hashlib.sha256(b"root").hexdigest(),)})
    expected = {None: (200, False), "first": (200, False), "wrong": (401, False), "root": (200, True)}
    async with in_process(state) as client:
        await client.post("/v1/chat/completions", json=chat(), headers={"authorization": "Bearer first"})
        for key, (status, named) in expected.items():
            answer = await client.get("/metrics", headers={} if key is None else {"authorization": f"Bearer {key}"})
            assert (answer.status_code, 'tenant="default"' in answer.text) == (status, named), key
            assert "tailrace_ready" in answer.text or status == 401
    async with in_process(make_state()) as client:
        await client.post("/v1/chat/completions", json=chat())
        assert 'tenant="default"' in (await client.get("/metrics")).text, "nobody has a key"


async def test_models() -> None:
    async with in_process(make_state()) as client:
        listed = (await client.get("/v1/models")).json()
        card = (await client.get("/v1/models/fake")).json()
    assert (listed["object"], [m["id"] for m in listed["data"]]) == ("list", ["fake"])
    assert card == listed["data"][0]
    assert (card["object"], card["max_model_len"]) == ("model", 512)


async def test_readiness_follows_the_backend() -> None:
    backend = FakeBackend()
    state = make_state(backend)
    async with in_process(state) as client:
        assert (await client.get("/health/ready")).json() == {"status": "ready"}
        backend.healthy = Health(False, "no step for 10 s")
        response = await client.get("/health/ready")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert "no step for 10 s" in response.json()["error"]["message"]
        assert (await client.get("/health/live")).status_code == 200
        backend.healthy = Health(True)
        state.pipeline.begin_drain()
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 503
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 503


async def test_the_schema_describes_bodies_and_answers() -> None:
    async with in_process(make_state()) as client:
        schema = (await client.get("/openapi.json")).json()
        assert (await client.get("/docs")).status_code == 200
    schemas = schema["components"]["schemas"]
    for path, body in (("/v1/chat/completions", "ChatRequest"), ("/v1/completions", "CompletionRequest")):
        post = schema["paths"][path]["post"]
        reference = post["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert reference == f"#/components/schemas/{body}"
        assert {"model", "n", "stop", "stream", "temperature", "logprobs", "seed"} <= set(schemas[body]["properties"])
        assert {"200", "400", "401", "404", "413", "429", "500", "503"} <= set(post["responses"])
    for path, body, some in (
        ("/v1/responses", "ResponsesRequest", {"input", "previous_response_id", "tools", "store", "truncation"}),
        ("/v1/messages", "MessagesRequest", {"messages", "max_tokens", "system", "thinking", "tool_choice"}),
        ("/v1/messages/count_tokens", "CountRequest", {"messages", "system", "tools"}),
    ):
        post = schema["paths"][path]["post"]
        assert post["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith(f"/{body}")
        assert some <= set(schemas[body]["properties"])
    assert {"get", "delete"} <= schema["paths"]["/v1/responses/{response_id}"].keys()
    refused = schema["paths"]["/v1/messages"]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
    assert refused["$ref"].endswith("/AnthropicError")
    assert schemas["CompletionRequest"]["required"] == ["prompt"]
    assert len(schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"]) == 4


async def test_every_reference_in_the_schema_exists() -> None:
    async with in_process(make_state()) as client:
        text = (await client.get("/openapi.json")).text
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    async with in_process(make_state()) as client:
        schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    assert names <= set(schemas)
