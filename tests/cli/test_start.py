"""What a server's start does not import or build, because nobody should wait for it before the first request."""

from __future__ import annotations

import subprocess
import sys

UP_TO_READY = "import sys, tailrace.cli.direct, tailrace.cli.serve, tailrace.api.server\n"
HEAVY = (
    "sqlalchemy", "alembic", "aiosqlite", "typer", "rich", "textual", "fastapi", "aiohttp", "httpx", "huggingface_hub",
    "llguidance", "gguf", "safetensors", "redis", "opentelemetry", "PIL", "matplotlib", "tailrace.bench",
    "tailrace.plan", "tailrace.doctor", "tailrace.database.schema", "tailrace.cli.main",
)  # fmt: skip


def after(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_a_server_is_ready_without_what_it_does_not_need_for_a_request() -> None:
    """SQL takes a third of a second to import, Typer and the flags of all commands a sixth of a start."""
    assert after(f"{UP_TO_READY}print(sorted({set(HEAVY)} & sys.modules.keys()))") == "[]\n"


def test_a_model_loads_before_the_serving_plane_is_imported() -> None:
    """So that reading weights, which needs no interpreter, goes on beside the rest of the imports."""
    beside = {
        "tailrace.api.server",
        "tailrace.control",
        "tailrace.protocol",
        "pydantic",
        "starlette",
        "prometheus_client",
    }
    assert after(f"import sys, tailrace.cli.serve\nprint(sorted({beside} & sys.modules.keys()))") == "[]\n"


def test_what_checks_bodies_is_built_when_the_server_is_ready() -> None:
    code = (
        "from tailrace.protocol.body import shapes\nprint([shape for shape in shapes() if shape.__pydantic_complete__])"
    )
    assert after(f"{UP_TO_READY}{code}") == "[]\n"
