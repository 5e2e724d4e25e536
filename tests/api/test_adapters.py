"""Adapters over HTTP: each a model of its own on a real tiny engine, coming and going while requests run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.api.app import create_app
from tailrace.api.state import AppState
from tailrace.backends.engine import EngineBackend
from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.control.adapters import MAX_ADAPTERS
from tailrace.engine.build import build_engine
from tailrace.engine.lora.read import read_adapter
from tailrace.engine.parts import EngineParts
from tailrace.errors import ConfigError, ModelFileError
from tailrace.policy import Policy
from tests.api.test_tenants import tenant
from tests.engine.gate import Gate
from tests.peft import write_adapter
from tests.serving import make_state, until
from tests.tiny import write_tiny_gguf

COMPLETIONS, LOAD, UNLOAD = "/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    write_tiny_gguf(folder / "tiny.gguf")
    allowed = folder / "allowed"
    write_adapter(allowed / "a", seed=1)
    write_adapter(allowed / "deep" / "b", seed=2, rank=4)
    write_adapter(allowed / "dora", use_dora=True)
    outside = write_adapter(folder / "outside")
    (allowed / "way out").symlink_to(outside)
    linked = write_adapter(allowed / "linked")
    (linked / "adapter_config.json").unlink()
    (linked / "adapter_config.json").symlink_to(outside / "adapter_config.json")
    return folder


@pytest.fixture
async def parts(folder: Path) -> EngineParts:
    config = EngineConfig(threads=1, kv="bf16", kv_memory=100 * 16384, chunk_tokens=256, speculate="off")
    return build_engine(folder / "tiny.gguf", config, SystemClock(), cache_dir=folder / "cache")


@pytest.fixture
async def backend(parts: EngineParts) -> AsyncIterator[EngineBackend]:
    backend = EngineBackend(parts, "tiny", SystemClock())
    backend.start()
    yield backend
    backend.close()


@pytest.fixture
def state(backend: EngineBackend, parts: EngineParts, folder: Path) -> AppState:
    return serving(backend, parts, folder)


def serving(backend: EngineBackend, parts: EngineParts, folder: Path, **fields: Any) -> AppState:
    fields = {"api": {"lora_folder": str(folder / "allowed")}} | fields
    state = make_state(backend, tokens=parts.tokenizer, **fields)
    assert parts.loaded is not None
    model = state.models.model(None).model
    model.read_adapter = partial(read_adapter, spec=parts.loaded.spec, model=parts.loaded.model)
    return state


def own(state: AppState) -> httpx.AsyncClient:
    """A client on the server's own machine, which needs no key while there are none."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state)), base_url="http://127.0.0.1")


async def said(client: httpx.AsyncClient, model: str, **fields: Any) -> dict[str, Any]:
    asked = {"model": model, "prompt": "The cat " * 20, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer = await client.post(COMPLETIONS, json=asked | fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def load(client: httpx.AsyncClient, name: str, path: str, **fields: Any) -> httpx.Response:
    return await client.post(LOAD, json={"lora_name": name, "lora_path": path, **fields})


def text(body: dict[str, Any]) -> str:
    found: str = body["choices"][0]["text"]
    return found


async def test_each_adapter_is_a_model_of_its_own(state: AppState) -> None:
    """Together in one batch they say what they say alone; a model that names none has none."""
    async with own(state) as client:
        for name, path in (("one", "a"), ("two", "deep/b")):
            answer = await load(client, name, path)
            assert (answer.status_code, answer.text) == (200, f"The adapter {name} is loaded")
        cards = {card["id"]: card["parent"] for card in (await client.get("/v1/models")).json()["data"]}
        assert cards == {"tiny": None, "one": "tiny", "two": "tiny"}
        names = ("tiny", "one", "two")
        alone = [await said(client, name) for name in names]
        together = await asyncio.gather(*(said(client, name) for name in names))
        assert [text(body) for body in together] == [text(body) for body in alone]
        assert len({text(body) for body in alone}) == 3
        assert [body["model"] for body in alone] == list(names)
        assert [body["timings"]["adapter"] for body in alone] == [None, "one", "two"]
        assert [body["timings"]["cached_tokens"] > 0 for body in (*alone, *together)] == [False] * 3 + [True] * 3
        unnamed = await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 1})
        assert unnamed.json()["model"] == "tiny"
        assert (await client.get("/v1/models/one")).json()["parent"] == "tiny"
        shown = (await client.get("/metrics")).text
        assert 'tailrace_adapter_requests_total{adapter="one",outcome="ok"} 2.0' in shown
        assert 'tailrace_adapter_generated_tokens_total{adapter="two"} 16.0' in shown


async def test_the_record_and_the_admins_list_name_it(state: AppState) -> None:
    async with own(state) as client:
        await load(client, "one", "a")
        asked = {"model": "one", "prompt": "x", "max_tokens": 1}
        answer = await client.post(COMPLETIONS, json=asked)
        record = (await client.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()
        assert record["adapter"] == "one"
        (line,) = (await client.get("/admin/models")).json()["adapters"]
        assert (line["name"], line["parent"], line["requests"]) == ("one", "tiny", 0)


async def test_unloading_waits_for_who_has_it(state: AppState, backend: EngineBackend) -> None:
    gate = Gate()
    gate.hold(backend.engine)
    async with own(state) as client:
        await load(client, "one", "a")
        expected = text(await said(client, "one"))
        with gate.closed():
            running = asyncio.create_task(said(client, "one"))
            await until(lambda: state.models.adapted["one"].users == 1)
            unloading = asyncio.create_task(client.post(UNLOAD, json={"lora_name": "one"}))
            await until(lambda: "one" not in state.models.adapted)
            late = await client.post(COMPLETIONS, json={"model": "one", "prompt": "x"})
            assert (late.status_code, late.json()["error"]["code"]) == (404, "model_not_found")
            assert (await load(client, "one", "deep/b")).status_code == 200, "the name is free at once"
            assert not unloading.done() and not running.done()
        assert text(await running) == expected
        answer = await unloading
        assert (answer.status_code, answer.text) == (200, "The adapter one is unloaded")
        again = await said(client, "one")
        assert text(again) != expected
        assert again["timings"]["cached_tokens"] == 0, "what the first of that name computed is not this one's"


async def test_a_client_that_leaves_frees_its_adapter(state: AppState, backend: EngineBackend) -> None:
    gate = Gate()
    gate.hold(backend.engine)
    async with own(state) as client:
        await load(client, "one", "a")
        with gate.closed():
            running = asyncio.create_task(said(client, "one"))
            await until(lambda: state.models.adapted["one"].users == 1)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert (await client.post(UNLOAD, json={"lora_name": "one"})).status_code == 200


@pytest.mark.parametrize(
    ("name", "path", "status", "says"),
    [
        ("one", "../outside", 403, "outside the folder"),
        ("one", "/etc", 403, "outside the folder"),
        ("one", "way out", 403, "outside the folder"),
        ("one", "linked", 403, "outside the folder"),
        ("one", "nowhere", 404, "no folder 'nowhere' among the adapters"),
        ("one", "a/adapter_config.json", 404, "no folder"),
        ("one", "a\0b", 400, "NUL"),
        ("one", "dora", 400, "use_dora is True: it is a DoRA adapter"),
        ("one", "deep", 400, "no adapter_config.json"),
        ("tiny", "a", 400, "tiny is served already"),
        ("spaced out", "a", 400, "lora_name is 'spaced out'"),
        ("x" * 129, "a", 400, "up to 128"),
        ("", "a", 400, "lora_name"),
    ],
)
async def test_what_is_not_loaded(state: AppState, name: str, path: str, status: int, says: str) -> None:
    async with own(state) as client:
        answer = await load(client, name, path)
        assert answer.status_code == status
        assert says in answer.json()["error"]["message"]
        assert list(state.models.adapted) == []


async def test_wrong_bodies_and_names(state: AppState) -> None:
    async with own(state) as client:
        assert (await load(client, "one", "a", load_inplace=True)).json()["error"]["code"] == "unsupported"
        assert (await load(client, "one", "a", base_model_name="other")).status_code == 404
        assert (await load(client, "one", "a", base_model_name="tiny")).status_code == 200
        assert "served already" in (await load(client, "one", "a")).json()["error"]["message"]
        for body in ({}, {"lora_name": 5}, [], {"lora_path": "a"}):
            assert (await client.post(LOAD, json=body)).status_code == 400
        assert (await client.post(UNLOAD, json={"lora_name": "two"})).status_code == 404
        assert (await client.post(UNLOAD, json={"lora_name": "tiny"})).status_code == 404, "a model is no adapter"


async def test_no_more_than_there_is_room_for(state: AppState) -> None:
    async with own(state) as client:
        await load(client, "one", "a")
        one = state.models.adapted["one"]
        state.models.adapted.update({f"x{i}": one for i in range(MAX_ADAPTERS - 1)})
        assert f"{MAX_ADAPTERS} adapters are loaded" in (await load(client, "two", "a")).json()["error"]["message"]


async def test_off_unless_a_folder_is_named(backend: EngineBackend, parts: EngineParts, folder: Path) -> None:
    state = serving(backend, parts, folder, api={})
    state.adapters.at_start((f"one={folder / 'allowed' / 'a'}",))
    async with own(state) as client:
        for answer in (await load(client, "two", "a"), await client.post(UNLOAD, json={"lora_name": "one"})):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "adapters_fixed")
        assert (await said(client, "one"))["timings"]["adapter"] == "one"


async def test_only_an_admin_may_and_tenants_see_what_they_may_use(
    backend: EngineBackend, parts: EngineParts, folder: Path
) -> None:
    both = tenant("free"), tenant("bound", models=("tiny", "one"))
    state = serving(backend, parts, folder, policy=Policy(both))
    keys = {name: {"authorization": f"Bearer {name}"} for name in ("free", "bound", "free-boss")}
    async with own(state) as client:
        body = {"lora_name": "one", "lora_path": "a"}
        assert (await client.post(LOAD, json=body)).status_code == 401
        assert (await client.post(LOAD, json=body, headers=keys["free"])).status_code == 403
        for name in ("one", "two"):
            loaded = await client.post(LOAD, json=body | {"lora_name": name}, headers=keys["free-boss"])
            assert loaded.status_code == 200
        seen = {}
        for name in ("free", "bound"):
            cards = (await client.get("/v1/models", headers=keys[name])).json()["data"]
            seen[name] = [card["id"] for card in cards]
        assert seen == {"free": ["tiny", "one", "two"], "bound": ["tiny", "one"]}
        asked = {"model": "two", "prompt": "x", "max_tokens": 1}
        assert (await client.post(COMPLETIONS, json=asked, headers=keys["bound"])).status_code == 404


async def test_at_start(state: AppState, folder: Path) -> None:
    good = folder / "allowed" / "a"
    state.adapters.at_start((f"one={good}", f"team/two={good}"))
    assert list(state.models.adapted) == ["one", "team/two"]
    for wanted, says in (("three", "write NAME=PATH"), ("x=", "write NAME=PATH"), (f"one={good}", "served already")):
        with pytest.raises(ConfigError, match=says):
            state.adapters.at_start((wanted,))
    with pytest.raises(ModelFileError, match="DoRA"):
        state.adapters.at_start((f"four={folder / 'allowed' / 'dora'}",))


async def test_tokens_of_an_adapter_are_its_models(state: AppState) -> None:
    async with own(state) as client:
        await load(client, "one", "a")
        found = [(await client.post("/tokenize", json={"model": m, "prompt": "hello"})).json() for m in ("tiny", "one")]
        assert found[0] == found[1]
