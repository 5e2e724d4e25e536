"""The step-time model: one linear formula from which every prediction of the engine's speed comes.

    t = a + b*P + c*D + d*K + e*A

P prefill tokens, D decode rows, K KV tokens read by decode rows, A prefill attention work (step.Work). A prior is
fitted at start from a few timed steps (`calibrate`), then recursive least squares follows the machine. Coefficients
are never negative: a part that measures as free is free, not a gain. Beside the mean it keeps the quantile of
measured / predicted, so that a bound on a step holds most of the time, not half of it.

One step that takes long is a stall and changes little. Several in a row that are all much longer, or all much
shorter, than predicted mean that the prior was wrong or that the machine has changed: then what was learned counts
as a guess again.

Owns no clock and no policy beyond the chunk cap; it is told work and seconds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from math import exp, inf

import numpy as np
import numpy.typing as npt

from tailrace.engine.step import Work
from tailrace.frozen import frozen
from tailrace.types import StepCosts

F64 = npt.NDArray[np.float64]

_TYPICAL = np.array([1.0, 256.0, 8.0, 4096.0, 65536.0])  # scales the features to about one
_PRIOR = np.array([2e-3, 1e-3, 2e-3, 1e-7, 1e-8])  # a small model on two cores, until something is measured
_NOISE = 0.01  # variance of measured / predicted
_WINDOW = 64  # steps whose ratios the spread is the quantile of
_MOST_ATTENTION = 2e-3  # a token behind 4,096 others costs as nine without context
_SHORT_CHUNK = 16  # prefill tokens of a short step, at the least
_LATELY = 1.0  # seconds of steps over which the pace is averaged
_MOST_PACE = 4.0
_SURPRISE = 1.5  # a step off by this factor is a surprise
_SURPRISES = 3  # as many in a row, on the same side, are no accident


@frozen
class CostSettings:
    """`least_chunk` keeps prompts moving where even that takes longer than `decode_target`. While nobody decodes,
    nobody's tokens are late: the least is `idle_chunk`."""

    decode_target: float = 0.2  # seconds a step may take while someone decodes: their worst gap between tokens
    idle_target: float = 0.5  # seconds a step may take otherwise: how late a cancellation or a new prompt is seen
    least_chunk: int = 128
    idle_chunk: int = 512
    most_chunk: int = 2048
    saturation: float = 0.9  # stop growing the chunk at this part of the highest prefill throughput
    short_part: float = 0.4  # a short step, over the time of the prompt it is short for
    short_least: float = 5.0  # the same over a step's constant, of which it so costs a fifth at most
    least_gain: float = 0.03  # part of a step's error that is always learned
    quantile: float = 0.9


class CostModel:
    def __init__(
        self,
        settings: CostSettings | None = None,
        coefficients: F64 | None = None,
        standard: StepCosts | None = None,
    ) -> None:
        """`coefficients` [5]: seconds per unit of (step, P, D, K, A), which are learned on from. `standard`: those by
        which work is charged, which never change; the same where they are not given."""
        self.settings = settings or CostSettings()
        self.standard = standard or StepCosts(*(_PRIOR if coefficients is None else coefficients).tolist())
        self._theta = (_PRIOR if coefficients is None else coefficients) * _TYPICAL
        self._covariance = np.diag(self._doubt())
        self._plain = self.coefficients.tolist()
        self._pace = 1.0  # measured / predicted of about the last second: what neighbours on the machine do
        self._surprises = [0, 0]  # in a row, without and with prefill; below 0 when shorter than predicted
        self._recent: deque[float] = deque([1.0, 1.1] * 4, maxlen=_WINDOW)  # measured / predicted
        self._sorted = sorted(self._recent)
        self.spread = 1.1  # the settings' quantile of measured / predicted
        self.error = 0.0  # smoothed |measured / predicted - 1|, a stall counting as 1
        self.step_seconds = 0.0  # smoothed length of recent steps
        self.tokens_per_second = 0.0  # smoothed computed tokens (prefill and decode), for drain rates

    @property
    def coefficients(self) -> F64:
        return np.asarray(self._theta / _TYPICAL, dtype=np.float64)

    @property
    def costs(self) -> StepCosts:
        """As learned so far, at the machine's speed of the last second."""
        return StepCosts(*(cost * self._pace for cost in self._plain))

    def expect(self, work: Work) -> float:
        """Seconds of a step that begins now: as `predict`, at the machine's speed of the last second."""
        return self.predict(work) * self._pace

    def predict(self, work: Work) -> float:
        """Mean seconds of a step."""
        a, b, c, d, e = self._plain
        return float(a + b * work.prefill + c * work.decode + d * work.kv_tokens + e * work.attention)

    def errors(self) -> tuple[float, float]:
        """Median and settings' quantile of |measured / predicted - 1| over recent steps. For people, not for steps."""
        found = sorted(abs(ratio - 1.0) for ratio in tuple(self._recent))
        return found[len(found) // 2], found[min(int(self.settings.quantile * len(found)), len(found) - 1)]

    def observe(self, work: Work, seconds: float) -> float:
        """Learn from one step. An outlier (a stall of the machine) counts as at most four times its prediction. Returns
        measured / predicted, at the machine's speed of the second before."""
        predicted = max(self.predict(work), 1e-6)
        surprise = seconds / (predicted * self._pace)
        self._track(work, seconds, seconds / predicted)
        self._pace += (1.0 - exp(-predicted / _LATELY)) * (min(seconds / predicted, _MOST_PACE) - self._pace)
        self._judge(int(work.prefill > 0), seconds / predicted)
        self._learn(_features(work) / predicted, min(seconds / predicted, 4.0))
        return surprise

    @property
    def attention(self) -> float:
        """As ChunkBudget. Bounded, so that a bad fit does not cut prompts into crumbs."""
        _, b, _, _, e = self._plain
        return min(e / b, _MOST_ATTENTION) if b > 0 else 0.0

    def row_tokens(self, kv_tokens: int) -> float:
        """As standing.Prices."""
        _, b, c, d, _ = self._plain
        return float((c + d * kv_tokens) / b) if b > 0 else 1.0

    def short_step(self, prompt_tokens: float) -> float:
        """Seconds of a step that prompts of this length can wait for without being much later."""
        a, b, *_ = self._plain
        settings = self.settings
        wanted = max(settings.short_part * (a + b * prompt_tokens), settings.short_least * a)
        return float(min(wanted, settings.decode_target / 2))

    def short_rows(self, rows: Iterable[int], seconds: float, prompts: bool) -> int:
        """How many of these decode rows, which read so many KV tokens each, fit such a step: in half of it beside
        prompts. One at the least."""
        a, _, c, d, _ = self._plain
        left, count = (seconds / self.spread - a) / (2 if prompts else 1), 0
        for kv_tokens in rows:
            left -= c + d * kv_tokens
            if left < 0.0 and count:
                break
            count += 1
        return count

    def chunk_tokens(self, decode_rows: int, kv_tokens: int, within: float = inf) -> int:
        """The largest prefill whose step likely stays under the target, within the settings' bounds; `within`: the
        target of a short step, in seconds."""
        settings = self.settings
        a, b, c, d, _ = self._plain
        target = settings.decode_target if decode_rows else settings.idle_target
        least = settings.least_chunk if decode_rows else settings.idle_chunk
        if within < target:
            target, least = within, _SHORT_CHUNK
        left = target / self.spread - a - c * decode_rows - d * kv_tokens
        fits = left / b if b > 0 else settings.most_chunk
        chunk = min(fits, self._saturated(a, b), settings.most_chunk)
        return max(least, int(chunk) // 16 * 16)

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
        self._spread(ratio)
        pace = (work.prefill + work.decode) / max(seconds, 1e-6)
        fresh = self.step_seconds == 0.0
        self.error += rate * (min(abs(ratio - 1.0), 1.0) - self.error)
        self.step_seconds += (1.0 if fresh else rate) * (seconds - self.step_seconds)
        self.tokens_per_second += (1.0 if fresh else rate) * (pace - self.tokens_per_second)

    def _spread(self, ratio: float) -> None:
        if len(self._recent) == _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        place = int(self.settings.quantile * len(self._sorted))
        self.spread = min(4.0, max(1.0, self._sorted[min(place, len(self._sorted) - 1)]))

    def _judge(self, kind: int, ratio: float) -> None:
        """Doubt everything again after several surprises in a row. Prompts count apart: many decode steps, all as
        predicted, may lie between two of them."""
        streak = self._surprises[kind]
        if ratio > _SURPRISE:
            streak = max(streak, 0) + 1
        elif ratio < 1 / _SURPRISE:
            streak = min(streak, 0) - 1
        else:
            streak = 0
        if abs(streak) >= _SURPRISES:
            streak = 0
            self._covariance = np.diag(self._doubt())
        self._surprises[kind] = streak

    def _doubt(self) -> F64:
        """Variance of each coefficient before anything is learned: as large as itself, and never nothing."""
        return np.asarray(np.maximum(self._theta, _PRIOR * _TYPICAL) ** 2, dtype=np.float64)

    def _learn(self, x: F64, ratio: float) -> None:
        """One step of recursive least squares on relative errors, so that short steps count as much as long ones.

        What a step says about one combination of coefficients takes doubt from that combination only. When little is
        left, a fixed part of the error is still believed, so that slow changes are followed.
        """
        reach = self._covariance @ x
        variance = max(float(x @ reach), 1e-9)
        share = variance / (_NOISE + variance)
        if share > self.settings.least_gain:
            self._covariance -= reach[:, None] * (reach / (_NOISE + variance))
        share = max(share, self.settings.least_gain)
        error = ratio - float(x @ self._theta)
        self._theta = np.maximum(self._theta + reach * (share * error / variance), 0.0)
        self._plain = (self._theta / _TYPICAL).tolist()


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
