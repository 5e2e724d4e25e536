"""The parts of a running engine, as one value: what `build` makes and a backend runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.engine.capacity import Capacity
from tailrace.engine.cost import CostModel
from tailrace.engine.runner import Runner
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.turns import Turns
from tailrace.frozen import frozen
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import Formats, Pooling

if TYPE_CHECKING:  # an engine over a fake runner needs no native module
    from tailrace.engine.grammar.compiler import GrammarCompiler
    from tailrace.engine.weights.load import LoadedModel


@frozen
class Renewed:
    """What a new engine needs for itself, when the one before hangs; `renew` makes the next."""

    scheduler: Scheduler
    runner: Runner
    turns: Turns | None
    renew: Callable[[], Renewed]


@frozen
class EngineParts:
    """`loaded` and `capacity` are None for engines without weights. `keep_costs` leaves the cost model for the next
    start, which so begins with what real work measured. Without `grammars` requests may have none. `turns`: its place
    among the engines of the process that share one team of threads. `renew` makes what another engine over the same
    weights needs for itself; None where it cannot be made anew. `generates`, `embedding`, `pooling`: as in
    Capabilities."""

    scheduler: Scheduler
    runner: Runner
    tokenizer: Tokenizer
    cost: CostModel
    loaded: LoadedModel | None = None
    capacity: Capacity | None = None
    keep_costs: Callable[[], None] | None = None
    grammars: GrammarCompiler | None = None
    turns: Turns | None = None
    renew: Callable[[], Renewed] | None = None
    generates: bool = True
    embedding: int = 0
    pooling: Pooling = Pooling.MEAN

    @property
    def formats(self) -> Formats:
        if self.loaded is None or self.capacity is None:
            return Formats()
        sizes = self.loaded.bytes_by_format
        return Formats("+".join(sorted(sizes, key=sizes.__getitem__, reverse=True)), self.capacity.kv)
