"""Tailrace: an LLM engine for CPUs, and the serving plane around it. Parts load when used; importing this is free.

from tailrace import LLM, SamplingParams, AsyncEngine
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.llm.async_engine import AsyncEngine
    from tailrace.llm.offline import LLM
    from tailrace.llm.output import Completion, Output, Score
    from tailrace.llm.params import SamplingParams

__all__ = ["LLM", "AsyncEngine", "Completion", "Output", "SamplingParams", "Score"]

_HOMES = (
    ("AsyncEngine", "tailrace.llm.async_engine"),
    ("LLM", "tailrace.llm.offline"),
    ("Completion", "tailrace.llm.output"),
    ("Output", "tailrace.llm.output"),
    ("Score", "tailrace.llm.output"),
    ("SamplingParams", "tailrace.llm.params"),
)


def __getattr__(name: str) -> object:
    for public, module in _HOMES:
        if name == public:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
