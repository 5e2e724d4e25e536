"""Tokenizers for the tests: SmolLM2's own, kept compressed beside the golden file, and a tiny one with all bytes."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from tailrace.text.tokenizer import Tokenizer
from tests.tiny import END_OF_TEXT, IM_END, IM_START, SPECIAL_TOKENS, tiny_tokenizer

DATA = Path(__file__).parents[1] / "data"


@cache
def smollm2_metadata() -> dict[str, Any]:
    """Tokenizer keys of SmolLM2-135M-Instruct's GGUF file. The tokens after the first ones are the merges joined."""
    data = json.loads(lzma.decompress((DATA / "smollm2-tokenizer.json.xz").read_bytes()))
    tokens = data["first_tokens"] + [merge.replace(" ", "") for merge in data["merges"]]
    control = data["control_tokens"]
    return {
        **data["metadata"],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * control + [1] * (len(tokens) - control),
        "tokenizer.ggml.merges": data["merges"],
    }


@cache
def smollm2() -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_metadata())


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    """`changes` are keys without their `tokenizer.ggml.` prefix; None takes a key out."""
    tokens, merges = tiny_tokenizer()
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)),
        "merges": merges,
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


@cache
def tiny() -> Tokenizer:
    return Tokenizer.from_gguf(tiny_metadata())


__all__ = ["DATA", "END_OF_TEXT", "IM_END", "IM_START", "smollm2", "smollm2_metadata", "tiny", "tiny_metadata"]
