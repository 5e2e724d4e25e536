"""The real default model for every test that needs it, pulled once, then read from the model store; and how Hypothesis
looks for examples: the same ones in every run, and however slow the machine is.

`--hypothesis-profile=explore` draws new ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tailrace.config import load, store_root
from tailrace.engine.store.store import Store
from tailrace.engine.weights.gguf import GgufFile
from tailrace.text.tokenizer import Tokenizer
from tests.databases import names, postgres, url

__all__ = ["names", "postgres", "url"]

SLOW = {"deadline": None, "suppress_health_check": (HealthCheck.too_slow,)}
settings.register_profile("same", derandomize=True, **SLOW)  # type: ignore[arg-type]
settings.register_profile("explore", **SLOW)  # type: ignore[arg-type]
settings.load_profile("same")


@pytest.fixture(autouse=True, scope="session")
def terminal() -> Iterator[None]:
    """As wide and as plain as none, here and in child processes, whatever the one is that the tests are started in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        for name in ("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What servers in child processes keep is kept here, and not where the user's own servers keep theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Child processes share their bytecode also where Python is told to leave none beside the sources: most of what
    a start takes is compiling them."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.dont_write_bytecode:
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.getbasetemp() / "bytecode"))
        yield


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
