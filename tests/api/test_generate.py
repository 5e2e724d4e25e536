"""The generating routes, in process: streamed equals plain, counts add up, faults stay alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.backends.fake import FakeBackend, say
from tailrace.backends.faulty import Fault, FaultyBackend, Kind
from tailrace.errors import InvalidRequest
from tests.serving import chat, gauge, in_process, make_state, parse_stream

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPTS = ["삼겹살 쌈밥 둘", "ภาษาไทยง่าย", "𠮷野家で昼食", "👩🏽‍🚀🧑🏿‍🍳🏳️‍🌈", "Žďár e\u0301"]


async def test_every_cut_of_every_script_streams_as_it_answers() -> None:
    """Case 01 of the public failure cases, on a backend that repeats the prompt."""
    backend = FakeBackend(script=lambda request, index: request.prompt.tolist())
    async with in_process(make_state(backend)) as client:
        for prompt in PROMPTS:
            for length in range(1, 25):
                body = {"prompt": f"{prompt} {prompt} ", "max_tokens": length, "temperature": 0}
                plain = (await client.post(TEXT, json=body)).json()["choices"][0]["text"]
                stream = parse_stream((await client.post(TEXT, json={**body, "stream": True})).text)
                assert stream.text() == plain
                assert "\ufffd" not in plain.rstrip("\ufffd")
                assert len(plain) - len(plain.rstrip("\ufffd")) <= 1
                assert stream.done


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("fields", [{"max_tokens": 1}, {"max_tokens": 40}, {"max_tokens": 40, "stop": "r"}])
async def test_usage_in_a_stream(n: int, fields: dict[str, Any]) -> None:
    """Case 04: the same numbers as the plain answer, once, at the end, and only when asked."""
    async with in_process(make_state()) as client:
        body = chat("Name some rivers.", temperature=0, n=n, **fields)
        plain = (await client.post(CHAT, json=body)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = parse_stream((await client.post(CHAT, json={**body, **options})).text)
        counted = [event for event in stream.events if event.get("usage")]
        assert counted == [stream.events[-1]]
        assert counted[0]["choices"] == []
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [counted[0]["usage"][k] for k in names] == [plain["usage"][k] for k in names]
        assert plain["usage"]["total_tokens"] == plain["usage"]["prompt_tokens"] + plain["usage"]["completion_tokens"]
        assert [stream.text(i) for i in range(n)] == [c["message"]["content"] for c in plain["choices"]]
        assert not any(
            e.get("usage") for e in parse_stream((await client.post(CHAT, json={**body, "stream": True})).text).events
        )


async def test_cached_tokens_show_and_do_not_lower_the_prompt() -> None:
    async with in_process(make_state()) as client:
        first = (await client.post(CHAT, json=chat("x" * 100, max_tokens=1))).json()
        second = (await client.post(CHAT, json=chat("x" * 100, max_tokens=1))).json()
    assert first["usage"]["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 112
    assert second["timings"]["cached_tokens"] == 112


async def test_timings_add_up() -> None:
    async with in_process(make_state()) as client:
        plain = (await client.post(CHAT, json=chat(max_tokens=5))).json()["timings"]
        stream = parse_stream((await client.post(CHAT, json=chat(max_tokens=5, stream=True))).text)
    for times in (plain, stream.events[-1]["timings"]):
        parts = sum(times[f"{p}_ms"] for p in ("ingress", "render", "queue", "prefill", "decode", "post"))
        assert parts == pytest.approx(times["total_ms"])
        assert 0 < times["ttft_ms"] <= times["total_ms"]
        assert times["completion_tokens"] == 5


async def test_several_prompts_times_several_choices() -> None:
    async with in_process(make_state()) as client:
        body = {"prompt": ["one ", "two ", "three "], "n": 2, "max_tokens": 6, "seed": 3, "echo": True}
        plain = (await client.post(TEXT, json=body)).json()
        stream = parse_stream((await client.post(TEXT, json={**body, "stream": True})).text)
    assert [c["index"] for c in plain["choices"]] == list(range(6))
    assert [c["text"].split()[0] for c in plain["choices"]] == ["one", "one", "two", "two", "three", "three"]
    assert [stream.text(i) for i in range(6)] == [c["text"] for c in plain["choices"]]
    assert plain["usage"]["prompt_tokens"] == 4 + 4 + 6
    assert plain["usage"]["completion_tokens"] == 36


async def test_echo_of_the_prompt_alone_with_its_logprobs() -> None:
    async with in_process(make_state()) as client:
        body = {"prompt": "abc", "echo": True, "max_tokens": 0, "logprobs": 1}
        answer = (await client.post(TEXT, json=body)).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("abc", ["a", "b", "c"])
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert answer["usage"]["completion_tokens"] == 0


async def test_stop_strings_and_ids() -> None:
    async with in_process(make_state(FakeBackend(script=say("one two three")))) as client:
        by_text = (await client.post(CHAT, json=chat(stop=["thr"]))).json()["choices"][0]
        by_id = (await client.post(CHAT, json=chat(stop_token_ids=[ord("w")]))).json()["choices"][0]
        by_end = (await client.post(CHAT, json=chat())).json()["choices"][0]
    assert (by_text["message"]["content"], by_text["finish_reason"], by_text["stop_reason"]) == (
        "one two ",
        "stop",
        "thr",
    )
    assert (by_id["message"]["content"], by_id["stop_reason"]) == ("one t", ord("w"))
    assert (by_end["message"]["content"], by_end["stop_reason"]) == ("one two three", None)


async def test_tokenize_chat_usage_and_backend_agree_on_the_prompt() -> None:
    """Case 09."""
    backend = FakeBackend()
    async with in_process(make_state(backend)) as client:
        messages = [{"role": "user", "content": "Hi"}]
        ids = (await client.post("/tokenize", json={"messages": messages, "add_generation_prompt": True})).json()
        answer = (await client.post(CHAT, json={"messages": messages, "max_tokens": 1})).json()
        text = (await client.post("/detokenize", json={"tokens": ids["tokens"]})).json()["prompt"]
        again = (await client.post(TEXT, json={"prompt": text, "max_tokens": 1})).json()
    assert ids["count"] == len(ids["tokens"]) == answer["usage"]["prompt_tokens"] == again["usage"]["prompt_tokens"]
    assert [prompt.tolist() for prompt in backend.prompts] == [ids["tokens"], ids["tokens"]]


async def test_seeds() -> None:
    async with in_process(make_state()) as client:
        answers = [(await client.post(CHAT, json=chat(seed=s, n=2, max_tokens=20))).json() for s in (1, 1, 2)]
    texts = [[c["message"]["content"] for c in answer["choices"]] for answer in answers]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    assert texts[0][0] != texts[0][1]


@pytest.mark.parametrize("kind", [Kind.RAISE, Kind.ERROR, Kind.END])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_in_one_request_is_its_own(kind: Kind, stream: bool) -> None:
    def plan(request: Any) -> Fault | None:
        return Fault(kind, 2, RuntimeError("secret of the inside")) if request.sampling.seed == 13 else None

    state = make_state(FaultyBackend(FakeBackend(max_sequences=8), plan))
    async with in_process(state) as client:
        bodies = [chat(seed=s, max_tokens=9, stream=stream) for s in (11, 13, 12)]
        answers = await asyncio.gather(*(client.post(CHAT, json=body) for body in bodies))
        assert (await client.post(CHAT, json=chat(max_tokens=1))).status_code == 200
    assert "secret" not in answers[1].text
    if stream:
        assert [a.status_code for a in answers] == [200, 200, 200]
        broken = parse_stream(answers[1].text)
        assert broken.events[-1]["error"]["type"] == "server_error"
        assert not broken.done
        assert [parse_stream(answers[i].text).finish() for i in (0, 2)] == [["length"], ["length"]]
    else:
        assert [a.status_code for a in answers] == [200, 500, 200]
        assert answers[1].json()["error"]["code"] == "internal_error"
    assert (gauge(state, "tailrace_requests_running"), gauge(state, "tailrace_requests_waiting")) == (0, 0)
    outcome = {"route": "chat", "outcome": "error"}
    assert state.metrics.registry.get_sample_value("tailrace_requests_total", outcome) == 1


async def test_a_refusal_of_the_backend_keeps_its_status() -> None:
    backend = FaultyBackend(FakeBackend(), lambda request: Fault(Kind.RAISE, 0, InvalidRequest("no", param="n")))
    async with in_process(make_state(backend)) as client:
        response = await client.post(CHAT, json=chat())
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")


async def test_an_exception_of_our_own_is_a_500_without_its_inside() -> None:
    class Broken:
        def render(self, *args: Any, **kwargs: Any) -> str:
            raise ZeroDivisionError("secret")

    state = make_state(chat=Broken())  # type: ignore[arg-type]
    async with in_process(state) as client:
        for path, body in ((CHAT, chat()), (CHAT, chat(stream=True)), ("/tokenize", {"messages": chat()["messages"]})):
            response = await client.post(path, json=body)
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "internal_error"
            assert "secret" not in response.text
            assert response.headers["x-request-id"]
        assert (await client.post(TEXT, json={"prompt": "x"})).status_code == 200
    assert gauge(state, "tailrace_requests_waiting") == 0


async def test_request_ids() -> None:
    async with in_process(make_state()) as client:
        mine = await client.get("/health/live", headers={"x-request-id": "abc-1"})
        odd = await client.get("/health/live", headers={"x-request-id": "a b"})
        error = await client.get("/nope")
    assert mine.headers["x-request-id"] == "abc-1"
    assert odd.headers["x-request-id"].startswith("req-")
    assert error.headers["x-request-id"].startswith("req-")


async def test_answers_are_counted_by_outcome() -> None:
    state = make_state()
    async with in_process(state) as client:
        await client.post(CHAT, json=chat(max_tokens=1))
        await client.post(CHAT, json=chat(max_tokens=1, stream=True))
        await client.post(TEXT, json={"prompt": "x", "n": 0})
        page = (await client.get("/metrics")).text
    assert 'tailrace_requests_total{outcome="ok",route="chat"} 2.0' in page
    assert 'tailrace_requests_total{outcome="invalid",route="completions"} 1.0' in page
    for name in (
        "tailrace_requests_running 0.0",
        "tailrace_requests_waiting 0.0",
        "tailrace_generated_tokens_total 2.0",
    ):
        assert name in page.splitlines()
