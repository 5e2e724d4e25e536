"""Servers that several tests of routes use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from tailrace.backends.engine import EngineBackend
from tailrace.clock import SystemClock
from tailrace.engine.grammar.compiler import GrammarCompiler
from tailrace.engine.grammar.drafter import GrammarDrafter
from tests.engine.support import VOCAB, NoGuard, parts, tokenizer
from tests.serving import in_process, make_state


@pytest.fixture
async def random_model() -> AsyncIterator[httpx.AsyncClient]:
    """An engine that draws at random what its grammars allow."""
    compiler = GrammarCompiler(tokenizer(), VOCAB, guard=NoGuard())
    backend = EngineBackend(
        replace(parts(slots=4, drafter=GrammarDrafter(None)), grammars=compiler), "fake", SystemClock()
    )
    backend.start()
    state = make_state(backend, tokens=tokenizer())
    async with in_process(state) as made:
        yield made
    backend.close()
