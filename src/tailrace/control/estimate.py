"""What a request is expected to cost, before anything is decided about it.

Every later decision - its place in the queue, its hold on limits, whether it is let in at all - reads these numbers, so
that none of them can disagree with another. Decides nothing.
"""

from __future__ import annotations

from tailrace.backends.base import Backend
from tailrace.control.lengths import AnswerKind, LengthBook
from tailrace.frozen import frozen
from tailrace.types import GenerateRequest, StepCosts


@frozen
class Estimate:
    """`uncached_tokens` is the prefill work, `answer_tokens` the most that may be generated, over all choices.

    `output_*` are tokens of one choice: mean and quantiles, none above what may be generated. Seconds are standard
    device-seconds over all choices; `blocks` the KV blocks when the answer has its expected length.
    """

    prompt_tokens: int
    uncached_tokens: int
    answer_tokens: int
    sequences: int
    output_mean: float
    output_q80: float
    output_q90: float
    prefill_seconds: float
    decode_seconds: float
    blocks: int

    @property
    def seconds(self) -> float:
        """Standard device-seconds, prompt and answer."""
        return self.prefill_seconds + self.decode_seconds


class Estimator:
    """Expectations from the backend's standard costs and from how long answers of each kind have been."""

    def __init__(self, backend: Backend, lengths: LengthBook | None = None) -> None:
        self._backend = backend
        self.lengths = lengths or LengthBook()

    def estimate(self, request: GenerateRequest, kind: AnswerKind) -> Estimate:
        """Of a request that is about to wait."""
        caps, tokens, most = self._backend.caps, len(request.prompt), request.stop.max_tokens
        cached = self._cached(request)
        uncached = max(tokens - cached, 0)
        output = self.lengths.expect(kind, most)
        load = self._backend.load()
        return Estimate(
            prompt_tokens=tokens,
            uncached_tokens=uncached,
            answer_tokens=request.n * most,
            sequences=request.n,
            output_mean=output.mean,
            output_q80=output.q80,
            output_q90=output.q90,
            prefill_seconds=prefill_seconds(caps.costs, cached, uncached) * load.prefill_markup,
            decode_seconds=request.n * decode_seconds(caps.costs, tokens, output.mean) * load.decode_markup,
            blocks=kv_blocks(tokens, output.mean, request.n, caps.block_tokens),
        )

    def expect(self, kind: AnswerKind, most: int, generated: int) -> float:
        """Tokens of a choice that has made so many already."""
        return self.lengths.mean(kind, most, generated)

    def learn(self, kind: AnswerKind, tokens: int, *, cut: bool) -> None:
        """A choice has ended with that many tokens; `cut`: by its bound or its caller, not by itself."""
        self.lengths.learn(kind, tokens, cut=cut)

    def _cached(self, request: GenerateRequest) -> int:
        if request.prompt_logprobs is not None:
            return 0
        return self._backend.match_prefix(request.prompt, request.cache_key)


def prefill_seconds(costs: StepCosts, cached: int, uncached: int) -> float:
    """Marginal standard device-seconds of computing a prompt's tokens behind its cached ones."""
    return costs.prefill * uncached + costs.attention * uncached * (cached + uncached / 2)


def decode_seconds(costs: StepCosts, prompt_tokens: int, output: float) -> float:
    """Marginal standard device-seconds of one choice's tokens. The first comes out of the prefill."""
    rows = max(output - 1.0, 0.0)
    return rows * (costs.decode + costs.kv * (prompt_tokens + output / 2))


def kv_blocks(prompt_tokens: int, output: float, sequences: int, block_tokens: int) -> int:
    """The prompt's whole blocks, shared by the choices, and what each choice writes behind them."""
    shared = prompt_tokens // block_tokens
    each = -(-(prompt_tokens + int(output)) // block_tokens)
    return shared + sequences * (each - shared)
