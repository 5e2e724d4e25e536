"""Runs one peer's suite against our server: see README.md.

    python -m tests.peer_suites SUITE [--folder FOLDER]

Environments and sources of peers are fetched into FOLDER (default: a folder in the system's temporary one) and kept
there for the next run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

from tests.peer_suites import llama_server, openapi
from tests.peer_suites.environments import environment, versions
from tests.peer_suites.server import serving

HERE = Path(__file__).parent
MODELS = ("smollm2:135m", "minilm")


def script(name: str, *packages: str) -> Callable[[Path], int]:
    """A suite that is a script of ours in an environment with `packages`."""

    def go(folder: Path) -> int:
        python = environment(folder / name, packages)
        print(versions(python, packages), flush=True)
        with serving(folder / f"{name}.log", *MODELS) as base:
            return subprocess.run([str(python), str(HERE / f"{name}.py"), base], check=False).returncode

    return go


SUITES = MappingProxyType(
    {
        "sdks": script("sdks", "openai", "anthropic"),
        "instructor": script("with_instructor", "instructor"),
        "langchain": script("with_langchain", "langchain-openai"),
        "llm": script("with_llm", "llm"),
        "lm-eval": script("with_lm_eval", "lm-eval", "aiohttp", "requests", "tenacity"),
        "llama-server": llama_server.run,
        "openapi": openapi.run,
    }
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tailrace-peers")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    return SUITES[options.suite](options.folder)


if __name__ == "__main__":
    sys.exit(main())
