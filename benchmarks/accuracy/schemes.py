"""Candidate arithmetics for a linear layer and the KV cache, as fake quantization in float32.

A scheme is a choice of weights, activations and cache; its products run in float32 on rounded values, which is within
2^-24 of the integers (tests/reference/arithmetic.py has the exact ones).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from tests.reference.arithmetic import round_bf16
from tests.reference.llama import linear_tensors

from tailrace.engine.weights.quantize import quantize_affine4, quantize_rows

F32 = npt.NDArray[np.float32]
WIDE_LIMIT = 32512


@dataclass(frozen=True)
class Scheme:
    weights: str = "exact"  # exact, int8, int8-ls, nib4 (4-bit tensors of the file; int8 for the others), bf16
    activations: str = "exact"  # exact, row, group32, mixed, two-terms, bf16
    cache: str = "exact"  # exact, bf16, int8
    wide: Mapping[str, int] = field(default_factory=dict)  # wide channels by linear or kind of linear, for "mixed"
    ranking: str = "max"  # how wide channels are chosen

    def but(self, **changes) -> Scheme:
        return replace(self, **changes)


class Runner:
    """A model's arithmetic under one scheme; weights are converted once and kept."""

    def __init__(self, model, scheme: Scheme, weights: Mapping[str, F32], rankings) -> None:
        self._model, self._scheme, self._weights, self._rankings = model, scheme, weights, rankings

    def linear(self, name: str, x: F32, w: F32) -> F32:
        return self._activations(name, x) @ self._weights.get(name, w).T

    def cached(self, x: F32) -> F32:
        if self._scheme.cache == "bf16":
            return round_bf16(x)
        return steps_of(x, 127) if self._scheme.cache == "int8" else x

    def _activations(self, name: str, x: F32) -> F32:
        kind = self._scheme.activations
        if kind == "bf16":
            return round_bf16(x)
        if kind == "row":
            return steps_of(x, 127)
        if kind == "two-terms":
            return steps_of(x, WIDE_LIMIT)
        if kind == "group32":
            return steps_of(x.reshape(len(x), -1, 32), 127).reshape(x.shape)
        return self._mixed(name, x) if kind == "mixed" else x

    def _mixed(self, name: str, x: F32) -> F32:
        limit = np.full(x.shape[1], 127, np.float32)
        wide = self._scheme.wide
        count = wide[name] if name in wide else wide[name.partition(".")[0]]
        limit[self._rankings[self._scheme.ranking][name][:count]] = WIDE_LIMIT
        step = (np.abs(x) / limit).max(axis=1, keepdims=True)
        step[step == 0] = 1
        return np.rint(x / step) * step


def steps_of(x: F32, limit: int) -> F32:
    """Round the last axis to a multiple of its largest magnitude / limit."""
    step = np.abs(x).max(axis=-1, keepdims=True) / np.float32(limit)
    step[step == 0] = 1
    return np.rint(x / step) * step


def convert(model, kind: str) -> dict[str, F32]:
    """The model's linears after a weight scheme, as float32; those left out are exact."""
    if kind == "exact":
        return {}
    return {name: _convert_one(model, name, w, kind) for name, w in model.linears.items()}


def _convert_one(model, name: str, w: F32, kind: str) -> F32:
    if kind == "bf16":
        return round_bf16(w)
    if kind == "int8-ls":
        return _least_squares(w)
    parts = _groups(model, name) if kind == "nib4" else None
    if parts is None:
        int8 = quantize_rows(w)
        return int8.w8 * int8.scale[:, None]
    int8s = [quantize_affine4(part.q, part.d, part.m).to_int8() for part in parts]
    return np.concatenate([part.w8 * part.scale[:, None] for part in int8s])


def _groups(model, name: str):
    """The 4-bit groups of every tensor of a linear, or None when one of them is stored otherwise."""
    if name == "head":
        return None
    groups = [model.file.groups4(tensor) for tensor in linear_tensors(int(name.split(".")[1]))[name]]
    return None if None in groups else groups


def _least_squares(w: F32) -> F32:
    """Of several clipped scales for each row, the one with the least squared error."""
    best, error = None, None
    largest = np.abs(w).max(axis=1, keepdims=True)
    for share in np.linspace(0.7, 1, 13, dtype=np.float32):
        step = largest * share / 127
        step[step == 0] = 1
        tried = np.clip(np.rint(w / step), -127, 127) * step
        missed = np.square(w - tried).sum(axis=1, keepdims=True)
        best = tried if best is None else np.where(missed < error, tried, best)
        error = missed if error is None else np.minimum(missed, error)
    return best


class Recorder:
    """Runs exactly and ranks every linear's input channels by how much they would widen the narrow step."""

    def __init__(self) -> None:
        self.rankings: dict[str, dict[str, npt.NDArray[np.int64]]] = {"max": {}, "rms": {}, "row": {}}

    def linear(self, name: str, x: F32, w: F32) -> F32:
        size = np.abs(x)
        relative = size / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(1e-20))
        scores = {
            "max": size.max(axis=0),  # the largest seen
            "rms": np.square(size).mean(axis=0),
            "row": np.power(relative, 8).mean(axis=0),  # soft maximum relative to the row's own size
        }
        for ranking, score in scores.items():
            self.rankings[ranking][name] = np.argsort(-score, kind="stable")
        return x @ w.T

    def cached(self, x: F32) -> F32:
        return x
