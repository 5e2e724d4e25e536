"""schemathesis over our own OpenAPI page: no answer may be a 5xx or other than what the page says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.peer_suites.environments import environment, versions
from tests.peer_suites.server import serving

PACKAGES = ("schemathesis",)
EXAMPLES, SECONDS = 20, 120  # of each operation; of the whole run
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
OPTIONS = (
    *("--checks", CHECKS, "--phases", "coverage,fuzzing", "--seed", "1", "--continue-on-failure"),
    *("--suppress-health-check", "all", "--request-timeout", "60", "--warnings", "off"),
    *("--max-examples", str(EXAMPLES), "--max-time", str(SECONDS)),
)


def run(folder: Path) -> int:
    """The context is short: where an answer has no limit of its own, it ends with the context."""
    python = environment(folder / "openapi", PACKAGES)
    print(versions(python, PACKAGES), flush=True)
    with serving(folder / "openapi.log", "smollm2:135m", "minilm", "--max-context", "256") as base:
        command = [str(python.with_name("schemathesis")), "run", base + "/openapi.json", *OPTIONS]
        return subprocess.run(command, check=False, cwd=folder).returncode
