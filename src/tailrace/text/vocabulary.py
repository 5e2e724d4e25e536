"""What a model file says about its tokens, read from the `tokenizer.ggml.*` keys of a GGUF file and checked.

Knows nothing of how text is cut into tokens; that is a `scheme`. Refuses keys that are missing, of a wrong type, or
that contradict each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tailrace.errors import ModelFileError
from tailrace.frozen import frozen

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type
SPECIAL_KINDS = (UNKNOWN, CONTROL)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@frozen
class Vocabulary:
    """`kinds` are the file's token types, one for each token. A file has merges or scores, according to its scheme."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str] = ()  # "left right", the first is applied first
    scores: Sequence[float] = ()  # one for each token, the highest is merged first
    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None
    end_ids: frozenset[int] = frozenset()  # those that the file names
    wants_bos: bool = False
    wants_eos: bool = False
    space_prefix: bool = False

    def of_kind(self, *kinds: int) -> list[int]:
        return np.flatnonzero(np.isin(np.asarray(self.kinds), kinds)).tolist()


class Defaults(Protocol):
    """What holds where a file does not say it, and which of the two lists it must have."""

    @property
    def adds_bos(self) -> bool: ...
    @property
    def adds_space(self) -> bool: ...
    @property
    def merges_by_score(self) -> bool: ...


def read_vocabulary(metadata: Mapping[str, object], defaults: Defaults) -> Vocabulary:
    tokens = _strings(metadata, "tokens")
    if not tokens:
        raise ModelFileError("tokenizer.ggml.tokens is empty")
    eos_id, *others = (token_id(metadata, key, len(tokens)) for key in _END_KEYS)
    return Vocabulary(
        tokens=tokens,
        kinds=_kinds(metadata, len(tokens)),
        merges=() if defaults.merges_by_score else _strings(metadata, "merges"),
        scores=_numbers(metadata, "scores", len(tokens)).tolist() if defaults.merges_by_score else (),
        bos_id=token_id(metadata, "bos_token_id", len(tokens)),
        eos_id=eos_id,
        unknown_id=token_id(metadata, "unknown_token_id", len(tokens)),
        end_ids=frozenset(i for i in (eos_id, *others) if i is not None),
        wants_bos=_flag(metadata, "add_bos_token", defaults.adds_bos),
        wants_eos=_flag(metadata, "add_eos_token", False),
        space_prefix=_flag(metadata, "add_space_prefix", defaults.adds_space),
    )


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, Sequence | np.ndarray) or set(map(type, value)) - {str}:
        raise ModelFileError(f"tokenizer.ggml.{key} must be a list of strings, not {type(value).__name__}")
    return list(value)


def _kinds(metadata: Mapping[str, object], n_tokens: int) -> list[int]:
    if metadata.get("tokenizer.ggml.token_type") is None:
        return [NORMAL] * n_tokens
    kinds: list[int] = _numbers(metadata, "token_type", n_tokens).astype(np.int64).tolist()
    return kinds


def _numbers(metadata: Mapping[str, object], key: str, n_tokens: int) -> npt.NDArray[Any]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, Sequence | np.ndarray) or len(value) != n_tokens:
        raise ModelFileError(f"tokenizer.ggml.{key} must have one entry for each of the {n_tokens} tokens")
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iuf" or not np.isfinite(numbers).all():
        raise ModelFileError(f"tokenizer.ggml.{key} must be a list of numbers")
    return numbers


def token_id(metadata: Mapping[str, object], key: str, n_tokens: int) -> int | None:
    """The token that a key names; None where it names none. Raises ModelFileError for what is no token's id."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < n_tokens:
        raise ModelFileError(f"tokenizer.ggml.{key} is {value!r}; the vocabulary has {n_tokens} tokens")
    return int(value)


def _flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    return bool(metadata.get(f"tokenizer.ggml.{key}", default))
