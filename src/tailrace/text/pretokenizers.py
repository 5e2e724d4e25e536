"""Pre-tokenizers by the name a model file gives them: how text is cut into words before merges are applied.

A new one is one entry of the table. Byte-level models only; anything else has no entry and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import pre_tokenizers as pre
from tokenizers.pre_tokenizers import PreTokenizer


@dataclass(frozen=True, slots=True)
class PreTokenizerSpec:
    """`build` makes the splitter. `adds_bos` holds where the file does not say whether prompts begin with a start
    token. `ignore_merges`: a word that is itself a token is taken whole."""

    build: Callable[[], PreTokenizer]
    adds_bos: bool = False
    ignore_merges: bool = False


def _byte_level() -> PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_byte_level() -> PreTokenizer:
    return pre.Sequence([pre.Digits(individual_digits=True), _byte_level()])


PRE_TOKENIZERS: dict[str, PreTokenizerSpec] = {
    "gpt-2": PreTokenizerSpec(_byte_level),
    "smollm": PreTokenizerSpec(_digits_then_byte_level),
}
