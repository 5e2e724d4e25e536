"""Whether a request starts, waits, becomes a job or is refused: pure decisions with their reasons and numbers.

Twice: at the door, before any work on the prompt, and with the prompt's length, its class and a forecast known. Owns no
state: who waits is told by `There`, what is likely by `Forecast`. Own limits of a tenant are decided in `limits`.
"""

from __future__ import annotations

from dataclasses import replace

from tailrace.errors import ErrorKind, QueueFull, TailraceError, Unavailable
from tailrace.frozen import frozen

UNBOUNDED = 2**62
_IN_TIME = ("deadline_unattainable", "queue_too_long", "queue_deadline")  # reasons that are about time


@frozen
class Admit:
    reason: str


@frozen
class Wait:
    """`predicted_ttft`: seconds from now to the first token, None where nothing can be said."""

    reason: str
    predicted_ttft: float | None = None


@frozen
class AsJob:
    """It cannot be served in time, and its class may be served later instead."""

    refusal: Reject

    @property
    def reason(self) -> str:
        return self.refusal.reason


@frozen
class Reject:
    """`value` is against `bound` in `scope`: waiting requests or tokens, or a predicted time in seconds.

    `lacking_*`: how much must leave before the answer would be different. `retry_after` in seconds, None: no use.
    """

    reason: str
    status: int
    scope: str = "all"
    value: float = 0.0
    bound: float = 0.0
    lacking_requests: int = 0
    lacking_tokens: int = 0
    retry_after: float | None = None

    def after(self, seconds: float | None) -> Reject:
        return replace(self, retry_after=seconds)


Decision = Admit | Wait | AsJob | Reject


@frozen
class Standing:
    """Who waits in one scope - `all`, a tenant, a class - and how much may. From the door on, wherever they are.

    `at_door`: known there, so that a place taken there is not asked for again."""

    scope: str
    requests: int
    tokens: int
    most_requests: int = UNBOUNDED
    most_tokens: int = UNBOUNDED
    at_door: bool = True


@frozen
class There:
    """What is there already. `standings` has `all` first, then those that the request belongs to."""

    standings: tuple[Standing, ...]
    room: int  # sequences that could start now, if their prompts are short; 0 while anyone waits for room
    draining: bool = False

    @property
    def waiting(self) -> int:
        return self.standings[0].requests


@frozen
class Forecast:
    """Seconds from now, at the confidence asked for: until it starts, and until its first token."""

    wait: float
    ttft: float


@frozen
class Terms:
    """What the caller or its class asks for, in seconds from now; None: nothing."""

    ttft: float | None = None
    queue: float | None = None
    as_job: bool = False


@frozen
class Offer:
    """Requests that come together. `fits`: the backend has room for the first of them, and nobody waits for it."""

    prompt_tokens: int
    fits: bool
    requests: int = 1


def at_the_door(requests: int, least_tokens: int, there: There) -> Admit | Reject:
    """Before any work on the prompts. `least_tokens`: what they have at the least, judged by their bytes."""
    if there.draining:
        return Reject("draining", 503)
    return _bounds(requests, max(least_tokens, 1), there) or Admit("place_free")


def into_the_queue(offer: Offer, there: There, forecast: Forecast | None, terms: Terms) -> Decision:
    """With the prompts known. The requests' own places and tokens are not counted in `there`."""
    if there.draining:
        return Reject("draining", 503)
    late = _late(forecast, terms)
    if late is not None:
        return AsJob(late) if terms.as_job else late
    if offer.fits:
        return Admit("starts_now")
    full = _bounds(offer.requests, offer.prompt_tokens, there, again=True)
    return full or Wait("no_room", None if forecast is None else forecast.ttft)


def refusal(reject: Reject, subject: str = "") -> TailraceError:
    """The error a caller gets. `subject` names what was refused, for a message that is not about bounds."""
    detail = {"scope": reject.scope, "value": round(reject.value, 3), "limit": round(reject.bound, 3)}
    after = "" if reject.retry_after is None else f". Try again after {reject.retry_after:.1f} s"
    sort = QueueFull if reject.status == 429 else Unavailable
    kind = ErrorKind.TIMEOUT if reject.reason in _IN_TIME else None
    known = sort(f"{_text(reject, subject)}{after}", code=reject.reason, retry_after=reject.retry_after, kind=kind)
    if reject.reason != "draining":
        known.detail = detail
    return known


def _text(reject: Reject, subject: str) -> str:
    whose = "" if reject.scope == "all" else f" of {reject.scope}"
    value, bound = reject.value, reject.bound
    texts = {
        "draining": "The server is stopping and takes no new work",
        "queue_full": f"{value:.0f} requests{whose} are waiting already; at most {bound:.0f} may",
        "queue_tokens_full": f"{value:.0f} prompt tokens{whose} are waiting already; at most {bound:.0f} may",
        "deadline_unattainable": f"The first token is expected after {value:.2f} s; it was wanted within {bound:.2f} s",
        "queue_too_long": f"It would start after {value:.1f} s; requests{whose} wait at most {bound:.1f} s",
        "queue_deadline": f"It has not started within the {bound:.1f} s that requests{whose} wait at most",
    }
    return texts.get(reject.reason, subject or reject.reason)


def _bounds(requests: int, tokens: int, there: There, *, again: bool = False) -> Reject | None:
    """The first scope that is full. Requests that room is there for take no place of those who wait."""
    for each in there.standings:
        counted = 0 if again and each.at_door else requests
        full = _too_many(counted, each, max(there.room, 0)) or _too_long(tokens, each)
        if full is not None:
            return full
    return None


def _too_many(requests: int, standing: Standing, room: int) -> Reject | None:
    excess = standing.requests + requests - standing.most_requests - room
    if not requests or excess <= 0:
        return None
    if room and not standing.requests:  # alone: more prompts than places must not be refused for ever
        return None
    return Reject("queue_full", 429, standing.scope, standing.requests, standing.most_requests, lacking_requests=excess)


def _too_long(tokens: int, standing: Standing) -> Reject | None:
    excess = standing.tokens + tokens - standing.most_tokens
    if excess <= 0 or not standing.tokens:
        return None
    return Reject(
        "queue_tokens_full", 429, standing.scope, standing.tokens, standing.most_tokens, lacking_tokens=excess
    )


def _late(forecast: Forecast | None, terms: Terms) -> Reject | None:
    if forecast is None:
        return None
    if terms.ttft is not None and forecast.ttft > terms.ttft:
        over = forecast.ttft - terms.ttft
        return Reject("deadline_unattainable", 503, "ttft", forecast.ttft, terms.ttft, retry_after=over)
    if terms.queue is not None and forecast.wait > terms.queue:
        over = forecast.wait - terms.queue
        return Reject("queue_too_long", 503, "all", forecast.wait, terms.queue, retry_after=over)
    return None
