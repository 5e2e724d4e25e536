"""The decode rows of the step behind the one that is computed, made meanwhile: every position moves on by one, whatever
the tokens are.

That is so when the running step samples each running sequence once, and all but those that come to their length go on.
Nothing is taken for them: blocks are reserved, and it is seen who has ended, when the next step is planned. So rows
that do not hold are forgotten, and no decision is another than without them.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from tailrace.engine.kv.manager import BlockTable, KvManager
from tailrace.engine.sequence import Sequence
from tailrace.engine.step_draft import StepDraft


class Ahead:
    def __init__(self, running: Seq[Sequence], kv: KvManager) -> None:
        """Before the tokens of the running step are known."""
        self.draft = StepDraft()
        self._grow: list[tuple[BlockTable, int]] = []  # who needs a block first, and for which position
        for sequence in running:
            first, table = sequence.known, sequence.table
            if first + 1 < len(sequence.tokens):
                assert table is not None
                self.draft.add_decode(sequence, first)
                if not kv.holds(table, first):
                    self._grow.append((table, first))

    def holds(self, running: Seq[Sequence], kv: KvManager) -> bool:
        """Whether these rows are those of all that run now, and have their blocks, which are reserved here in the order
        of any plan."""
        return self.draft.samplers == running and all(kv.reserve(table, at, at + 1) for table, at in self._grow)
