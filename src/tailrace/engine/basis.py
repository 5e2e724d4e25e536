"""What an engine over real weights is made of; and made of again, when the first one hangs.

A native call that does not return cannot be ended. So whatever it may still write to (threads, KV cache, scratch
memory, books) is left to it, and made anew; weights, tokenizer and what was learned of step times are shared.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tailrace import _native
from tailrace.clock import Clock
from tailrace.config import EngineConfig
from tailrace.engine.budget import ChunkBudget, FixedBudget, SharedBudget
from tailrace.engine.capacity import Capacity
from tailrace.engine.cost import CostModel
from tailrace.engine.grammar.drafter import GrammarDrafter
from tailrace.engine.grammar.masks import MaskMaker
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.kv.stored import Kv, stored_kv
from tailrace.engine.limits import Limits
from tailrace.engine.models.bert import EncoderSpec
from tailrace.engine.nodes import engine_ranks
from tailrace.engine.parts import Renewed
from tailrace.engine.runner import NativeRunner
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.spec.both import ModelDrafter
from tailrace.engine.spec.draft import Drafter
from tailrace.engine.spec.lookup import LookupDrafter
from tailrace.engine.spec.model import DraftModel
from tailrace.engine.turns import Beside, Turns
from tailrace.engine.weights.load import LoadedModel
from tailrace.frozen import frozen
from tailrace.text.tokenizer import Tokenizer


@frozen
class Basis:
    """What stays as long as the model is loaded. `draft`: the draft model, where there is one."""

    loaded: LoadedModel
    draft: LoadedModel | None
    tokenizer: Tokenizer
    config: EngineConfig
    clock: Clock
    capacity: Capacity
    limits: Limits

    @property
    def encoder(self) -> bool:
        return isinstance(self.loaded.spec, EncoderSpec)

    def memory(self) -> KvManager:
        return KvManager(
            self.capacity.blocks,
            max_blocks=self._max_blocks(self.loaded),
            block_tokens=self.capacity.block_tokens,
            prefix_cache=self.config.prefix_cache and not self.encoder,
        )

    def runner(self) -> NativeRunner:
        return self._runner(self.loaded, MaskMaker(self.loaded.spec.vocab, self.tokenizer.end_ids))

    def budget(self, cost: CostModel, turns: Turns | None) -> ChunkBudget:
        tokens = self.config.chunk_tokens
        budget: ChunkBudget = FixedBudget(tokens) if tokens else cost
        return budget if turns is None else SharedBudget(budget, turns)

    def drafter(self, cost: CostModel) -> Drafter | None:
        if self.encoder:
            return None
        if self.config.speculate == "off":
            return GrammarDrafter(None)
        lookup = LookupDrafter(cost)
        if self.draft is None:
            return GrammarDrafter(lookup)
        return GrammarDrafter(ModelDrafter(cost, lookup, self._draft_model(self.draft)))

    def again(self, cost: CostModel, beside: Beside | None) -> Renewed:
        """Another engine of the same; the one before may still be in the middle of a step."""
        if beside is not None:
            beside = beside.anew()
        team = engine_team(self.config) if beside is None or beside.team is None else beside.team
        draft = None if self.draft is None else _on(team, self.draft)
        fresh = replace(self, loaded=_on(team, self.loaded), draft=draft)
        turns = None if beside is None else beside.arbiter.join()
        books = Scheduler(fresh.memory(), self.limits, self.budget(cost, turns), fresh.drafter(cost))
        return Renewed(books, fresh.runner(), turns, partial(self.again, cost, beside))

    def _max_blocks(self, model: LoadedModel) -> int:
        return -(-model.max_context // self.capacity.block_tokens)

    def _runner(self, model: LoadedModel, masks: MaskMaker | None = None) -> NativeRunner:
        return NativeRunner(
            model.model,
            _native.KvCache(model.model, self.capacity.blocks, stored(model, self.config)),
            slots=self.config.max_sequences,
            max_blocks=self._max_blocks(model),
            end_ids=self.tokenizer.end_ids,
            masks=masks,
            vocab=model.spec.vocab,
        )

    def _draft_model(self, draft: LoadedModel) -> DraftModel:
        """As many KV blocks as the model itself has."""
        size = self.capacity.block_tokens
        kv = KvManager(self.capacity.blocks, max_blocks=self._max_blocks(draft), block_tokens=size)
        return DraftModel(self._runner(draft), kv, self.clock, draft.max_context)


def engine_team(config: EngineConfig) -> _native.Team:
    """The threads of a start with these settings. Raises ConfigError."""
    ranks = engine_ranks(config.threads, config.ranks)
    if len(ranks) == 1:
        return _native.Team(ranks[0].threads)
    return _native.Team([rank.threads for rank in ranks], [rank.cpus for rank in ranks])


def stored(model: LoadedModel, config: EngineConfig) -> Kv:
    return stored_kv(config.kv, model.spec, model.weights)


def _on(team: _native.Team, loaded: LoadedModel) -> LoadedModel:
    return replace(loaded, model=loaded.model.again(team), team=team)
