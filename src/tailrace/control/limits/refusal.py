"""What a caller is told about its own limits."""

from __future__ import annotations

from tailrace.control.limits.base import Kind, Outcome
from tailrace.errors import BudgetExhausted, InvalidRequest, RateLimited, TailraceError

_NAMES = {
    "requests": "requests_per_minute",
    "prompt_tokens": "prompt_tokens_per_minute",
    "output_tokens": "output_tokens_per_minute",
    "device_us": "device_seconds_per_minute",
    "sequences": "concurrency",
    "budget_us": "budget_device_seconds",
}


def limit_name(outcome: Outcome) -> str:
    """As the settings file calls it."""
    return _NAMES.get(outcome.counter, outcome.counter)


def limit_refusal(outcome: Outcome, retry_after: float | None) -> TailraceError:
    name, scale = limit_name(outcome), 1e6 if outcome.counter.endswith("_us") else 1.0
    cap, value = outcome.cap / scale, outcome.value / scale
    whose = f"of {'key' if '/' in outcome.account else 'tenant'} {outcome.account}"
    if outcome.kind is Kind.NEVER:
        error: TailraceError = InvalidRequest(
            f"The request is larger than the limit {name} {whose}, {cap:g}: it could never be let in",
            code="exceeds_limit",
        )
    elif outcome.kind is Kind.EXHAUSTED:
        error = BudgetExhausted(f"The budget {whose} is spent: {value:.3f} of {cap:g} device-seconds")
    else:
        after = "" if retry_after is None else f". Try again after {retry_after:.1f} s"
        error = RateLimited(
            f"The limit {name} {whose} is reached: {value:g} of {cap:g}{after}", retry_after=retry_after
        )
    error.detail = {"limit": name, "scope": outcome.account, "value": round(value, 3), "cap": round(cap, 3)}
    return error
