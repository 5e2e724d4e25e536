"""One tiny model for all tests of the Python API; its packed weights are made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import LLM
from tests.tiny import write_tiny_gguf


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("llm") / "tiny.gguf")


@pytest.fixture(scope="session")
def settings(tiny: Path) -> dict[str, Any]:
    """Small, and everything it leaves behind beside the model."""
    return {"threads": 1, "kv_memory": "8MiB", "max_sequences": 8, "store": str(tiny.parent / "store")}


@pytest.fixture(scope="session")
def llm(tiny: Path, settings: dict[str, Any]) -> Iterator[LLM]:
    with LLM(tiny, progress=False, **settings) as llm:
        yield llm
