"""How the choices of a prompt are found where they are not simply drawn: by beam search, or the best of several.

`best_of` is how many are made of which the `n` best are shown; with `use_beam_search` it is the number of beams.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tailrace.errors import InvalidRequest
from tailrace.protocol.sampling import Limits, Sampling
from tailrace.types import BeamSearch

# What shapes a draw, and the values that leave it alone: beams are not drawn.
_DRAWING: dict[str, tuple[float, ...]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "typical_p": (1,),
}

_MOST_ENDS = 64  # as many more continuations of each beam are looked at


class Beams(Sampling):
    """Fields of both routes and of the Python API."""

    best_of: int | None = Field(None, ge=1)
    use_beam_search: bool | None = None
    length_penalty: float | None = Field(None, ge=-10, le=10)
    early_stopping: bool | Literal["never"] | None = None

    def made(self) -> int:
        """How many choices are made."""
        return max(self.best_of or 1, self.n or 1)

    def keep(self) -> int:
        """How many of them are shown, the most likely ones; 0: all."""
        n = self.n or 1
        return n if self.made() > n or self.use_beam_search else 0

    def ranked_by(self, logprobs: int | None) -> int | None:
        """The log-probabilities to make where so many are to be shown: the best choices are found by them."""
        drawn = self.made() > (self.n or 1) and not self.use_beam_search
        return 0 if drawn and logprobs is None else logprobs

    def beams(self) -> BeamSearch | None:
        if not self.use_beam_search:
            return None
        penalty = 1.0 if self.length_penalty is None else self.length_penalty
        return BeamSearch(penalty, None if self.early_stopping == "never" else bool(self.early_stopping))

    def check_beams(self, limits: Limits, *, stream: bool) -> None:
        """Raises InvalidRequest naming the field."""
        n, best_of = self.n or 1, self.best_of
        if best_of is not None and best_of < n:
            raise InvalidRequest(f"best_of is {best_of}, less than n ({n})", param="best_of")
        if (best_of or 1) > limits.max_choices:
            raise InvalidRequest(
                f"best_of is {best_of}; this server makes at most {limits.max_choices} choices", param="best_of"
            )
        if best_of is not None and best_of > n and stream:
            raise InvalidRequest("best_of greater than n is known only at the end: not with stream", param="best_of")
        if self.use_beam_search:
            self._check_search(stream=stream)
            return
        asked = {"length_penalty": self.length_penalty not in {None, 1}, "early_stopping": bool(self.early_stopping)}
        for name, asks in asked.items():
            if asks:
                raise InvalidRequest(f"{name} needs use_beam_search: true", param=name)

    def _check_search(self, *, stream: bool) -> None:
        if stream:
            raise InvalidRequest(
                "the answers of a beam search are known only at its end: not with stream", param="stream"
            )
        for name, neutral in _DRAWING.items():
            value = getattr(self, name)
            if value is not None and value not in neutral:
                raise InvalidRequest(
                    f"{name} is {value:g}, but a beam search draws nothing: leave {name} or use_beam_search out",
                    param=name,
                )
        if self.stop:
            raise InvalidRequest(
                "beams are compared token by token, and stop strings may end inside one: with use_beam_search end them "
                "by stop_token_ids",
                param="stop",
            )
        if len(self.stop_token_ids or ()) > _MOST_ENDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids or ())} ids; with use_beam_search at most {_MOST_ENDS}",
                param="stop_token_ids",
            )
        if self.max_tokens == 0:
            raise InvalidRequest("max_tokens is 0: a beam search needs at least one token", param="max_tokens")
