"""Logits of the engine's kernels on the fixed text, and how far they are from those of another arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tailrace import _native
from tailrace.engine.kv.stored import stored_kv
from tailrace.engine.weights.load import LoadedModel
from tailrace.text.tokenizer import Tokenizer
from tests.reference.compare import kl, log_softmax

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]

EVALUATION = Path(__file__).parents[1] / "reference" / "evaluation.txt"
WINDOW = 512  # tokens that see one another


def evaluation_ids(tokenizer: Tokenizer) -> Ids:
    return tokenizer.encode(EVALUATION.read_text(encoding="utf-8"), add_special=False, parse_special=False)


def windows(ids: Ids) -> list[Ids]:
    return [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)]


def native_logits(loaded: LoadedModel, ids: Ids, kv: str = "auto") -> F32:
    """[T, vocab] of one sequence from position 0; `kv` as the setting."""
    blocks = -(-len(ids) // _native.BLOCK_TOKENS)
    cache = _native.KvCache(loaded.model, blocks, stored_kv(kv, loaded.spec, loaded.weights))
    ends, firsts = np.array([0, len(ids)], np.int32), np.zeros(1, np.int32)
    table, every = np.arange(blocks, dtype=np.int32)[None], np.arange(len(ids), dtype=np.int32)
    loaded.model.forward(cache, ids, ends, firsts, table, every)
    return loaded.model.logits()


@dataclass(frozen=True)
class Difference:
    """Of a model from a reference, by position; the last of a window predicts nothing that is known."""

    kl: F64  # nats, KL(reference || model)
    top1: npt.NDArray[np.bool_]  # whether the most likely token is the same
    reference_loss: F32  # nats, of the next token
    more_loss: F32  # the model's, less the reference's

    @property
    def perplexity_change(self) -> float:
        """Relative: 0.01 is 1 % more."""
        return float(np.expm1(self.more_loss.mean(dtype=np.float64)))

    @property
    def standard_error(self) -> float:
        """Of `perplexity_change`, from the spread over tokens."""
        return float(self.more_loss.std(dtype=np.float64) / np.sqrt(self.more_loss.size))

    def __str__(self) -> str:
        return (
            f"{self.kl.size} tokens: KL {self.kl.mean():.5f}, top-1 {self.top1.mean():.4f}, "
            f"perplexity {np.exp(self.reference_loss.mean()):.3f} {100 * self.perplexity_change:+.2f} % "
            f"+- {100 * self.standard_error:.2f} %"
        )


def difference(expected: Sequence[F32], found: Sequence[F32], texts: Sequence[Ids]) -> Difference:
    """`expected` and `found` are log-probabilities [T, vocab] of each text's positions."""
    reference, ours = next_token_losses(expected, texts), next_token_losses(found, texts)
    pairs = list(zip(expected, found, strict=True))
    return Difference(
        kl=np.concatenate([kl(a, b) for a, b in pairs]),
        top1=np.concatenate([a.argmax(axis=1) == b.argmax(axis=1) for a, b in pairs]),
        reference_loss=reference,
        more_loss=ours - reference,
    )


def next_token_losses(log_probs: Sequence[F32], texts: Sequence[Ids]) -> F32:
    pairs = zip(log_probs, texts, strict=True)
    return np.concatenate([-window[np.arange(len(ids) - 1), ids[1:]] for window, ids in pairs])


def together(parts: Sequence[Difference]) -> Difference:
    return Difference(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Difference)))


def native_log_probs(loaded: LoadedModel, ids: Ids, kv: str = "auto") -> F32:
    return log_softmax(native_logits(loaded, ids, kv))
