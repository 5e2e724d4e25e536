"""The step-time model: one linear formula from which every prediction of the engine's speed comes.

    t = a + b*P + c*D + d*K + e*A

P prefill tokens, D decode rows, K KV tokens read by decode rows, A prefill attention work (step.Work). A prior is
fitted at start from a few timed steps (`calibrate`), then recursive least squares with forgetting follows the
machine. Coefficients are never negative: a part that measures as free is free, not a gain. Beside the mean it
keeps the quantile of measured / predicted, so that a bound on a step holds most of the time, not half of it.

Owns no clock and no policy beyond the chunk cap; it is told work and seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tailrace.engine.step import Work

F64 = npt.NDArray[np.float64]

_TYPICAL = np.array([1.0, 256.0, 8.0, 4096.0, 65536.0])  # scales the features to about one
_PRIOR = np.array([2e-3, 1e-3, 2e-3, 1e-7, 1e-8])  # a small model on two cores, until something is measured
_NOISE = 0.01  # variance of measured / predicted


@dataclass(frozen=True, slots=True)
class CostSettings:
    decode_target: float = 0.1  # seconds a step may take while someone decodes: their worst gap between tokens
    idle_target: float = 0.5  # seconds a step may take otherwise: how late a cancellation or a new prompt is seen
    least_chunk: int = 64
    most_chunk: int = 2048
    saturation: float = 0.9  # stop growing the chunk at this part of the highest prefill throughput
    forgetting: float = 0.998
    quantile: float = 0.9


class CostModel:
    def __init__(self, settings: CostSettings | None = None, coefficients: F64 | None = None) -> None:
        """`coefficients` [5]: seconds per unit of (step, P, D, K, A)."""
        self.settings = settings or CostSettings()
        self._theta = (_PRIOR if coefficients is None else coefficients) * _TYPICAL
        self._doubt = np.maximum(self._theta, 1e-4) ** 2  # variance of each coefficient that is never exceeded
        self._covariance = np.diag(self._doubt)
        self._plain = self.coefficients.tolist()
        self.spread = 1.1  # the settings' quantile of measured / predicted
        self.step_seconds = 0.0  # smoothed length of recent steps
        self.tokens_per_second = 0.0  # smoothed computed tokens (prefill and decode), for drain rates

    @property
    def coefficients(self) -> F64:
        return np.asarray(self._theta / _TYPICAL, dtype=np.float64)

    def predict(self, work: Work) -> float:
        """Mean seconds of a step."""
        a, b, c, d, e = self._plain
        return float(a + b * work.prefill + c * work.decode + d * work.kv_tokens + e * work.attention)

    def observe(self, work: Work, seconds: float) -> None:
        """Learn from one step. An outlier (a stall of the machine) counts as at most four times its prediction."""
        predicted = max(self.predict(work), 1e-6)
        self._track(work, seconds, seconds / predicted)
        self._learn(_features(work) / predicted, min(seconds / predicted, 4.0))

    def chunk_tokens(self, decode_rows: int, kv_tokens: int) -> int:
        """The largest prefill whose step likely stays under the target, within the settings' bounds."""
        settings = self.settings
        a, b, c, d, _ = self._plain
        target = settings.decode_target if decode_rows else settings.idle_target
        left = target / self.spread - a - c * decode_rows - d * kv_tokens
        fits = left / b if b > 0 else settings.most_chunk
        chunk = min(fits, self._saturated(a, b), settings.most_chunk)
        return max(settings.least_chunk, int(chunk) // 16 * 16)

    def drain_seconds(self, prompt_tokens: int, sequences: int, mean_output: float = 128.0) -> float:
        """How long the engine needs for this much waiting work at its recent pace; for Retry-After."""
        pace = self.tokens_per_second
        if pace <= 0:
            _, b, c, _, _ = self._plain
            return float(b * prompt_tokens + c * sequences * mean_output)
        return (prompt_tokens + sequences * mean_output) / pace

    def _saturated(self, a: float, b: float) -> float:
        """P where P / (a + b*P) reaches `saturation` of its limit 1/b."""
        if b <= 0:
            return self.settings.most_chunk
        part = self.settings.saturation
        return max(256.0, part / (1 - part) * a / b)

    def _track(self, work: Work, seconds: float, ratio: float) -> None:
        rate = 0.05
        quantile = self.settings.quantile
        self.spread = min(4.0, max(1.0, self.spread + rate * (quantile if ratio > self.spread else quantile - 1)))
        pace = (work.prefill + work.decode) / max(seconds, 1e-6)
        fresh = self.step_seconds == 0.0
        self.step_seconds += (1.0 if fresh else rate) * (seconds - self.step_seconds)
        self.tokens_per_second += (1.0 if fresh else rate) * (pace - self.tokens_per_second)

    def _learn(self, x: F64, ratio: float) -> None:
        """One step of recursive least squares on relative errors, so that short steps count as much as long ones."""
        forgetting = self.settings.forgetting
        gain = self._covariance @ x
        gain /= forgetting * _NOISE + float(x @ gain)
        self._theta = np.maximum(self._theta + gain * (ratio - float(x @ self._theta)), 0.0)
        self._plain = (self._theta / _TYPICAL).tolist()
        self._covariance -= gain[:, None] * (x @ self._covariance)
        self._covariance /= forgetting
        excess = float((self._covariance.diagonal() / self._doubt).max())
        if excess > 1.0:  # forgetting without news must not blow up
            self._covariance /= excess


def fit(samples: Sequence[tuple[Work, float]]) -> F64:
    """Non-negative least squares of relative error over timed steps; coefficients as CostModel takes them.

    Drops the most negative part and solves again, which is exact enough for five features.
    """
    seconds = np.array([t for _, t in samples])
    x = np.array([_features(work) for work, _ in samples]) / seconds[:, None]
    keep = list(range(5))
    theta = np.zeros(5)
    while keep:
        solution = np.linalg.lstsq(x[:, keep], np.ones(len(seconds)), rcond=None)[0]
        if solution.min() >= 0:
            theta[keep] = solution
            break
        keep.pop(int(solution.argmin()))
    return np.asarray(theta / _TYPICAL, dtype=np.float64)


def _features(work: Work) -> F64:
    return np.asarray(np.array((1.0, *work)) / _TYPICAL, dtype=np.float64)
