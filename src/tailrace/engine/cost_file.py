"""Step costs on disk, so that a start need not measure again: one small file for whatever they depend on."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import numpy as np

from tailrace.engine.cost import F64
from tailrace.engine.weights.load import recipe

log = logging.getLogger(__name__)


def cost_file(folder: Path, file_sha256: str, weights: str, variant: str, threads: int) -> Path:
    """Its path in the store `folder`: one for each model, code, storage, variant and thread count."""
    return folder / "costs" / f"{file_sha256[:16]}-{recipe()[:8]}-{weights}-{variant}-{threads}.json"


def recall_costs(path: Path | None) -> F64 | None:
    """Coefficients [5] as an earlier run left them."""
    if path is None:
        return None
    try:
        found = np.array(json.loads(path.read_text()), dtype=np.float64)
    except (OSError, ValueError):
        return None
    return found if found.shape == (5,) and np.isfinite(found).all() and (found >= 0).all() else None


def keep_costs(path: Path, coefficients: F64) -> None:
    """Leave them for the next start."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(coefficients.tolist()))
        partial.replace(path)
    except OSError as error:
        log.warning("step costs could not be kept for the next start: %s", error)
