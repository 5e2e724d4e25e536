"""Several models over HTTP: requests for one that is being loaded wait, all others go on."""

from __future__ import annotations

import asyncio
from typing import Any

from tailrace.api.state import AppState
from tailrace.clock import SystemClock
from tailrace.config import ApiConfig, Config, ControlConfig
from tailrace.control.models import Models
from tailrace.control.pipeline import Pipeline
from tailrace.observe.metrics import Metrics
from tests.control.test_models import SIZE, Shelf
from tests.serving import in_process, parse_stream, until

COMPLETE = "/v1/completions"


def make(shelf: Shelf, **options: Any) -> AppState:
    clock, metrics = SystemClock(), Metrics()
    pipeline = Pipeline(None, ControlConfig(), clock, metrics)
    models = Models(("a", "b", "c"), shelf, pipeline, clock, **options)
    return AppState(Config(api=ApiConfig(commit_after=0.0)), pipeline, models, metrics, clock)


def asked(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "prompt": "hello", "max_tokens": 4, **fields}


async def test_others_are_served_while_one_loads_and_the_wait_is_queue_time() -> None:
    shelf = Shelf()
    state = make(shelf)
    async with in_process(state) as client:
        assert (await client.post(COMPLETE, json=asked("a"))).status_code == 200
        shelf.open.clear()
        waiting = asyncio.ensure_future(client.post(COMPLETE, json=asked("b")))
        await until(lambda: shelf.loads == ["a", "b"])
        assert state.pipeline.waiting == 1
        assert (await client.post(COMPLETE, json=asked("a"))).json()["model"] == "a"
        shelf.open.set()
        answer = (await waiting).json()
    parts = answer["timings"]
    assert (answer["model"], answer["usage"]["completion_tokens"]) == ("b", 4)
    assert 0 < parts["queue_ms"] <= parts["total_ms"]
    assert (state.pipeline.waiting, state.pipeline.running) == (0, 0)


async def test_a_stream_waits_for_its_model_too() -> None:
    async with in_process(make(Shelf())) as client:
        streamed = parse_stream((await client.post(COMPLETE, json=asked("c", stream=True))).text)
    assert (streamed.done, streamed.finish()) == (True, ["length"])


async def test_a_deadline_holds_while_the_model_loads() -> None:
    shelf = Shelf()
    async with in_process(make(shelf)) as client:
        shelf.open.clear()
        response = await client.post(COMPLETE, json=asked("b"), headers={"x-tailrace-deadline-ms": "5"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "deadline_unattainable")
        assert int(response.headers["retry-after"]) >= 1
        shelf.open.set()


async def test_a_model_that_does_not_load_is_a_typed_error_and_the_server_lives() -> None:
    shelf = Shelf()
    shelf.broken.add("b")
    state = make(shelf)
    async with in_process(state) as client:
        response = await client.post(COMPLETE, json=asked("b"))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_load_failed")
        assert (await client.post(COMPLETE, json=asked("a"))).status_code == 200
        assert (await client.get("/health")).status_code == 200
    assert (state.pipeline.waiting, state.pipeline.running) == (0, 0)


async def test_memory_is_kept_to() -> None:
    async with in_process(make(Shelf(), memory=SIZE)) as client:
        for model in ("a", "b", "a"):
            assert (await client.post(COMPLETE, json=asked(model))).json()["model"] == model
        states = (await client.get("/admin/models", headers={"host": "localhost"})).json()["models"]
    assert [(line["name"], line["state"]) for line in states] == [("a", "loaded"), ("b", "unloaded"), ("c", "unloaded")]


async def test_names_cards_and_tokens() -> None:
    shelf = Shelf()
    async with in_process(make(shelf)) as client:
        refused = await client.post(COMPLETE, json=asked("nobody"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert "served: a, b, c" in refused.json()["error"]["message"]
        card = (await client.get("/v1/models/b")).json()
        assert (card["id"], card["loaded"], card["max_model_len"]) == ("b", False, None)
        assert (await client.get("/v1/models/nobody")).status_code == 404
        assert shelf.loads == []
        found = (await client.post("/tokenize", json={"model": "b", "prompt": "hi"})).json()
        assert found["tokens"] == [104, 105]
        assert (await client.post(COMPLETE, json={"prompt": "x", "max_tokens": 1})).json()["model"] == "a"
        cards = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["loaded"]) for card in cards] == [("a", True), ("b", True), ("c", False)]
    assert cards[1]["max_model_len"] == 512


async def test_bounds_of_an_unloaded_model_are_checked_once_it_is_there() -> None:
    """n is bounded by what the model runs at once, which only the loaded model knows."""
    shelf = Shelf()
    async with in_process(make(shelf)) as client:
        early = await client.post(COMPLETE, json=asked("b", n=1000))
        assert (early.status_code, shelf.loads) == (400, [])
        late = await client.post(COMPLETE, json=asked("b", n=8))
        assert (late.status_code, late.json()["error"]["param"], shelf.loads) == (400, "n", ["b"])
