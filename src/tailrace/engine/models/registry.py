"""Which architectures can run, and the one way from a file to its declaration."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from tailrace.engine.models import gemma3, llama, qwen2, qwen3
from tailrace.engine.models.base import ModelSpec
from tailrace.engine.weights.checkpoint import Checkpoint
from tailrace.errors import ModelFileError

ARCHITECTURES = MappingProxyType[str, Callable[[Checkpoint], ModelSpec]](
    {"llama": llama.describe, "qwen2": qwen2.describe, "qwen3": qwen3.describe, "gemma3": gemma3.describe}
)


def describe(file: Checkpoint) -> ModelSpec:
    """The model's declaration, fully checked. Raises ModelFileError naming what was found and what would work."""
    found = file.metadata.get("general.architecture")
    if not isinstance(found, str) or found not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelFileError(f"{file.path} has architecture {found!r}; those that run here are: {known}.")
    return ARCHITECTURES[found](file)
