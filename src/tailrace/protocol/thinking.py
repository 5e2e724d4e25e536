"""What a chat request says of thinking, and what the prompt says of it, to bounds of thoughts and a reader of answers.

reasoning_effort        none: do not think; minimal, low, medium: so many tokens at most; high, xhigh: no bound
thinking_token_budget   so many tokens at most; wins
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from tailrace.errors import Unsupported
from tailrace.frozen import frozen
from tailrace.text.parsers.delta import Parser
from tailrace.text.parsers.dialect import Dialect
from tailrace.text.parsers.reasoning import Plain, Reasoning, ReasoningFormat
from tailrace.types import Thinking

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]

BUDGETS = MappingProxyType({"none": 0, "minimal": 256, "low": 1024, "medium": 4096})


@frozen
class Wish:
    """What was asked for. `variables` are the template's, which may have another word for it."""

    effort: Effort | None = None
    budget: int | None = None

    def variables(self) -> dict[str, Any]:
        if self.effort is None:
            return {}
        return {"enable_thinking": False} if self.effort == "none" else {"reasoning_effort": self.effort}

    def most(self) -> int | None:
        """Tokens of thoughts; None: any number."""
        return BUDGETS.get(self.effort or "") if self.budget is None else self.budget

    def check(self, dialect: Dialect) -> None:
        """Raises Unsupported for a model that is not known to think."""
        if dialect.reasoning is not None:
            return
        for name, value in (("thinking_token_budget", self.budget), ("reasoning_effort", self.effort)):
            if value is not None and value != "none":
                raise Unsupported(
                    f"{name} is not supported by this model: it is not known to think (--reasoning-parser says how)",
                    param=name,
                )


def thinking(wish: Wish, form: ReasoningFormat | None, prompt: str) -> Thinking | None:
    """None where the model does not think, or the prompt ends behind its thoughts."""
    end = prompt.rstrip()
    if form is None or end.endswith(form.end):
        return None
    return Thinking(form.begin, form.end, end.endswith(form.begin), wish.most())


def leaving_room(found: Thinking | None, max_tokens: int) -> Thinking | None:
    """For an answer that must follow a grammar: thoughts without a budget get half of its tokens, as a model that never
    closes them would leave none."""
    if found is None or found.budget is not None:
        return found
    return replace(found, budget=max_tokens // 2)


def reading(
    form: ReasoningFormat | None, found: Thinking | None, answer: Callable[[], Parser] | None
) -> Callable[[], Parser] | None:
    """What reads an answer: thoughts if there may be some, then what `answer` reads. None where it is all text."""
    if form is None or found is None:
        return answer
    return partial(_reasoning, form, found.inside, answer or Plain)


def _reasoning(form: ReasoningFormat, inside: bool, answer: Callable[[], Parser]) -> Parser:
    return Reasoning(form, answer(), inside=inside)
