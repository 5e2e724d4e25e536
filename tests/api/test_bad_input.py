"""Every kind of bad input has its own 4xx with OpenAI's error body, streamed or not, and reaches no backend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.backends.fake import FakeBackend
from tests.serving import STRICT, chat, gauge, in_process, make_state, template

HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "prompt": "hi", **fields}


BAD: list[tuple[str, Any, int, str | None]] = [
    (CHAT, b"{", 400, None),
    (CHAT, b"", 400, None),
    (CHAT, b"\xff\xfe", 400, None),
    (CHAT, b'{"messages": [{"role": "user", "content": "a\\ud800b"}]}', 400, None),
    (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400, None),
    (CHAT, [], 400, None),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": "not a list"}, 400, "messages"),
    (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": 7}]}, 400, "messages[0].content"),
    (CHAT, {"messages": [*HI, *HI]}, 400, "messages"),  # the template wants roles to alternate
    (CHAT, {"messages": [{"role": "developer", "content": "x"}]}, 400, "messages"),
    (CHAT, chat(model="nope"), 404, "model"),
    (CHAT, chat(temperature=-1), 400, "temperature"),
    (CHAT, chat(top_p=0), 400, "top_p"),
    (CHAT, chat(n=0), 400, "n"),
    (CHAT, chat(n=10**6), 400, "n"),
    (CHAT, chat(n=5), 400, "n"),  # more than run at once
    (CHAT, chat(max_tokens=-5), 400, "max_tokens"),
    (CHAT, chat(stop=[""]), 400, "stop"),
    (CHAT, chat(logprobs=True, top_logprobs=10**6), 400, "top_logprobs"),
    (CHAT, chat(logit_bias={"10000000": 5}), 400, "logit_bias"),
    (CHAT, chat(logit_bias={"word": 1}), 400, "logit_bias"),
    (CHAT, chat(stop_token_ids=[10**7, -3]), 400, "stop_token_ids"),
    (CHAT, chat(tools=[{"type": "function"}]), 400, "tools[0].function"),
    (TEXT, text(tools=[{"type": "function"}]), 400, "tools"),
    (CHAT, chat("x" * 600), 400, "messages"),
    (TEXT, {}, 400, "prompt"),
    (TEXT, text(prompt=[1, 10**7]), 400, "prompt"),
    (TEXT, text(prompt=[-1]), 400, "prompt"),
    (TEXT, text(prompt=[5] * 512), 400, "prompt"),
    (TEXT, text(prompt=["a"] * 65), 400, "prompt"),
    (TEXT, text(suffix="x"), 400, "suffix"),
    (TEXT, text(model=7), 400, "model"),
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"messages": []}, 400, "messages"),
    ("/detokenize", {"tokens": [10**7]}, 400, "tokens"),
    ("/detokenize", {"tokens": "x"}, 400, "tokens"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_input(stream: bool) -> None:
    backend = FakeBackend()
    state = make_state(backend, chat=template(STRICT))
    async with in_process(state) as client:
        for path, given, status, param in BAD:
            body = given
            if stream and isinstance(body, dict):
                body = {**body, "stream": True}
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            response = await client.post(path, content=content)
            assert response.status_code == status, (body, response.text)
            error = response.json()["error"]
            assert (error["param"], error["type"]) == (param, "invalid_request_error"), (body, error)
            assert error["message"]
            assert "Traceback" not in response.text
            assert ".py" not in response.text
        assert backend.prompts == []
        assert (gauge(state, "tailrace_requests_running"), gauge(state, "tailrace_requests_waiting")) == (0, 0)
        assert (await client.post(CHAT, json=chat(max_tokens=2))).status_code == 200


async def test_the_templates_own_words_reach_the_caller() -> None:
    async with in_process(make_state(chat=template(STRICT))) as client:
        response = await client.post(CHAT, json={"messages": [*HI, *HI], "stream": True})
    assert response.status_code == 400
    assert "roles must alternate" in response.json()["error"]["message"]


@pytest.mark.parametrize("stated", [True, False])
async def test_a_body_over_the_limit_is_refused_before_it_is_read(stated: bool) -> None:
    read = 0

    async def endless() -> Any:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b"x" * 1000

    headers = {"content-length": "100000"} if stated else {}
    async with in_process(make_state(api={"max_body_bytes": 5000})) as client:
        response = await client.post(CHAT, content=endless(), headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    assert read == (0 if stated else 6)


async def test_any_content_type_is_taken() -> None:
    async with in_process(make_state()) as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            content = json.dumps(chat(max_tokens=1)).encode()
            response = await client.post(CHAT, content=content, headers={"content-type": kind})
            assert response.status_code == 200


async def test_routes_and_methods_that_do_not_exist() -> None:
    async with in_process(make_state()) as client:
        for method, path, status in (("GET", "/nope", 404), ("GET", CHAT, 405), ("GET", "/v1/models/nope", 404)):
            response = await client.request(method, path)
            assert response.status_code == status
            assert response.json()["error"]["type"] == "invalid_request_error"


async def test_head_is_get_without_its_body() -> None:
    async with in_process(make_state()) as client:
        for path in ("/health", "/health/live", "/metrics", "/v1/models", "/v1/models/fake", "/openapi.json"):
            head, get = await client.head(path), await client.get(path)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"] == get.headers["content-type"]
        missing = await client.head("/v1/models/nope")
        assert (missing.status_code, missing.content) == (404, b"")
        assert int(missing.headers["content-length"]) > 0
        assert (await client.head(CHAT)).status_code == 405


@pytest.mark.parametrize("length", [510, 511, 512, 513, 2048])
async def test_the_border_of_the_context(length: int) -> None:
    async with in_process(make_state()) as client:
        response = await client.post(TEXT, json=text(prompt=[100] * length, max_tokens=1))
        if length < 512:
            assert response.status_code == 200
            assert response.json()["usage"]["prompt_tokens"] == length
            assert response.json()["usage"]["completion_tokens"] == 1
        else:
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
            assert "512" in error["message"]
            assert str(length) in error["message"]


async def test_more_output_than_fits_is_lowered_to_what_does() -> None:
    async with in_process(make_state()) as client:
        for path, body in ((TEXT, text(prompt=[100] * 500)), (CHAT, chat("x" * 480))):
            response = await client.post(path, json={**body, "max_tokens": 10_000, "ignore_eos": True})
            assert response.status_code == 200
            usage = response.json()["usage"]
            assert usage["total_tokens"] == 512
            assert response.json()["choices"][0]["finish_reason"] == "length"


async def test_unknown_fields_are_ignored_with_a_warning() -> None:
    async with in_process(make_state()) as client:
        for stream in (False, True):
            response = await client.post(CHAT, json=chat(max_tokens=1, colour="red", stream=stream))
            assert response.status_code == 200
            assert response.headers["x-tailrace-warning"] == "ignored unknown fields: colour"
        response = await client.post(CHAT, json=chat(max_tokens=1, user="u"))
        assert "x-tailrace-warning" not in response.headers
