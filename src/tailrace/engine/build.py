"""From settings and a model file to the parts of a running engine. The only place that wires them.

Owns what is found out at start (KV capacity, step costs) and says it; decides nothing later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tailrace import _native
from tailrace.clock import Clock
from tailrace.config import EngineConfig
from tailrace.engine.calibrate import calibrate
from tailrace.engine.capacity import check_asked, kv_capacity
from tailrace.engine.cost import CostModel
from tailrace.engine.cost_file import KeptCosts, cost_file, keep_costs, recall_costs
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.kv.stored import stored_kv
from tailrace.engine.parts import EngineParts
from tailrace.engine.runner import NativeRunner
from tailrace.engine.scheduler import FixedBudget, Limits, Scheduler
from tailrace.engine.spec.lookup import LookupDrafter
from tailrace.engine.weights.load import LoadedModel, load_model
from tailrace.engine.weights.pack import Progress
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import StepCosts

log = logging.getLogger(__name__)


def build_engine(
    path: Path,
    config: EngineConfig,
    clock: Clock,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = log.info,
) -> EngineParts:
    """Load the model file and set the engine up. `cache_dir` keeps packed weights and measured costs for the next
    start; `say` hears what was found out. Raises ModelFileError and ConfigError as `load_model` does."""
    loaded = load_model(
        path,
        weights=config.weights,
        isa=config.isa,
        threads=config.threads,
        max_context=config.max_context,
        cache_dir=cache_dir,
        progress=progress,
    )
    return assemble(loaded, loaded.checkpoint.tokenizer(), config, clock, cache_dir=cache_dir, say=say)


def assemble(
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    config: EngineConfig,
    clock: Clock,
    *,
    cache_dir: Path | None = None,
    say: Callable[[str], None] = log.info,
) -> EngineParts:
    """The engine around a loaded model."""
    size = _native.BLOCK_TOKENS
    max_blocks = -(-loaded.max_context // size)
    check_asked(config.kv_memory)
    stored = stored_kv(config.kv, loaded.spec, loaded.weights)
    capacity = kv_capacity(
        config.kv_memory,
        _native.KvCache.bytes_per_block(loaded.native_spec, stored),
        max_blocks=max_blocks,
        max_sequences=config.max_sequences,
        block_tokens=size,
        kv=stored,
    )
    say(str(capacity))
    limits = Limits(
        max_sequences=config.max_sequences,
        max_context=min(loaded.max_context, capacity.tokens),
        vocab_size=loaded.spec.vocab,
    )
    if limits.max_context < loaded.max_context:
        say(f"context bounded to {limits.max_context} tokens by the KV cache (the model has {loaded.max_context})")
    kv = KvManager(capacity.blocks, max_blocks=max_blocks, block_tokens=size, prefix_cache=config.prefix_cache)
    memory = _native.KvCache(loaded.model, capacity.blocks, stored)
    runner = NativeRunner(
        loaded.model, memory, slots=config.max_sequences, max_blocks=max_blocks, end_ids=tokenizer.end_ids
    )
    path = None
    if cache_dir is not None:
        path = cost_file(
            cache_dir, loaded.file_sha256, weights=loaded.weights, kv=stored, variant=loaded.variant,
            threads=loaded.team.threads,
        )  # fmt: skip
    costs = recall_costs(path)
    if costs is None:
        found = calibrate(runner, kv, clock, slots=limits.max_sequences, max_context=limits.max_context)
        costs = KeptCosts(found, StepCosts(*found.tolist()))
        if path is not None:
            keep_costs(path, costs)
    standard = costs.standard
    cost = CostModel(coefficients=costs.learned, standard=standard)
    keep = None if path is None else lambda: keep_costs(path, KeptCosts(cost.coefficients, standard))
    budget = FixedBudget(config.chunk_tokens) if config.chunk_tokens else cost
    say(f"prefill chunks of up to {budget.chunk_tokens(0, 0)} tokens ({budget.chunk_tokens(1, 256)} beside decoding)")
    drafter = None if config.speculate == "off" else LookupDrafter(cost)
    return EngineParts(Scheduler(kv, limits, budget, drafter), runner, tokenizer, cost, loaded, capacity, keep)
