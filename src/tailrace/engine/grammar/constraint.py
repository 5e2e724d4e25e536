"""What a choice's tokens are held to: its grammar, its bounded thoughts, or first these and then that."""

from __future__ import annotations

from tailrace.engine.grammar.state import GrammarState
from tailrace.engine.grammar.thinking import ThinkingState
from tailrace.engine.sequence import Group, Sequence

Constraint = GrammarState | ThinkingState


def is_held(group: Group) -> bool:
    """Whether its choices have a constraint."""
    return group.grammar is not None or group.thinking is not None


def state_of(sequence: Sequence) -> Constraint | None:
    """The choice's state, made when it is first asked for; None without a constraint."""
    group = sequence.group
    if sequence.constraint is None and is_held(group):
        sequence.constraint = _made(group)
    return sequence.constraint


def _made(group: Group) -> Constraint | None:
    grammar = None
    if group.grammar is not None:
        assert group.request.grammar is not None
        grammar = GrammarState(group.grammar, group.request.grammar.field)
    return grammar if group.thinking is None else ThinkingState(group.thinking, grammar)
