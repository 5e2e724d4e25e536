"""A tiny tokenizer with all bytes, for the tests. The default model's own is a fixture (tests/conftest.py)."""

from __future__ import annotations

from functools import cache
from typing import Any

from tailrace.text.tokenizer import Tokenizer
from tests.tiny import END_OF_TEXT, IM_END, IM_START, SPECIAL_TOKENS, tiny_tokenizer


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


__all__ = ["END_OF_TEXT", "IM_END", "IM_START", "tiny", "tiny_metadata"]
