"""Files and batches over a real port, with OpenAI's own client; what is refused, and whose they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import httpx
import openai
import pytest

from tailrace.api.state import AppState
from tailrace.backends.fake import FakeBackend
from tailrace.policy import KeyPolicy, Policy, TenantPolicy
from tests.serving import chat, live, make_state, until

CHAT = "/v1/chat/completions"


def line(custom_id: str, body: dict[str, Any] | None = None, **fields: Any) -> bytes:
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body or chat(), **fields}
    ).encode()


@asynccontextmanager
async def server(url: str, backend: FakeBackend | None = None, **options: Any) -> AsyncIterator[tuple[AppState, str]]:
    """Running jobs; everything is closed at the end."""
    state = make_state(backend or FakeBackend(), database=url, control={"job_lines": 2}, **options)
    state.keeping.start()
    state.runner.start()
    try:
        async with live(state) as address:
            yield state, address
    finally:
        await state.close()
        await state.keeping.close()


async def ended(client: openai.AsyncOpenAI, batch_id: str) -> Any:
    async with asyncio.timeout(120):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if batch.status in ("completed", "failed", "expired", "cancelled"):
                return batch
            await asyncio.sleep(0.02)


async def made(client: openai.AsyncOpenAI, data: bytes, endpoint: Any = CHAT) -> Any:
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"for": "test"}
    )


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    if file_id is None:
        return {}
    found = [json.loads(each) for each in (await client.files.content(file_id)).text.splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


async def test_a_batch_from_file_to_files(url: str) -> None:
    data = b"\n".join(
        [*[line(f"q{i}", chat(f"ask {i}", max_tokens=5)) for i in range(20)], line("bad", chat(n=0)), b""]
    )
    async with server(url) as (state, address), openai.AsyncOpenAI(base_url=address + "/v1", api_key="x") as client:
        batch = await made(client, data)
        assert batch.status in ("validating", "in_progress") and batch.metadata == {"for": "test"}
        batch = await ended(client, batch.id)
        assert batch.status == "completed" and batch.errors is None
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (21, 20, 1)
        outputs, errors = await lines_of(client, batch.output_file_id), await lines_of(client, batch.error_file_id)
        assert set(outputs) == {f"q{i}" for i in range(20)} and set(errors) == {"bad"}
        body = outputs["q3"]["response"]["body"]
        assert body["object"] == "chat.completion" and body["choices"][0]["message"]["content"]
        assert errors["bad"]["response"]["status_code"] == 400
        usage = [each["response"]["body"]["usage"] for each in outputs.values()]
        assert batch.usage.output_tokens == sum(each["completion_tokens"] for each in usage) == 100
        assert batch.usage.input_tokens == sum(each["prompt_tokens"] for each in usage)
        kept = await state.keeping.needed()
        rows = await kept.ledger.latest("default", 100)
        assert sorted(row["request_id"] for row in rows) == sorted(f"{batch.id}-{i}" for i in range(21))
        assert {row["request_class"] for row in rows if row["outcome"] == "ok"} == {"background"}
        assert {row["job_id"] for row in rows} == {batch.id}
        listed = await client.batches.list(limit=1)
        assert [each.id for each in listed.data] == [batch.id]


@pytest.mark.parametrize(
    ("endpoint", "body", "shown"),
    [
        ("/v1/completions", {"model": "fake", "prompt": ["a", "b"], "max_tokens": 2}, "text_completion"),
        ("/v1/embeddings", {"model": "fake", "input": "text"}, "list"),
        ("/v1/responses", {"model": "fake", "input": "hi"}, "response"),
    ],
)
async def test_other_endpoints(tmp_path: Any, endpoint: str, body: dict[str, Any], shown: str) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    async with server(url) as (_, address), openai.AsyncOpenAI(base_url=address + "/v1", api_key="x") as client:
        batch = await ended(client, (await made(client, line("a", body, url=endpoint), endpoint)).id)
        outputs = await lines_of(client, batch.output_file_id)
        assert outputs["a"]["response"]["body"]["object"] == shown


async def test_cancelling_keeps_what_was_answered(url: str) -> None:
    backend = FakeBackend(manual=True, max_sequences=4)
    async with (
        server(url, backend) as (state, address),
        openai.AsyncOpenAI(base_url=address + "/v1", api_key="x") as client,
    ):
        data = b"\n".join([line("short", chat(max_tokens=1)), *[line(f"q{i}") for i in range(9)]])
        batch = await made(client, data)
        async with asyncio.timeout(120):
            while (await client.batches.retrieve(batch.id)).request_counts.completed < 1:
                backend.step()
                await asyncio.sleep(0.005)
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        batch = await ended(client, batch.id)
        assert batch.status == "cancelled" and batch.cancelled_at is not None
        outputs, errors = await lines_of(client, batch.output_file_id), await lines_of(client, batch.error_file_id)
        assert "short" in outputs and len(outputs) + len(errors) == 10
        assert {each["error"]["code"] for each in errors.values()} == {"batch_cancelled"}
        await until(lambda: not (state.runner.running or state.pipeline.running))
        with pytest.raises(openai.BadRequestError):
            await client.batches.cancel((await ended(client, (await made(client, b"{")).id)).id)


WRONG: tuple[tuple[bytes, str, int | None], ...] = (
    (line("a") + b"\n{", "invalid_json_line", 2),
    (b"\n\n[]", "invalid_json_line", 3),
    (line("a") + b"\n" + line("a"), "duplicate_custom_id", 2),
    (line("a", method="GET"), "invalid_method", 1),
    (line("a", url="/v1/completions"), "invalid_url", 1),
    (line(5), "invalid_custom_id", 1),
    (line("x\0"), "invalid_custom_id", 1),
    (line("a", {"model": "other"}), "model_not_found", 1),
    (line("a", {"model": 5}), "invalid_body", 1),
    (line("a", ["x"]), "invalid_body", 1),
    (line("a", chat("x" * 9000)), "line_too_long", 1),
    (b"\n \r\n", "empty_file", None),
    (b"", "empty_file", None),
    (b"\xff\xfe", "invalid_json_line", 1),
)


async def test_a_wrong_line_keeps_all_from_starting(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    async with (
        server(url, api={"max_body_bytes": 8192}) as (state, address),
        openai.AsyncOpenAI(base_url=address + "/v1", api_key="x") as client,
    ):
        for data, code, number in WRONG:
            batch = await ended(client, (await made(client, data)).id)
            assert batch.status == "failed" and batch.output_file_id is None, data
            assert [(each.code, each.line) for each in batch.errors.data] == [(code, number)]
        assert (await (await state.keeping.needed()).ledger.latest("default", 9)) == []


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"endpoint": "/v1/audio"}, "endpoint"),
    ({"completion_window": "1 day"}, "completion_window"),
    ({"completion_window": "59s"}, "completion_window"),
    ({"completion_window": "8d"}, "completion_window"),
    ({"input_file_id": "file-none"}, "input_file_id"),
    ({"input_file_id": "../../etc/passwd"}, "input_file_id"),
    ({"metadata": {"a": "b" * 600}}, "metadata"),
    ({"metadata": {"a": 1}}, "metadata.a"),
)


async def test_what_is_no_batch(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    async with server(url) as (_, address), httpx.AsyncClient(base_url=address, timeout=120) as client:
        files = {"file": ("../../x.jsonl", b"{}"), "purpose": (None, "batch")}
        file = (await client.post("/v1/files", files=files)).json()
        assert file["filename"] == "x.jsonl" and file["bytes"] == 2
        for fields, param in REFUSED:
            body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h", **fields}
            refused = await client.post("/v1/batches", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_uploads_that_are_refused(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    async with (
        server(url, api={"max_file_bytes": 1024}) as (_, address),
        httpx.AsyncClient(base_url=address, timeout=120) as client,
    ):
        batch = {"purpose": (None, "batch")}
        sent: list[tuple[int, dict[str, Any]]] = [
            (413, {"files": {"file": ("a", b"x" * 1025), **batch}}),
            (413, {"files": {"file": ("a", b"x" * 200_000), **batch}}),
            (400, {"files": {"file": ("a", b"x"), "purpose": (None, "fine-tune")}}),
            (400, {"files": {"file": ("a", b"x")}}),
            (400, {"files": batch}),
            (400, {"json": {}}),
            (400, {"content": b"x", "headers": {"content-type": "multipart/form-data"}}),
            (400, {"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=a"}}),
        ]
        for status, request in sent:
            answer = await client.post("/v1/files", **request)
            assert answer.status_code == status, answer.text
        assert (await client.get("/v1/files")).json()["data"] == []
        files = {"file": ("a", b"x" * 1024), **batch}
        answer = await client.post("/v1/files", files=files, data={"expires_after[seconds]": "3600"})
        assert answer.status_code == 200
        assert answer.headers["x-tailrace-warning"] == "ignored unknown fields: expires_after[seconds]"


async def test_nobody_sees_another_tenants(url: str) -> None:
    keys = {name: KeyPolicy(name, f"sha256:{sha256(name.encode()).hexdigest()}") for name in "ab"}
    policy = Policy(tenants=tuple(TenantPolicy(name, keys=(key,)) for name, key in keys.items()))
    async with server(url, policy=policy) as (_, address):
        mine, other = (openai.AsyncOpenAI(base_url=address + "/v1", api_key=name) for name in "ab")
        batch = await ended(mine, (await made(mine, line("q"))).id)
        for look in (
            other.batches.retrieve(batch.id),
            other.batches.cancel(batch.id),
            other.files.retrieve(batch.input_file_id),
            other.files.content(batch.output_file_id),
            other.files.delete(batch.output_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                await look
        with pytest.raises(openai.BadRequestError):
            await other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
        assert (await other.files.list()).data == [] and (await other.batches.list()).data == []
        assert {each.id for each in (await mine.files.list()).data} == {batch.input_file_id, batch.output_file_id}
        assert (await mine.files.delete(batch.output_file_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await mine.files.content(batch.output_file_id)
        await mine.close()
        await other.close()


async def test_without_a_database() -> None:
    async with live(make_state()) as address, httpx.AsyncClient(base_url=address, timeout=120) as client:
        answer = await client.get("/v1/batches")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "nothing_kept")
