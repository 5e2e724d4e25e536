"""Ids that nobody made, on the routes of what is kept: unknown to both databases, whatever they hold."""

from __future__ import annotations

import pytest

from tests.serving import in_process, make_state

ODD = ("%00", "file-%00", "' OR 1=1 --", "..%5C..", "%F0%9F%98%80", "%ff", "x" * 3000)
PATHS = (
    ("GET", "/v1/files/{}"),
    ("GET", "/v1/files/{}/content"),
    ("DELETE", "/v1/files/{}"),
    ("GET", "/v1/batches/{}"),
    ("POST", "/v1/batches/{}/cancel"),
    ("GET", "/v1/jobs/{}"),
    ("GET", "/v1/jobs/{}/result"),
    ("GET", "/v1/jobs/{}/stream"),
    ("POST", "/v1/jobs/{}/cancel"),
    ("GET", "/v1/responses/{}"),
    ("GET", "/v1/responses/{}/input_items"),
    ("POST", "/v1/responses/{}/cancel"),
    ("DELETE", "/v1/responses/{}"),
    ("GET", "/v1/requests/{}"),
    ("GET", "/v1/streams/{}"),
)
LISTS = ("files", "batches", "jobs", "requests")


async def test_odd_ids_are_unknown_ones(url: str) -> None:
    state = make_state(database=url)
    state.keeping.start()
    async with in_process(state) as client:
        for odd in ODD:
            for method, path in PATHS:
                answer = await client.request(method, path.format(odd))
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), (method, path, odd)
            for name in LISTS:
                answer = await client.get(f"/v1/{name}?after={odd}")
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after"), (name, odd)
        body = {"input_file_id": "\0", "endpoint": "/v1/embeddings", "completion_window": "24h"}
        made = await client.post("/v1/batches", json=body)
        said = await client.post("/v1/feedback", json={"request_id": "\0", "success": True})
        follows = await client.post("/v1/responses", json={"input": "x", "previous_response_id": "\0"})
    assert (made.status_code, made.json()["error"]["param"]) == (400, "input_file_id")
    assert (said.status_code, said.json()["error"]["param"]) == (404, "request_id")
    assert (follows.status_code, follows.json()["error"]["param"]) == (400, "previous_response_id")
    await state.close()
    await state.keeping.close()


@pytest.mark.parametrize("name", ["batches", "jobs", "requests"])
async def test_lists_that_have_one_order_say_so(name: str) -> None:
    async with in_process(make_state()) as client:
        answer = await client.get(f"/v1/{name}?order=asc")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "order")
