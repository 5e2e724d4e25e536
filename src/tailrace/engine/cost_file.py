"""Step costs on disk, so that a start need not measure again: one small file for whatever they depend on."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tailrace.engine.cost import F64
from tailrace.engine.weights.load import recipe
from tailrace.frozen import frozen
from tailrace.types import StepCosts

log = logging.getLogger(__name__)


def cost_file(folder: Path, file_sha256: str, *, weights: str, kv: str, variant: str, ranks: Sequence[int]) -> Path:
    """Its path in the store `folder`: one for each model, code, storage, variant and the threads of each rank."""
    threads = "+".join(map(str, ranks))
    return folder / "costs" / f"{file_sha256[:16]}-{recipe()[:8]}-{weights}-kv_{kv}-{variant}-{threads}.json"


@frozen
class KeptCosts:
    """Coefficients [5] as CostModel takes them: as learned last, and as calibrated first, by which work is charged."""

    learned: F64
    standard: StepCosts


def recall_costs(path: Path | None) -> KeptCosts | None:
    """As an earlier run left them."""
    if path is None:
        return None
    try:
        found = json.loads(path.read_text())
        learned, standard = (np.array(found[name], dtype=np.float64) for name in ("learned", "standard"))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    if not all(one.shape == (5,) and np.isfinite(one).all() and (one >= 0).all() for one in (learned, standard)):
        return None
    return KeptCosts(learned, StepCosts(*standard.tolist()))


def keep_costs(path: Path, costs: KeptCosts) -> None:
    """Leave them for the next start."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"learned": costs.learned.tolist(), "standard": list(costs.standard)}))
        partial.replace(path)
    except OSError as error:
        log.warning("step costs could not be kept for the next start: %s", error)
