"""What outlives a server, over HTTP: kept responses."""

from __future__ import annotations

from pathlib import Path

from tailrace.backends.fake import FakeBackend, say
from tests.serving import in_process, make_state

RESPONSES = "/v1/responses"


async def test_a_response_is_there_after_a_restart(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'kept.db'}"
    first = make_state(FakeBackend(script=say("one")), database=database)
    first.keeping.start()
    async with in_process(first) as client:
        made = (await client.post(RESPONSES, json={"input": "hi"})).json()
    await first.close()
    await first.keeping.close()
    second = make_state(FakeBackend(script=say("two")), database=database)
    second.keeping.start()
    async with in_process(second) as client:
        path = f"{RESPONSES}/{made['id']}"
        assert (await client.get(path)).json() == made
        on = await client.post(RESPONSES, json={"input": "and?", "previous_response_id": made["id"]})
        listed = (await client.get(f"{RESPONSES}/{on.json()['id']}/input_items")).json()
        assert len(listed["data"]) == 3
        assert (await client.delete(path)).json()["deleted"]
        assert (await client.get(path)).status_code == 404
    await second.close()
    await second.keeping.close()


async def test_an_answer_does_not_fail_for_its_database(tmp_path: Path) -> None:
    """`tmp_path` is a folder, so that no database can be opened there."""
    state = make_state(FakeBackend(script=say("one")), database=f"sqlite:///{tmp_path}", patience=0.01)
    state.keeping.start()
    async with in_process(state) as client:
        made = await client.post(RESPONSES, json={"input": "hi"})
        assert (made.status_code, made.json()["status"]) == (200, "completed")
        assert (await client.get(f"{RESPONSES}/{made.json()['id']}")).json() == made.json()
        away = await client.get(f"{RESPONSES}/resp_0")
        assert (away.status_code, away.json()["error"]["code"]) == (503, "database_unavailable")
        on = await client.post(RESPONSES, json={"input": "and?", "previous_response_id": "resp_0"})
        assert on.status_code == 503
    await state.close()
    await state.keeping.close()
