"""Which architectures can run, and the one way from a file to its declaration."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from tailrace.engine.models import bert, gemma3, llama, qwen2, qwen3
from tailrace.engine.models.base import ModelSpec
from tailrace.engine.weights.checkpoint import Checkpoint
from tailrace.errors import ModelFileError

ARCHITECTURES = MappingProxyType[str, Callable[[Checkpoint], ModelSpec]](
    {
        "llama": llama.describe,
        "qwen2": qwen2.describe,
        "qwen3": qwen3.describe,
        "gemma3": gemma3.describe,
    }
)
ENCODERS = MappingProxyType[str, Callable[[Checkpoint], ModelSpec]]({"bert": bert.describe})


def describe(file: Checkpoint) -> ModelSpec:
    """The model's declaration, fully checked. Raises ModelFileError naming what was found and what would work."""
    found = file.metadata.get("general.architecture")
    all_known = {**ARCHITECTURES, **ENCODERS}
    if not isinstance(found, str) or found not in all_known:
        known = ", ".join(sorted(all_known))
        raise ModelFileError(f"{file.path} has architecture {found!r}; those that run here are: {known}.")
    return all_known[found](file)
