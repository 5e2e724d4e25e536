"""Log-probabilities of the prompt as vLLM shows them, and the choice of the best among several answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.protocol.ask import Ask
from tailrace.types import TokenLogprob

_FLOOR = -9999.0

Shown = dict[str, dict[str, object]]


def prompt_logprobs(tokens: Iterable[TokenLogprob], width: int) -> list[Shown | None]:
    """For each prompt token: by token id its own and the `width` best; null for the first, which nothing precedes.

    `rank` counts from 1 among the best; null for a token that is not among them.
    """
    return [None if token.logprob is None else _entry(token, token.logprob, width) for token in tokens]


def best(scores: Sequence[float], keep: int) -> list[int]:
    """Places of the `keep` highest sums of log-probabilities, best first, the earlier one first among equals."""
    return sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:keep]


def shown(ask: Ask, scores: Sequence[float], tokens: Sequence[int]) -> list[int]:
    """Places of those of a prompt's choices that are shown, in their order; by each one's sum of log-probabilities and
    number of tokens."""
    if not ask.keep:
        return list(range(len(scores)))
    if ask.sorted:
        return [place for place in range(ask.keep) if tokens[place] or not place]
    return best(scores, ask.keep)


def _entry(token: TokenLogprob, logprob: float, width: int) -> Shown:
    shown = {
        str(token_id): _one(data, value, rank) for rank, (token_id, data, value) in enumerate(token.top[:width], 1)
    }
    shown.setdefault(str(token.token_id), _one(token.data, logprob, None))
    return shown


def _one(data: bytes, logprob: float, rank: int | None) -> dict[str, object]:
    return {"logprob": max(logprob, _FLOOR), "rank": rank, "decoded_token": data.decode("utf-8", "replace")}
