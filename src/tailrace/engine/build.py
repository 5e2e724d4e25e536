"""From settings and a model file to the parts of a running engine.

Owns what is found out at start (KV capacity, step costs) and says it; decides nothing later. `basis` wires the parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tailrace import _native
from tailrace.clock import Clock
from tailrace.config import EngineConfig
from tailrace.engine.basis import Basis, engine_team, stored
from tailrace.engine.calibrate import calibrate
from tailrace.engine.capacity import Capacity, check_asked, kv_capacity
from tailrace.engine.cost import F64, CostModel, CostSettings
from tailrace.engine.cost_file import KeptCosts, cost_file, keep_costs, recall_costs
from tailrace.engine.grammar.compiler import GrammarCompiler
from tailrace.engine.kv.stored import Kv
from tailrace.engine.limits import Limits
from tailrace.engine.models.bert import EncoderSpec
from tailrace.engine.parts import EngineParts
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.turns import Beside
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
    beside: Beside | None = None,
) -> EngineParts:
    """Load the model file and set the engine up. `draft` is the file of a draft model; `cache_dir` keeps packed weights
    and measured costs for the next start; `say` hears what was found out; `beside`: the process' other engines.

    Raises ModelFileError and ConfigError as `load_model` does, and ConfigError for a draft model that cannot serve this
    one."""
    if draft is not None and config.speculate != "auto":
        raise ConfigError(f"speculate is {config.speculate}: a draft model needs auto", param="speculate")
    load = partial(
        load_model, weights=config.weights, isa=config.isa, cache_dir=cache_dir, progress=progress,
        team=engine_team(config) if beside is None else beside.team,
    )  # fmt: skip
    loaded = load(path, max_context=config.max_context)
    drafting = None if draft is None else load(draft)
    tokenizer = loaded.checkpoint.tokenizer()
    return assemble(loaded, tokenizer, config, clock, draft=drafting, cache_dir=cache_dir, say=say, beside=beside)


def assemble(
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    config: EngineConfig,
    clock: Clock,
    *,
    draft: LoadedModel | None = None,
    cache_dir: Path | None = None,
    say: Callable[[str], None] = log.info,
    beside: Beside | None = None,
) -> EngineParts:
    """The engine around a loaded model, and a draft model where there is one."""
    if draft is not None:
        _check_draft(draft, loaded, tokenizer)
    encoder = isinstance(loaded.spec, EncoderSpec)
    capacity = _capacity(loaded, draft, config, 1 if beside is None else beside.models)
    say(str(capacity))
    limits = Limits(
        max_sequences=config.max_sequences,
        max_context=min(loaded.max_context, capacity.tokens),
        vocab_size=loaded.spec.vocab,
        whole_prompts=encoder,
    )
    if limits.max_context < loaded.max_context:
        say(f"context bounded to {limits.max_context} tokens by the KV cache (the model has {loaded.max_context})")
    basis = Basis(loaded, draft, tokenizer, config, clock, capacity, limits)
    kv, runner = basis.memory(), basis.runner()
    turns = None if beside is None else beside.arbiter.join()

    def measure() -> F64:
        return calibrate(
            runner, kv, clock, slots=limits.max_sequences, max_context=limits.max_context, turns=turns, encoder=encoder
        )

    cost, keep = step_costs(_cost_file(cache_dir, loaded, capacity.kv), measure, config)
    budget = basis.budget(cost, turns)
    say(f"prefill chunks of up to {budget.chunk_tokens(0, 0)} tokens ({budget.chunk_tokens(1, 256)} beside decoding)")
    grammars = None if encoder else GrammarCompiler(tokenizer, loaded.spec.vocab)
    return EngineParts(
        Scheduler(kv, limits, budget, basis.drafter(cost)), runner, tokenizer, cost, loaded, capacity, keep, grammars,
        turns, partial(basis.again, cost, beside),
        generates=not encoder, embedding=loaded.spec.hidden, pooling=loaded.spec.pooling,
    )  # fmt: skip


def _capacity(loaded: LoadedModel, draft: LoadedModel | None, config: EngineConfig, models: int) -> Capacity:
    check_asked(config.kv_memory)
    size = _native.BLOCK_TOKENS
    return kv_capacity(
        config.kv_memory,
        sum(_block_bytes(model, config) for model in (loaded, draft) if model is not None),
        max_blocks=-(-loaded.max_context // size),
        max_sequences=config.max_sequences,
        block_tokens=size,
        kv=stored(loaded, config),
        models=models,
    )


def step_costs(
    path: Path | None, measure: Callable[[], F64], config: EngineConfig
) -> tuple[CostModel, Callable[[], None] | None]:
    """The cost model as an earlier start left it in that file, else measured now; and what leaves it for the next."""
    costs = recall_costs(path)
    if costs is None:
        found = measure()
        costs = KeptCosts(found, StepCosts(*found.tolist()))
        if path is not None:
            keep_costs(path, costs)
    standard = costs.standard
    cost = CostModel(_cost_settings(config), costs.learned, standard)
    return cost, None if path is None else lambda: keep_costs(path, KeptCosts(cost.coefficients, standard))


def _cost_file(cache_dir: Path | None, loaded: LoadedModel, stored: Kv) -> Path | None:
    if cache_dir is None:
        return None
    return cost_file(
        cache_dir, loaded.file_sha256, weights=loaded.weights, kv=stored, variant=loaded.variant,
        ranks=loaded.team.ranks,
    )  # fmt: skip


def _block_bytes(model: LoadedModel, config: EngineConfig) -> int:
    return _native.KvCache.bytes_per_block(model.native_spec, stored(model, config), model.team.ranks)


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
