"""Servers that several tests of routes use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from tailrace.api.state import AppState
from tailrace.backends.engine import EngineBackend
from tailrace.clock import SystemClock
from tailrace.engine.grammar.compiler import GrammarCompiler
from tailrace.engine.grammar.drafter import GrammarDrafter
from tests.engine.support import VOCAB, NoGuard, parts, tokenizer
from tests.serving import in_process, make_state

__all__ = ["random_model"]


@asynccontextmanager
async def drawing() -> AsyncIterator[AppState]:
    """The state of a server whose engine draws at random what its grammars allow."""
    compiler = GrammarCompiler(tokenizer(), VOCAB, guard=NoGuard())
    backend = EngineBackend(
        replace(parts(slots=4, drafter=GrammarDrafter(None)), grammars=compiler), "fake", SystemClock()
    )
    backend.start()
    yield make_state(backend, tokens=tokenizer())
    backend.close()


@pytest.fixture
async def random_model() -> AsyncIterator[httpx.AsyncClient]:
    async with drawing() as state, in_process(state) as made:
        yield made
