"""The real default model for every test that needs it. It is pulled once, then read from the model store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.config import load, store_root
from tailrace.engine.store.store import Store
from tailrace.engine.weights.gguf import GgufFile
from tailrace.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Where `tailrace pull smollm2:135m` puts it. A test that cannot have it fails with the store's own error."""
    return Store(store_root(load().config.engine)).pull("smollm2:135m")


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> dict[str, Any]:
    return GgufFile(smollm2_path).metadata


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata)
