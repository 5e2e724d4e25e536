"""How far two sets of logits [T, vocab] over the same tokens are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Agreement:
    mean_kl: float  # nats a position, KL(reference || other)
    top1: float  # share of positions whose most likely token is the same
    perplexity: float  # of the other, on the tokens themselves
    reference_perplexity: float


def compare(reference: F32, other: F32, ids: Sequence[int]) -> Agreement:
    """`ids` are the tokens that were fed: position t predicts ids[t + 1]."""
    expected, found = log_softmax(reference), log_softmax(other)
    return Agreement(
        mean_kl=float(np.mean(kl(expected, found))),
        top1=float(np.mean(expected.argmax(axis=1) == found.argmax(axis=1))),
        perplexity=float(np.exp(mean_loss(found, ids))),
        reference_perplexity=float(np.exp(mean_loss(expected, ids))),
    )


def log_softmax(logits: F32) -> F32:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)


def kl(expected: F32, found: F32) -> npt.NDArray[np.float64]:
    """KL divergence of each row, from log-probabilities."""
    return np.sum(np.exp(expected) * (expected - found), axis=1, dtype=np.float64)


def mean_loss(log_probs: F32, ids: Sequence[int]) -> float:
    """Mean negative log-probability of the next token."""
    following = np.asarray(ids[1:])
    return float(-np.mean(log_probs[np.arange(following.size), following], dtype=np.float64))
