"""The llm command with a model of ours in its file of models: plain, streamed, with a schema, with a tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import run

DECLARED = """\
- model_id: ours
  model_name: smollm2:135m
  api_base: {base}/v1
  api_key: none
  supports_schema: true
  supports_tools: true
"""
TOOL = "def weather(city: str) -> str:\n    'The weather of a city'\n    return 'sunny'\n"


def _ask(base: str, *arguments: str, model: str = "ours") -> str:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "extra-openai-models.yaml").write_text(DECLARED.format(base=base))
        command = [sys.executable, "-m", "llm", "-m", model, "-o", "max_tokens", "48", *arguments]
        found = subprocess.run(
            command, check=False, capture_output=True, text=True, env={**os.environ, "LLM_USER_PATH": folder}
        )
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def plain(base: str) -> str:
    return repr(_ask(base, "--no-stream", "-o", "temperature", "0", "Say hello."))


def stream_is_the_plain_answer(base: str) -> str:
    fields = ("-o", "temperature", "0", "Say hello.")
    streamed = _ask(base, *fields)
    assert streamed == _ask(base, "--no-stream", *fields)
    return f"{len(streamed)} characters"


def schema(base: str) -> str:
    form = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 9},
            "age": {"type": "integer", "maximum": 99, "minimum": 0},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    said = json.loads(_ask(base, "--schema", json.dumps(form), "A dog."))
    assert set(said) == {"name", "age"}
    return repr(said)


def tools(base: str) -> str:
    """`auto`: so small a model calls when it likes to; what must hold is that the conversation goes through."""
    return repr(_ask(base, "--functions", TOOL, "--chain-limit", "3", "The weather in Paris?")[:40])


if __name__ == "__main__":
    raise SystemExit(run((plain, stream_is_the_plain_answer, schema, tools)))
