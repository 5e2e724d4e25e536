"""What a request is and what it will cost, before anything is decided about it. Trivial while there is one tenant."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.backends.base import Backend
from tailrace.types import GenerateRequest


@dataclass(frozen=True, slots=True)
class Estimate:
    """`uncached_tokens` is the prefill work, `answer_tokens` the most that may be generated, over all choices."""

    prompt_tokens: int
    uncached_tokens: int
    answer_tokens: int
    sequences: int


def estimate(request: GenerateRequest, backend: Backend) -> Estimate:
    tokens = len(request.prompt)
    cached = 0 if request.prompt_logprobs is not None else backend.match_prefix(request.prompt, request.salt)
    return Estimate(tokens, max(tokens - cached, 0), request.n * request.stop.max_tokens, request.n)
