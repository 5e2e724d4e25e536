"""From settings and a model file to the parts of a running engine. The only place that wires them.

Owns what is found out at start (KV capacity, step costs) and says it; decides nothing later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tailrace import _native
from tailrace.clock import Clock
from tailrace.config import EngineConfig
from tailrace.engine.budget import FixedBudget
from tailrace.engine.calibrate import calibrate
from tailrace.engine.capacity import Capacity, check_asked, kv_capacity
from tailrace.engine.cost import CostModel, CostSettings
from tailrace.engine.cost_file import KeptCosts, cost_file, keep_costs, recall_costs
from tailrace.engine.grammar.compiler import GrammarCompiler
from tailrace.engine.grammar.drafter import GrammarDrafter
from tailrace.engine.grammar.masks import MaskMaker
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.kv.stored import Kv, stored_kv
from tailrace.engine.parts import EngineParts
from tailrace.engine.runner import NativeRunner
from tailrace.engine.scheduler import Limits, Scheduler
from tailrace.engine.spec.both import ModelDrafter
from tailrace.engine.spec.draft import Drafter
from tailrace.engine.spec.lookup import LookupDrafter
from tailrace.engine.spec.model import DraftModel
from tailrace.engine.weights.load import LoadedModel, load_model
from tailrace.engine.weights.pack import Progress
from tailrace.errors import ConfigError
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import StepCosts

log = logging.getLogger(__name__)


def build_engine(
    path: Path,
    config: EngineConfig,
    clock: Clock,
    *,
    draft: Path | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = log.info,
) -> EngineParts:
    """Load the model file and set the engine up. `draft` is the file of a draft model; `cache_dir` keeps packed weights
    and measured costs for the next start; `say` hears what was found out. Raises ModelFileError and ConfigError as
    `load_model` does, and ConfigError for a draft model that cannot serve this one."""
    if draft is not None and config.speculate != "auto":
        raise ConfigError(f"speculate is {config.speculate}: a draft model needs auto", param="speculate")
    load = partial(
        load_model, weights=config.weights, isa=config.isa, threads=config.threads, cache_dir=cache_dir,
        progress=progress,
    )  # fmt: skip
    loaded = load(path, max_context=config.max_context)
    drafting = None if draft is None else load(draft, team=loaded.team)
    tokenizer = loaded.checkpoint.tokenizer()
    return assemble(loaded, tokenizer, config, clock, draft=drafting, cache_dir=cache_dir, say=say)


def assemble(
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    config: EngineConfig,
    clock: Clock,
    *,
    draft: LoadedModel | None = None,
    cache_dir: Path | None = None,
    say: Callable[[str], None] = log.info,
) -> EngineParts:
    """The engine around a loaded model, and a draft model where there is one."""
    if draft is not None:
        _check_draft(draft, loaded, tokenizer)
    size = _native.BLOCK_TOKENS
    max_blocks = -(-loaded.max_context // size)
    check_asked(config.kv_memory)
    stored = _stored(loaded, config)
    capacity = kv_capacity(
        config.kv_memory,
        sum(_block_bytes(model, config) for model in (loaded, draft) if model is not None),
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
    runner = _runner(loaded, capacity, config, tokenizer, MaskMaker(loaded.spec.vocab, tokenizer.end_ids))
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
    cost = CostModel(_cost_settings(config), costs.learned, standard)
    keep = None if path is None else lambda: keep_costs(path, KeptCosts(cost.coefficients, standard))
    budget = FixedBudget(config.chunk_tokens) if config.chunk_tokens else cost
    say(f"prefill chunks of up to {budget.chunk_tokens(0, 0)} tokens ({budget.chunk_tokens(1, 256)} beside decoding)")
    drafting = None if draft is None else _draft_model(draft, capacity, config, tokenizer, clock)
    scheduler = Scheduler(kv, limits, budget, GrammarDrafter(_drafter(config, cost, drafting)))
    grammars = GrammarCompiler(tokenizer, loaded.spec.vocab)
    return EngineParts(scheduler, runner, tokenizer, cost, loaded, capacity, keep, grammars)


def _stored(model: LoadedModel, config: EngineConfig) -> Kv:
    return stored_kv(config.kv, model.spec, model.weights)


def _block_bytes(model: LoadedModel, config: EngineConfig) -> int:
    return _native.KvCache.bytes_per_block(model.native_spec, _stored(model, config))


def _runner(
    model: LoadedModel, capacity: Capacity, config: EngineConfig, tokenizer: Tokenizer, masks: MaskMaker | None = None
) -> NativeRunner:
    max_blocks = -(-model.max_context // capacity.block_tokens)
    memory = _native.KvCache(model.model, capacity.blocks, _stored(model, config))
    return NativeRunner(
        model.model,
        memory,
        slots=config.max_sequences,
        max_blocks=max_blocks,
        end_ids=tokenizer.end_ids,
        masks=masks,
        vocab=model.spec.vocab,
    )


def _cost_settings(config: EngineConfig) -> CostSettings:
    """A target that was asked for holds before prompts move on."""
    return CostSettings(decode_target=config.tpot_target, least_chunk=16) if config.tpot_target else CostSettings()


def _check_draft(draft: LoadedModel, loaded: LoadedModel, tokenizer: Tokenizer) -> None:
    if draft.spec.vocab != loaded.spec.vocab or not tokenizer.same_tokens(draft.checkpoint.tokenizer()):
        raise ConfigError(
            f"the tokens of {draft.path.name} ({draft.spec.vocab}) are not those of {loaded.path.name} "
            f"({loaded.spec.vocab}): give a draft model of the same vocabulary",
            param="draft_model",
        )


def _draft_model(
    draft: LoadedModel, capacity: Capacity, config: EngineConfig, tokenizer: Tokenizer, clock: Clock
) -> DraftModel:
    """As many KV blocks as the model itself has."""
    size = capacity.block_tokens
    kv = KvManager(capacity.blocks, max_blocks=-(-draft.max_context // size), block_tokens=size)
    return DraftModel(_runner(draft, capacity, config, tokenizer), kv, clock, draft.max_context)


def _drafter(config: EngineConfig, cost: CostModel, draft: DraftModel | None) -> Drafter | None:
    if config.speculate == "off":
        return None
    lookup = LookupDrafter(cost)
    return lookup if draft is None else ModelDrafter(cost, lookup, draft)
