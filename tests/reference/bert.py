"""A BERT-type encoder in NumPy float32, from the paper and the published configuration: hidden states of one text.

Knows nothing of the engine: weights come under the names that model folders give them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
_ERF = np.vectorize(erf, otypes=[np.float64])


def hidden_states(weights: Mapping[str, F32], config: Mapping[str, object], ids: npt.NDArray[np.integer]) -> F32:
    """[tokens, hidden], behind the last layer's norm."""
    eps, layers = float(str(config["layer_norm_eps"])), int(str(config["num_hidden_layers"]))
    heads = int(str(config["num_attention_heads"]))
    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = _norm(x, weights, "embeddings.LayerNorm", eps)
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        mixed = _attention(x, weights, f"{at}.attention.self", heads)
        mixed = x + _linear(mixed, weights, f"{at}.attention.output.dense")
        x = _norm(mixed, weights, f"{at}.attention.output.LayerNorm", eps)
        wide = _gelu(_linear(x, weights, f"{at}.intermediate.dense"))
        x = _norm(x + _linear(wide, weights, f"{at}.output.dense"), weights, f"{at}.output.LayerNorm", eps)
    return x


def _linear(x: F32, weights: Mapping[str, F32], name: str) -> F32:
    y: F32 = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return y


def _norm(x: F32, weights: Mapping[str, F32], name: str, eps: float) -> F32:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    y: F32 = centred / np.sqrt(variance + eps) * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return y


def _gelu(x: F32) -> F32:
    y: F32 = (x * 0.5 * (1 + _ERF(x / np.sqrt(2)))).astype(np.float32)
    return y


def _attention(x: F32, weights: Mapping[str, F32], name: str, heads: int) -> F32:
    """Every token sees every token."""
    tokens, hidden = x.shape
    q, k, v = (
        _linear(x, weights, f"{name}.{part}").reshape(tokens, heads, -1).transpose(1, 0, 2)
        for part in ("query", "key", "value")
    )
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(np.float32(hidden // heads))
    mass = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (mass / mass.sum(axis=-1, keepdims=True)) @ v
    out: F32 = mixed.transpose(1, 0, 2).reshape(tokens, hidden)
    return out
