"""How fast a model should run here: from step costs that an earlier start left, or from measuring now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tailrace import _native
from tailrace.clock import Clock
from tailrace.config import EngineConfig, store_root
from tailrace.doctor.finding import Finding, Level
from tailrace.engine.basis import engine_team
from tailrace.engine.build import assemble
from tailrace.engine.cost import F64, CostModel
from tailrace.engine.cost_file import cost_file, recall_costs
from tailrace.engine.kv.stored import stored_kv
from tailrace.engine.models.registry import describe
from tailrace.engine.nodes import Rank
from tailrace.engine.step import Work
from tailrace.engine.store.digest import remembered_sha256, sha256_files
from tailrace.engine.weights.load import load_model
from tailrace.engine.weights.open import open_checkpoint
from tailrace.engine.weights.pack import Progress
from tailrace.errors import TailraceError
from tailrace.frozen import frozen

_CONTEXT = 512  # tokens; where the predictions are made
_BLOCKS = 64  # KV blocks that measuring needs
Costs = Callable[[Path], F64 | None]


@frozen
class Speed:
    """`costs` gives step costs of a model file, or None; `source` says where they come from."""

    costs: Costs
    source: str

    def finding(self, path: Path) -> Finding:
        try:
            found = self.costs(path)
        except TailraceError as error:
            return Finding("speed", Level.FAIL, error.message, "change what the message names")
        if found is None:
            advice = "run this again with --measure (a few seconds), or start the model once"
            return Finding("speed", Level.OK, "not known yet", advice)
        facts = expected(CostModel(coefficients=found))
        text = (
            f"about {facts['decode_1']:,.0f} tok/s in one stream, {facts['decode_8']:,.0f} in eight together, "
            f"{facts['prefill']:,.0f} prompt tokens a second ({self.source})"
        )
        return Finding("speed", Level.OK, text, "", {**facts, "source": self.source})


def expected(cost: CostModel) -> dict[str, float]:
    """Tokens a second around a context of 512: decoding one and eight sequences, and prefilling a prompt."""
    decode = {rows: rows / _seconds(cost, Work(decode=rows, kv_tokens=rows * _CONTEXT)) for rows in (1, 8)}
    prefill = _CONTEXT / _seconds(cost, Work(prefill=_CONTEXT, attention=_CONTEXT * _CONTEXT // 2))
    return {"decode_1": decode[1], "decode_8": decode[8], "prefill": prefill}


def _seconds(cost: CostModel, work: Work) -> float:
    return max(cost.predict(work), 1e-6)


def known_speed(config: EngineConfig, ranks: Callable[[], Sequence[Rank]]) -> Speed:
    """From the store. A file is read to know its digest only where the store has any costs at all."""
    folder = store_root(config)

    def costs(path: Path) -> F64 | None:
        if not any((folder / "costs").glob("*.json")):
            return None
        digest = partial(remembered_sha256, folder=folder / "digests")
        variant = config.isa if config.isa in _native.test_variants() else _native.variants()[0]
        weights = _native.preferred_format(variant, "affine4") if config.weights == "auto" else config.weights
        checkpoint = open_checkpoint(path)
        sha256 = sha256_files(checkpoint.files, digest)
        kv = stored_kv(config.kv, describe(checkpoint), weights)
        used = [rank.threads for rank in ranks()]
        kept = recall_costs(cost_file(folder, sha256, weights=weights, kv=kv, variant=variant, ranks=used))
        return None if kept is None else kept.learned

    return Speed(costs, "from an earlier start")


def measured_speed(config: EngineConfig, clock: Clock, progress: Progress) -> Speed:
    """Loads the model (and leaves its packed weights in the store), then times a few steps."""

    def costs(path: Path) -> F64 | None:
        loaded = load_model(
            path, weights=config.weights, isa=config.isa, max_context=config.max_context,
            cache_dir=store_root(config), progress=progress, team=engine_team(config),
        )  # fmt: skip
        stored = stored_kv(config.kv, loaded.spec, loaded.weights)
        block = _native.KvCache.bytes_per_block(loaded.native_spec, stored, loaded.team.ranks)
        small = replace(config, kv_memory=_BLOCKS * block)
        return assemble(loaded, loaded.checkpoint.tokenizer(), small, clock).cost.coefficients

    return Speed(costs, "measured now")
