from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from tailrace.engine.weights.load import LoadedModel, load_model

Load = Callable[..., LoadedModel]


@pytest.fixture(scope="package")
def load(smollm2_path: Path) -> Load:
    """The default model: load(weights="auto", isa="auto", threads=0). The last two ways of loading it are kept."""

    @lru_cache(maxsize=2)
    def loaded(weights: str = "auto", isa: str = "auto", threads: int = 0) -> LoadedModel:
        return load_model(smollm2_path, weights=weights, isa=isa, threads=threads, max_context=1024)

    return loaded
