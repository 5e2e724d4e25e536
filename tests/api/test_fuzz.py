"""Bad requests beside good ones; `python -m tests.soak.fuzz` does it with more."""

from __future__ import annotations

from tests.soak.fuzz import fuzz


async def test_no_bad_request_is_a_fault_of_ours() -> None:
    found = await fuzz(300, seed=1)
    assert found.total() == 300
    assert found[400] > 150
