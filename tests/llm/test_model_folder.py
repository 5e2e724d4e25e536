"""A folder of safetensors and a model in parts answer as the one GGUF file does, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace import LLM, SamplingParams
from tests.tiny import write_tiny_gguf
from tests.tiny_hf import split_tiny_gguf, write_tiny_folder

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "hello world"}]


def answers(path: Path, settings: dict[str, Any]) -> tuple[str, list[list[int]]]:
    with LLM(path, progress=False, **settings) as llm:
        outputs = [*llm.generate("the hello world", GREEDY), *llm.chat(MESSAGES, GREEDY)]
        return llm.model, [list(output.prompt_token_ids) + list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture
def expected(tmp_path: Path, settings: dict[str, Any]) -> list[list[int]]:
    return answers(write_tiny_gguf(tmp_path / "one.gguf", wtype="f32"), settings)[1]


def test_a_folder(tmp_path: Path, settings: dict[str, Any], expected: list[list[int]]) -> None:
    name, found = answers(write_tiny_folder(tmp_path / "mine", shards=2), settings)
    assert (name, found) == ("mine", expected)


def test_parts(tmp_path: Path, settings: dict[str, Any], expected: list[list[int]]) -> None:
    parts = split_tiny_gguf(write_tiny_gguf(tmp_path / "m.gguf", wtype="f32"), 3)
    assert answers(parts[2], settings)[1] == expected
