"""The promise holds over ranks: what an engine answers does not depend on how its threads share the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.parts import EngineParts
from tailrace.types import GenerateRequest
from tests.architectures import write_tiny
from tests.engine.support import Rig, prompt, request
from tests.engine.test_native_exactness import GREEDY, RESTRICTED, VARIED, Bits, bits

# Heads that two and three ranks share unevenly, and fewer KV heads than ranks.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": dict(hidden=192, heads=10, kv_heads=5, head_dim=32),
    "gemma3": dict(heads=3, kv_heads=1, head_dim=64),
}
HOT = replace(VARIED, temperature=12.0)  # the tiny models are sure of themselves
Case = tuple[str, str]  # architecture, and what the KV cache stores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for architecture, shape in SHAPES.items():
        write_tiny(architecture, folder / f"{architecture}.gguf", **shape)
    return folder


@pytest.fixture(scope="module", params=product(SHAPES, ("bf16", "int8")), ids="-".join)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield request.param


def engine(folder: Path, case: Case, **settings: Any) -> EngineParts:
    architecture, kv = case
    config = EngineConfig(kv=kv, **{"kv_memory": 32 << 20, "chunk_tokens": 150} | settings)
    return build_engine(folder / f"{architecture}.gguf", config, SystemClock(), cache_dir=folder / "cache")


def wanted() -> list[GenerateRequest]:
    """Greedy and sampled, around block and segment boundaries, and past the window."""
    some = GREEDY, HOT, RESTRICTED
    return [
        request(f"r{i}", prompt(length, i), 12, sampling=replace(some[i % 3], seed=i))
        for i, length in enumerate((1, 64, 65, 130, 257, 300))
    ]


@pytest.fixture(scope="module")
def one_rank(folder: Path, case: Case) -> Bits:
    """Each request alone on one rank of two threads, nothing cached."""
    rig = Rig(engine(folder, case, threads=2, ranks=1, prefix_cache=False))
    for one in wanted():
        rig.run(one)
    found = bits(rig, wanted())
    assert len({token for tokens, _ in found for token in tokens}) > 20, "the answers vary"
    return found


@pytest.mark.parametrize(("threads", "ranks"), [(2, 2), (3, 3), (3, 2)])
def test_a_batch_and_its_prefix_hits_over_ranks(
    folder: Path, case: Case, one_rank: Bits, threads: int, ranks: int
) -> None:
    parts = engine(folder, case, threads=threads, ranks=ranks)
    assert parts.loaded is not None and len(parts.loaded.team.ranks) == ranks
    rig = Rig(parts).run(*wanted())
    assert bits(rig, wanted()) == one_rank
    again = [replace(one, id=f"again {one.id}") for one in wanted()]
    rig.run(*again)
    assert [rig.events[one.id][0].cached_tokens for one in again] == [0, 0, 64, 128, 256, 256]
    assert bits(rig, again) == one_rank


def test_choices_fork_inside_a_block_over_ranks(folder: Path, case: Case) -> None:
    """A choice's copy of its last block is made in the memory of every rank."""
    one = request(tokens=70, max_tokens=20, sampling=HOT, n=3)
    found = [Rig(engine(folder, case, threads=2, ranks=ranks)).run(one) for ranks in (1, 2)]
    answers = [[rig.tokens(index=index) for index in range(3)] for rig in found]
    assert answers[0] == answers[1]
    assert len({tuple(answer) for answer in answers[0]}) == 3


def test_a_draft_model_runs_on_the_same_ranks(folder: Path, case: Case, one_rank: Bits) -> None:
    architecture, kv = case
    path = folder / f"{architecture}.gguf"
    config = EngineConfig(kv=kv, threads=2, ranks=2, kv_memory=32 << 20)
    parts = build_engine(path, config, SystemClock(), draft=path, cache_dir=folder / "cache")
    assert bits(Rig(parts).run(*wanted()), wanted()) == one_rank


def test_shared_kv_heads_halve_the_tokens_in_the_same_memory(folder: Path) -> None:
    tokens = {
        (architecture, ranks): capacity.tokens
        for architecture in SHAPES
        for ranks in (1, 2)
        if (capacity := engine(folder, (architecture, "int8"), threads=2, ranks=ranks).capacity)
    }
    assert tokens["llama", 2] == tokens["llama", 1]  # five KV heads: three and two
    assert tokens["gemma3", 2] == tokens["gemma3", 1] // 128 * 64  # one, on both
