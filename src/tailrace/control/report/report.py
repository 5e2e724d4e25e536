"""A report's numbers, gathered row by row: what the command line prints and the API answers.

Percentiles are exact, of every row, up to EXACT_ROWS of them; beyond that the report says how close they are. Memory is
bounded by that, and by the number of groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from tailrace.control.limits.refusal import utc
from tailrace.control.prices import MILLIONTHS
from tailrace.control.report.question import Question
from tailrace.control.report.values import ACCURACY, Values
from tailrace.database.report_line import Line
from tailrace.errors import ConfigError

EXACT_ROWS = 500_000  # each is kept twice, in its group and in its slot of time: 64 bytes
MOST_GROUPS = 1000
ORDER = "worst first: by the P99 of the time to the first token"
_SLOTS = 60  # of time, at most
_WIDTHS = [seconds * factor for seconds, factors in ((60, (1, 5, 15)), (3600, (1, 6)), (86_400, (1, 7, 28, 365)))
           for factor in factors]  # fmt: skip
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens", "drafted_tokens", "accepted_tokens")
_NOT_SERVED = ("rejected", "invalid")  # they were never let in: a wait of theirs says nothing

Data = dict[str, Any]


class Group:
    """Requests that are counted together. Waits are of all that were let in, times to the first token of all that got
    one, times to the end of those that came to a good one."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.queue, self.ttft, self.tpot, self.e2e = Values(), Values(), Values(), Values()
        self.tokens = [0] * len(_TOKENS)
        self.device_us = self.price = 0
        self.had_deadline = self.met_deadline = 0
        self.told = self.succeeded = 0

    @property
    def latencies(self) -> tuple[Values, ...]:
        return self.queue, self.ttft, self.tpot, self.e2e

    def add(self, line: Line) -> None:
        self.outcomes[line.outcome] += 1
        if line.outcome not in _NOT_SERVED:
            self.queue.add(line.queue_us)
        if line.ttft_us is not None:
            self.ttft.add(line.ttft_us)
        if line.tpot_us is not None:
            self.tpot.add(line.tpot_us)
        if line.outcome == "ok":
            self.e2e.add(line.total_us)
        for place, name in enumerate(_TOKENS):
            self.tokens[place] += getattr(line, name)
        self.device_us += line.device_us
        self.price += line.price
        if line.deadline_met is not None:
            self.had_deadline += 1
            self.met_deadline += line.deadline_met
        if line.success is not None:
            self.told += 1
            self.succeeded += line.success

    def data(self) -> Data:
        """Names say the unit. `deadlines` and `success`: how many there were, and how many of them good."""
        prompt, cached, output, drafted, accepted = self.tokens
        return {
            "requests": self.outcomes.total(),
            "outcomes": dict(sorted(self.outcomes.items())),
            "queue_ms": self.queue.distribution(),
            "ttft_ms": self.ttft.distribution(),
            "tpot_ms": self.tpot.distribution(),
            "e2e_ms": self.e2e.distribution(),
            "tokens": {
                "prompt": prompt, "cached": cached, "output": output, "drafted": drafted, "accepted": accepted,
            },
            "device_seconds": self.device_us / 1e6,
            "money": self.price / MILLIONTHS,
            "deadlines": {"had": self.had_deadline, "met": self.met_deadline},
            "success": {"told": self.told, "succeeded": self.succeeded},
        }  # fmt: skip


class Report:
    """`add` all lines, then read."""

    def __init__(self, question: Question, *, exact_rows: int = EXACT_ROWS) -> None:
        self.question = question
        self.groups: dict[tuple[str, ...], Group] = {}
        self.exact = True
        self._exact_rows = exact_rows
        self._rows = 0
        self._names = [_NAMES[name] for name in question.by]
        self._width = slot_width(question.until - question.since)
        self._slots: dict[int, Group] = {}

    def add(self, lines: Iterable[Line]) -> None:
        """Raises ConfigError for too many groups."""
        for line in lines:
            key = tuple(name(line) for name in self._names)
            self._of(self.groups, key).add(line)
            self._of(self._slots, int(line.opened // self._width)).add(line)
            self._rows += 1
        if self.exact and self._rows > self._exact_rows:
            self.exact = False
            for group in (*self.groups.values(), *self._slots.values()):
                _sketch(group)

    def worst_first(self) -> list[tuple[tuple[str, ...], Group, Data]]:
        """Names, numbers as they were gathered, and as they are told."""
        told = [(key, group, group.data()) for key, group in self.groups.items()]
        return sorted(told, key=lambda each: (-_p99(each[2]), each[0]))

    def data(self, currency: str) -> Data:
        asked = self.question
        return {
            "since": utc(asked.since),
            "until": utc(asked.until),
            "tenant": asked.tenant or None,
            "by": list(asked.by),
            "order": ORDER,
            "currency": currency,
            "percentiles": "exact" if self.exact else f"within {ACCURACY:.1%}",
            "total": self.total().data(),
            "groups": [{"group": dict(zip(asked.by, key, strict=True)), **data} for key, _, data in self.worst_first()],
            "over_time": self.over_time(),
        }

    def over_time(self) -> list[Data]:
        """The same of each slot of time that has any, in order; `at`: its begin in seconds since the epoch."""
        slots = sorted(self._slots.items())
        return [{"at": slot * self._width, "seconds": self._width, **group.data()} for slot, group in slots]

    def total(self) -> Group:
        whole, groups = Group(), self.groups.values()
        whole.queue, whole.ttft, whole.tpot, whole.e2e = map(
            Values.together, zip(*(group.latencies for group in groups), strict=True) if groups else ((),) * 4
        )
        for group in groups:
            whole.outcomes += group.outcomes
            whole.tokens = [mine + theirs for mine, theirs in zip(whole.tokens, group.tokens, strict=True)]
            for name in ("device_us", "price", "had_deadline", "met_deadline", "told", "succeeded"):
                setattr(whole, name, getattr(whole, name) + getattr(group, name))
        return whole

    def _of(self, groups: dict[Any, Group], key: Any) -> Group:
        group = groups.get(key)
        if group is None:
            if len(groups) >= MOST_GROUPS:
                raise ConfigError(
                    f"more than {MOST_GROUPS} groups by {', '.join(self.question.by)}: name fewer, or a shorter time",
                    param="by",
                )
            group = groups[key] = Group()
            if not self.exact:
                _sketch(group)
        return group


def slot_width(seconds: float) -> int:
    """Of the slots that a span of time is divided into: a round number of seconds."""
    return next((width for width in _WIDTHS if seconds / width <= _SLOTS), _WIDTHS[-1])


def _sketch(group: Group) -> None:
    for values in group.latencies:
        values.sketch()


def _p99(data: Data) -> float:
    return -1.0 if data["ttft_ms"] is None else float(data["ttft_ms"]["p99"])


def _day(line: Line) -> str:
    return datetime.fromtimestamp(line.opened, UTC).date().isoformat()


_NAMES: dict[str, Callable[[Line], str]] = {
    "tenant": lambda line: line.tenant,
    "class": lambda line: line.request_class,
    "bucket": lambda line: line.bucket,
    "model": lambda line: line.model,
    "day": _day,
}
