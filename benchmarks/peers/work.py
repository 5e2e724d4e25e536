"""The work every engine does: the same token ids in, exactly as many tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST_PLAIN_ID = 256  # above the special tokens and single bytes of the usual vocabularies
PLAIN_IDS = 30_000


def prompt_ids(key: tuple[int, ...], tokens: int) -> list[int]:
    """Plain token ids, the same for the same key, others for another."""
    return [FIRST_PLAIN_ID + hash((*key, column)) % PLAIN_IDS for column in range(tokens)]


@dataclass(frozen=True, slots=True)
class Work:
    """`count` prompts of `tokens_in`, `tokens_out` new tokens each; `rates` says what one run tells (see `rate`)."""

    name: str
    count: int
    tokens_in: int
    tokens_out: int
    rates: tuple[str, ...]

    def prompts(self, salt: int) -> list[list[int]]:
        """Prompts that differ from each other and, by `salt`, from those of every other round."""
        return [prompt_ids((salt, row), self.tokens_in) for row in range(self.count)]

    def rate(self, kind: str, seconds: float, first_seconds: float) -> float:
        """Tokens per second: of the prompt until the first token, of all prompts over the whole run, after the first
        token, or new ones over all."""
        if kind == "prompt":
            return self.count * self.tokens_in / first_seconds
        if kind == "whole prompts":
            return self.count * self.tokens_in / seconds
        if kind == "decode":
            return self.count * (self.tokens_out - 1) / (seconds - first_seconds)
        return self.count * self.tokens_out / seconds


WORK: Sequence[Work] = (
    Work("one prompt of 512", 1, 512, 1, ("prompt",)),
    Work("one prompt of 2,048", 1, 2048, 1, ("prompt",)),
    Work("32 prompts of 256", 32, 256, 1, ("whole prompts",)),
    Work("batch 1: 128 in, 128 out", 1, 128, 128, ("decode", "whole run")),
    Work("8 requests: 256 in, 64 out", 8, 256, 64, ("whole run",)),
    Work("32 requests: 256 in, 64 out", 32, 256, 64, ("whole run",)),
)
GREEDY_PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    if n <= 1:\n        return n\n    return",
)
GREEDY_TOKENS = 24
