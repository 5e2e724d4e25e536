"""The engine's bounds, and the requests that could never run within them."""

from __future__ import annotations

from tailrace.engine.kv.manager import KvManager
from tailrace.errors import ContextLengthExceeded, Domain, ErrorKind, InvalidRequest
from tailrace.frozen import frozen
from tailrace.types import GenerateRequest


@frozen
class Limits:
    max_sequences: int = 32
    max_context: int = 8192
    vocab_size: int = 1 << 31
    max_preemptions: int = 3  # of one sequence, while another can be preempted
    max_yields: int = 31  # steps in a row that background rows sit out
    score_rows: int = 64  # prompt rows with logits in one step, which bounds their memory
    whole_prompts: bool = False  # a prompt is computed in one step, whatever the budget is


def validate(request: GenerateRequest, limits: Limits, kv: KvManager) -> None:
    """Raise the typed error of a request that could never run. Reads what never changes."""
    prompt, most = len(request.prompt), request.stop.max_tokens
    if prompt == 0:
        raise InvalidRequest("the prompt is empty: it needs at least one token", param="prompt")
    if request.n > limits.max_sequences:
        raise InvalidRequest(
            f"n is {request.n} but this server runs at most {limits.max_sequences} sequences at once", param="n"
        )
    if prompt + most > limits.max_context:
        raise ContextLengthExceeded(
            f"the prompt has {prompt} tokens and max_tokens is {most}, together {prompt + most}; the context is "
            f"{limits.max_context} tokens: shorten the prompt or lower max_tokens",
            param="max_tokens" if prompt < limits.max_context else "prompt",
        )
    need, total = _blocks(request, kv), kv.pool.total
    if need > total:
        size, beams = kv.block_tokens, f" in {request.n} beams" if request.beams else ""
        raise ContextLengthExceeded(
            f"the prompt's {prompt} tokens and max_tokens {most}{beams} need {need * size} tokens of KV memory and the "
            f"server has {total * size}: lower max_tokens, or give the server more KV memory",
            param="max_tokens",
            domain=Domain.CACHE,
            kind=ErrorKind.MEMORY,
        )
    low, high = int(request.prompt.min()), int(request.prompt.max())
    if low < 0 or high >= limits.vocab_size:
        bad = low if low < 0 else high
        raise InvalidRequest(f"prompt token id {bad} is outside the vocabulary of {limits.vocab_size}", param="prompt")


def _blocks(request: GenerateRequest, kv: KvManager) -> int:
    """Most blocks that one of its sequences needs at once; beams advance together, so all of them, each with one to
    grow into."""
    prompt, n = len(request.prompt), request.n
    whole = kv.blocks_for(prompt + request.stop.max_tokens)
    if request.beams is None:
        return whole
    shared = prompt // kv.block_tokens if kv.prefix_cache else 0
    return shared + n * (whole - shared + 1)
