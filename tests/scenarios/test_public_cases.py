"""The public failure cases as their scripts state them, against a server over the fake backend.

The scripts live in `shared/cases` beside the repository and are run where that folder is; what they check is also in
the tests of api and scenarios, so nothing is lost without them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tailrace.backends.fake import FakeBackend
from tests.serving import live, make_state

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
pytestmark = pytest.mark.skipif(
    not CASES.is_dir(), reason="the optional folder shared/cases is not beside the repository"
)


async def run_case(number: str, *, context: int = 512) -> str:
    backend = FakeBackend(max_sequences=8, max_context=context, step_seconds=0.0005)
    async with live(make_state(backend)) as base:
        environ = {**os.environ, "BASE": base + "/v1", "MODEL": "fake", "CTX": str(context), "BURST": "100"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, f"case_{number}.py", cwd=CASES, env=environ, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    return text


@pytest.mark.parametrize("number", ["01", "04", "10", "13", "21"])
async def test_case_passes(number: str) -> None:
    assert (await run_case(number)).splitlines()[-1] == "PASS"


async def test_case_09() -> None:
    words = (await run_case("09")).split()  # tokenize count N usage N
    assert words[2] == words[4]
    assert int(words[2]) > 0


async def test_case_15() -> None:
    output = await run_case("15", context=40_000)
    assert "running 0.0 waiting 0.0" in output
    assert "then: 200" in output


async def test_case_18() -> None:
    output = await run_case("18")
    assert "socket errors 0 other []" in output
    assert "without retry-after 0 without error object 0" in output
