"""The examples of docs/ run as they are written, with a tiny model in the place of the default one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.docs.blocks import DOCS, Block, blocks
from tests.tiny import write_tiny_gguf

SOURCE = DOCS.parent / "src"
ADDRESS = "http://127.0.0.1:8000"
NAME = "smollm2:135m"
SERVED = (
    "examples/http.md",
    "examples/openai-client.md",
    "examples/responses.md",
    "examples/anthropic-client.md",
)

# What each example prints, as far as that does not depend on what a model with random weights says.
EXPECTED = {
    "examples/http.md": {
        "A chat": r'"object":"chat\.completion".*"role":"assistant"',
        "Streamed": r'(?s)^data: \{.*"usage":\{"prompt_tokens":\d+.*data: \[DONE\]',
        "Several prompts at once": r'"index":1,',
        "Counting tokens": r'"count":\d+',
    },
    "examples/openai-client.md": {
        "One answer": r"^(stop|length) \d+\n",
        "Streamed": r"(^|\n)\d+ tokens$",
        "Many at once, with asyncio": r"^('|\")(.*\n){2}('|\").*$",
        "Several answers and seeds": r"^True [23]$",
        "Log-probabilities, and scoring a text": r"(?s)^'.*': None\n.*: -\d+\.\d+\nperplexity \d+\.\d$",
    },
    "examples/responses.md": {
        "One response": r"^(completed|incomplete) \d+",
        "Going on from it": r"^\['user', ('assistant', )?'user'\]$",
        "A stream of events": r"(^|\n)response\.(completed|incomplete)$",
        "An answer of a form": r"^City True$",
    },
    "examples/anthropic-client.md": {
        "One message": r"^(end_turn|max_tokens) \d+ \d+",
        "A stream": r"(^|\n)\d+ tokens$",
        "A tool that must be called": r"^get_weather \['city'\]\n(end_turn|max_tokens|tool_use)$",
        "How long is a prompt?": r"^\d+$",
    },
    "examples/offline.md": {
        "Texts": r"^'The sea is' -> .* (stop|length) \d+\n",
        "Chats": r"(?s)tok/s, \d+ prompt tokens were cached$",
        "Several answers and seeds": r"^True$",
        "How likely is a text?": r"'world the': perplexity \d+\.\d\n (Paris|London|bananas)$",
        "A file of prompts to a file of answers": r"^2 answers$",
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("docs") / "tiny.gguf")


def environ(model: Path) -> dict[str, str]:
    """Small engines, with all they leave behind beside the model."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
    settings = {"STORE": str(model.parent / "store"), "THREADS": "1", "KV_MEMORY": "16MiB"}
    return {**own, "PYTHONPATH": str(SOURCE), **{f"TAILRACE_ENGINE_{name}": value for name, value in settings.items()}}


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[str]:
    """The address of `tailrace serve`, which calls the tiny model by the default model's name."""
    command = [sys.executable, "-m", "tailrace", "serve", str(model), "--port", "0", "--served-name", NAME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ(model)) as process:
        assert process.stdout is not None
        address = next(match[0] for line in process.stdout if (match := re.search(r"http://[\d.:]+", line)))
        yield address
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode == 0


@pytest.fixture
def run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Block, str], str]:
    """Runs code in an empty folder and returns what it printed. Python runs in this process: imports cost seconds."""
    monkeypatch.chdir(tmp_path)
    for name, value in environ(model).items():
        monkeypatch.setenv(name, value)

    def run(block: Block, code: str) -> str:
        if block.language == "python":
            exec(compile(code, str(block), "exec", dont_inherit=True), {"__name__": "__main__"})
            return capsys.readouterr().out.strip()
        done = subprocess.run(["bash", "-euc", code], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def served_blocks() -> list[Block]:
    return [block for page in SERVED for block in blocks(page)]


@pytest.mark.parametrize("block", served_blocks(), ids=str)
def test_examples_against_a_server(block: Block, server: str, run: Callable[[Block, str], str]) -> None:
    assert ADDRESS in block.code
    out = run(block, block.code.replace(ADDRESS, server))
    assert re.search(EXPECTED[block.page][block.title], out), out


@pytest.mark.parametrize("block", blocks("examples/offline.md"), ids=str)
def test_examples_without_a_server(block: Block, model: Path, run: Callable[[Block, str], str]) -> None:
    assert f'LLM("{NAME}")' in block.code
    out = run(block, block.code.replace(NAME, str(model)))
    assert re.search(EXPECTED[block.page][block.title], out), out


async def test_the_fastapi_example(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ(model).items():
        monkeypatch.setenv(name, value)
    (block,) = blocks("examples/fastapi.md")
    names: dict[str, object] = {"__name__": "app"}
    exec(compile(block.code.replace(NAME, str(model)), "app.py", "exec", dont_inherit=True), names)
    app = names["app"]
    async with app.router.lifespan_context(app):  # type: ignore[attr-defined]
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            streamed = await client.post("/ask", json={"text": "hello", "max_tokens": 8})
            again = await client.post("/ask", json={"text": "hello", "max_tokens": 8})
            summary = (await client.post("/summary", json={"text": "hello world", "max_tokens": 3})).json()
            refused = await client.post("/summary", json={"text": "a " * 5000})
    assert streamed.status_code == 200
    assert streamed.text == again.text
    assert 1 <= summary["tokens"] <= 3  # drawn without a seed: an end may come any time
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_every_page_is_run_and_listed() -> None:
    pages = {page.name for page in (DOCS / "examples").glob("*.md")} - {"README.md"}
    assert pages == {Path(page).name for page in (*EXPECTED, "examples/fastapi.md")}
    index = (DOCS / "examples" / "README.md").read_text(encoding="utf-8")
    assert all(f"]({page})" in index for page in pages)
    for page, expected in EXPECTED.items():
        assert [block.title for block in blocks(page)] == list(expected)


def test_json_in_curl_examples_is_json() -> None:
    for block in blocks("examples/http.md"):
        (body,) = re.findall(r"-d '(.*?)'", block.code, flags=re.DOTALL)
        assert json.loads(body)
