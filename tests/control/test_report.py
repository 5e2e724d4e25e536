"""A report's numbers against the same ones worked out the slow way."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.control.report.question import Question, moment, question
from tailrace.control.report.report import MOST_GROUPS, Report, slot_width
from tailrace.database.report_line import Line
from tailrace.errors import ConfigError

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC).timestamp()
ASKED = Question(NOON - 86_400, NOON, ("tenant",))
PLAIN = Line(
    "0", "acme", "interactive", "<256", "m", NOON - 60, "ok", 1000, 5000, 250.0, 9000, 10, 4, 6, 0, 0, 1500, 7, None,
    None,
)  # fmt: skip


def made(lines: list[Line], by: tuple[str, ...] = ("tenant",), **options: Any) -> dict[str, Any]:
    report = Report(Question(ASKED.since, ASKED.until, by), **options)
    for begin in range(0, len(lines), 7):
        report.add(lines[begin : begin + 7])
    return report.data("EUR")


LINES = st.lists(
    st.builds(
        PLAIN._replace,
        tenant=st.sampled_from(["acme", "other"]),
        opened=st.floats(ASKED.since, ASKED.until - 1),
        outcome=st.sampled_from(["ok", "ok", "rejected", "cancelled"]),
        queue_us=st.integers(0, 10**7),
        ttft_us=st.none() | st.integers(0, 10**7),
        total_us=st.integers(0, 10**8),
        prompt_tokens=st.integers(0, 1000),
        device_us=st.integers(0, 10**6),
        price=st.integers(0, 10**9),
        deadline_met=st.sampled_from([None, True, False]),
        success=st.sampled_from([None, True, False]),
    ),
    max_size=40,
)


@given(LINES)
def test_it_adds_up(lines: list[Line]) -> None:
    data = made(lines)
    for name in ("acme", "other", None):
        mine = [line for line in lines if name in (None, line.tenant)]
        groups = [group for group in data["groups"] if group["group"]["tenant"] == name] if name else [data["total"]]
        if not mine:
            assert name is None or not groups
            continue
        (told,) = groups
        assert told["requests"] == len(mine)
        assert told["outcomes"] == {
            o: n for o in ("cancelled", "ok", "rejected") if (n := [x.outcome for x in mine].count(o))
        }
        assert told["tokens"]["prompt"] == sum(line.prompt_tokens for line in mine)
        assert told["device_seconds"] == sum(line.device_us for line in mine) / 1e6
        assert told["money"] == sum(line.price for line in mine) / 1e6
        for key, all_told, good in (("deadlines", "had", "met"), ("success", "told", "succeeded")):
            said = [line.deadline_met if key == "deadlines" else line.success for line in mine]
            assert told[key] == {all_told: len(said) - said.count(None), good: said.count(True)}
        check(told["queue_ms"], [line.queue_us for line in mine if line.outcome != "rejected"])
        check(told["ttft_ms"], [line.ttft_us for line in mine if line.ttft_us is not None])
        check(told["e2e_ms"], [line.total_us for line in mine if line.outcome == "ok"])
    assert sum(slot["requests"] for slot in data["over_time"]) == len(lines)
    assert round(sum(slot["money"] for slot in data["over_time"]) * 1e6) == sum(line.price for line in lines)


def check(told: dict[str, float] | None, values: list[int]) -> None:
    """Of microseconds, told in milliseconds."""
    if not values:
        assert told is None
        return
    assert told is not None and told["count"] == len(values)
    for name, part in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100)):
        assert told[name] == pytest.approx(float(np.percentile(values, part)) / 1000, abs=1e-4)


def test_the_worst_comes_first() -> None:
    slow = [PLAIN._replace(bucket="<1k", ttft_us=n * 1000) for n in range(50)]
    fast = [PLAIN._replace(bucket="<256", ttft_us=n * 10) for n in range(90)]
    none = [PLAIN._replace(bucket="<4k", ttft_us=None, outcome="rejected")]
    data = made([*none, *fast, *slow], by=("bucket",))
    assert [group["group"]["bucket"] for group in data["groups"]] == ["<1k", "<256", "<4k"]
    assert data["order"] == "worst first: by the P99 of the time to the first token"
    assert data["percentiles"] == "exact"


def test_days_are_those_of_utc() -> None:
    days = [PLAIN._replace(opened=NOON + hours * 3600) for hours in (-13, -12, -11)]
    groups = made(days, by=("day", "model"))["groups"]
    assert sorted((g["group"]["day"], g["group"]["model"], g["requests"]) for g in groups) == [
        ("2027-01-30", "m", 1),
        ("2027-01-31", "m", 2),
    ]


def test_beyond_so_many_rows_percentiles_are_close_and_it_is_said() -> None:
    draws = random.Random(3)
    lines = [PLAIN._replace(tenant=draws.choice("ab"), ttft_us=int(draws.lognormvariate(11, 1))) for _ in range(3000)]
    exact, close = made(lines), made(lines, exact_rows=500)
    assert close["percentiles"] == "within 0.5%"
    for mine, theirs in zip((exact["total"], *exact["groups"]), (close["total"], *close["groups"]), strict=True):
        assert {**mine, "ttft_ms": 0, "queue_ms": 0, "tpot_ms": 0, "e2e_ms": 0} == {
            **theirs, "ttft_ms": 0, "queue_ms": 0, "tpot_ms": 0, "e2e_ms": 0,
        }  # fmt: skip
        assert theirs["ttft_ms"]["count"] == mine["ttft_ms"]["count"]
        for name in ("mean", "p50", "p95", "p99", "max"):
            assert theirs["ttft_ms"][name] == pytest.approx(mine["ttft_ms"][name], rel=0.02)


def test_too_many_groups_are_refused() -> None:
    report = Report(ASKED)
    with pytest.raises(ConfigError, match=f"more than {MOST_GROUPS} groups by tenant: name fewer") as caught:
        report.add(PLAIN._replace(tenant=f"t{n}") for n in range(MOST_GROUPS + 1))
    assert caught.value.param == "by"


def test_nothing_is_a_report_too() -> None:
    data = made([])
    assert (data["groups"], data["over_time"], data["total"]["requests"]) == ([], [], 0)
    assert data["total"]["ttft_ms"] is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7d", NOON - 7 * 86_400),
        ("90m", NOON - 5400),
        ("1.5h", NOON - 5400),
        ("2w", NOON - 14 * 86_400),
        ("2027-01-31", NOON - 43_200),
        ("2027-01-31T11:00", NOON - 3600),
        ("2027-01-31T12:00:00+01:00", NOON - 3600),
        ("2027-01-31T11:00:00Z", NOON - 3600),
        ("999999w", 0.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert moment(text, "since", NOON) == seconds


@pytest.mark.parametrize("text", ["", "7", "7x", "-1d", "tomorrow", "2027-13-01", "1960-01-01", "1e9d", "7d<script>"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="accepted is a time ago such as"):
        moment(text, "since", NOON)


def test_a_question_has_defaults_and_refuses_what_it_does_not_know() -> None:
    assert question("", "", "", "", NOON) == Question(NOON - 7 * 86_400, NOON, ("tenant", "class", "bucket"))
    assert question("2d", "1d", "day, day,model", "acme", NOON).by == ("day", "model")
    for since, until, by, param in (("1d", "2d", "", "since"), ("", "", "tenant,kind", "by"), ("", "", ",", "by")):
        with pytest.raises(ConfigError) as caught:
            question(since, until, by, "", NOON)
        assert caught.value.param == param


def test_time_is_cut_into_sixty_slots_at_most() -> None:
    assert [slot_width(s) for s in (60, 3600, 3601, 86_400, 7 * 86_400, 365 * 86_400)] == [
        60,
        60,
        300,
        3600,
        21_600,
        604_800,
    ]
