"""What a caller is told about its own limits."""

from __future__ import annotations

from datetime import UTC, datetime

from tailrace.control.limits.base import MICRO, Kind, Outcome
from tailrace.errors import BudgetExhausted, Domain, ErrorKind, InvalidRequest, RateLimited, TailraceError

NAMES = {  # of counters, as the settings file calls them
    "requests": "requests_per_minute",
    "prompt_tokens": "prompt_tokens_per_minute",
    "output_tokens": "output_tokens_per_minute",
    "device_us": "device_seconds_per_minute",
    "sequences": "concurrency",
    "budget_us": "budget_device_seconds",
    "money_day": "money_per_day",
    "money_month": "money_per_month",
}


def limit_name(outcome: Outcome) -> str:
    """As the settings file calls it."""
    return NAMES.get(outcome.counter, outcome.counter)


def limit_refusal(outcome: Outcome, wait: float | None, currency: str, wall: float) -> TailraceError:
    """`wait`: seconds after which it may fit; `wall`: the time now."""
    if outcome.kind is Kind.EXHAUSTED:
        return _exhausted(outcome, currency, wall)
    name, scale = limit_name(outcome), scale_of(outcome.counter)
    cap, value = outcome.cap / scale, outcome.value / scale
    whose = _whose(outcome)
    if outcome.kind is Kind.NEVER:
        error: TailraceError = InvalidRequest(
            f"The request is larger than the limit {name} {whose}, {cap:g}: it could never be let in",
            code="exceeds_limit",
            domain=Domain.ADMISSION,
            kind=ErrorKind.LIMIT,
        )
    else:
        after = "" if wait is None else f". Try again after {wait:.1f} s"
        error = RateLimited(f"The limit {name} {whose} is reached: {value:g} of {cap:g}{after}", retry_after=wait)
    error.detail = {"limit": name, "scope": outcome.account, "value": round(value, 3), "cap": round(cap, 3)}
    return error


def scale_of(counter: str) -> int:
    """How many of what is counted are one of what people read."""
    return MICRO if counter.endswith("_us") or _is_money(counter) else 1


def unit_of(counter: str, currency: str) -> str:
    if _is_money(counter):
        return currency
    if counter.endswith("_us"):
        return "device-seconds"
    return "tokens" if counter.endswith("_tokens") else counter


def utc(moment: float) -> str:
    """To the second, as in 2027-01-31T00:00:00Z."""
    return datetime.fromtimestamp(round(moment), UTC).isoformat().replace("+00:00", "Z")


def _exhausted(outcome: Outcome, currency: str, wall: float) -> BudgetExhausted:
    """The exact amounts, and when it begins anew: trying again before does not help."""
    name, scale = limit_name(outcome), scale_of(outcome.counter)
    unit = unit_of(outcome.counter, currency)
    cap, held = outcome.cap / scale, outcome.held / scale
    spent = round(outcome.value - outcome.held) / scale
    renews = None if outcome.wait is None else utc(wall + outcome.wait)
    error = BudgetExhausted(
        f"The budget {name} {_whose(outcome)} is spent: {_exact(spent)} of {_exact(cap)} {unit}"
        + (f", and {_exact(held)} held" if held else "")
        + ("" if renews is None else f"; it begins anew at {renews}")
    )
    amounts = {"value": spent + held, "cap": cap, "spent": spent, "held": held}
    error.detail = {"limit": name, "scope": outcome.account, **amounts, "unit": unit, "renews_at": renews}
    return error


def _is_money(counter: str) -> bool:
    return counter.startswith("money_")


def _whose(outcome: Outcome) -> str:
    return f"of {'key' if '/' in outcome.account else 'tenant'} {outcome.account}"


def _exact(amount: float) -> str:
    """All six decimals, without zeros at the end."""
    return f"{amount:.6f}".rstrip("0").rstrip(".")
