"""What a request is expected to cost, before anything is decided about it.

Every later decision - its place in the queue, its hold on limits, whether it is let in at all - reads these numbers, so
that none of them can disagree with another. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.backends.base import Backend
from tailrace.types import GenerateRequest

_TYPICAL_OUTPUT = 128.0  # tokens of an answer whose kind has not been seen yet


@dataclass(frozen=True, slots=True)
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


def estimate(request: GenerateRequest, backend: Backend) -> Estimate:
    tokens, caps, most = len(request.prompt), backend.caps, request.stop.max_tokens
    cached = 0 if request.prompt_logprobs is not None else backend.match_prefix(request.prompt, request.salt)
    uncached = max(tokens - cached, 0)
    output = min(float(most), _TYPICAL_OUTPUT)
    reads = request.n * output * (tokens + output / 2)
    costs = caps.costs
    return Estimate(
        prompt_tokens=tokens,
        uncached_tokens=uncached,
        answer_tokens=request.n * most,
        sequences=request.n,
        output_mean=output,
        output_q80=output,
        output_q90=output,
        prefill_seconds=costs.prefill * uncached + costs.attention * uncached * (cached + uncached / 2),
        decode_seconds=costs.decode * request.n * output + costs.kv * reads,
        blocks=kv_blocks(tokens, output, request.n, caps.block_tokens),
    )


def kv_blocks(prompt_tokens: int, output: float, sequences: int, block_tokens: int) -> int:
    """The prompt's whole blocks, shared by the choices, and what each choice writes behind them."""
    shared = prompt_tokens // block_tokens
    each = -(-(prompt_tokens + int(output)) // block_tokens)
    return shared + sequences * (each - shared)
