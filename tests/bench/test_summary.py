"""Numbers made of records: checked against NumPy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.bench.summary import summarize
from tailrace.errors import ConfigError
from tailrace.figures.numbers import distribution, quantile
from tailrace.figures.slo import Slo, parse_slo
from tests.bench.records import failed, record

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=60), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[float], q: float) -> None:
    assert quantile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-6)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60))
def test_distributions_are_those_of_numpy(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None
    milliseconds = np.array(values) * 1000
    expected = [milliseconds.mean(), *np.percentile(milliseconds, [50, 95, 99]), milliseconds.max()]
    assert [found[name] for name in ("mean", "p50", "p95", "p99", "max")] == pytest.approx(expected, abs=1e-3)
    assert found["count"] == len(values)


def test_what_is_missing_is_left_out() -> None:
    assert distribution([None, 0.25, None]) == {"count": 1, "mean": 250, "p50": 250, "p95": 250, "p99": 250, "max": 250}
    assert distribution([None]) is None


def test_latencies_of_one_request_by_hand() -> None:
    made = record(scheduled=10.0, first=10.2, end=11.0, tokens=5, sent=10.05)
    assert made.ttft == pytest.approx(0.2)  # from the schedule, not from the sending
    assert made.lag == pytest.approx(0.05)
    assert made.e2e == pytest.approx(1.0)
    assert made.tpot == pytest.approx(0.8 / 4)
    assert made.gaps() == pytest.approx([0.2] * 4)
    assert record(tokens=1).tpot is None
    assert record(tokens=1).worst_gap is None


def test_a_run_by_hand() -> None:
    records = [
        record(0.0, 0.1, 0.5, 5),
        record(1.0, 1.3, 2.0, 8, prompt_tokens=300, cached_tokens=64),
        failed("429 full"),
    ]
    summary = summarize(records, Slo(ttft=0.2))
    assert (summary["requests"], summary["answered"], summary["seconds"]) == (3, 2, 2.0)
    assert summary["errors"] == {"429 full": 1}
    assert summary["error_examples"] == {"429 full": "it said 429 full"}
    assert summary["throughput"] == {"requests_per_s": 1.0, "input_tokens_per_s": 200.0, "output_tokens_per_s": 6.5}
    assert summary["goodput_per_s"] == 0.5
    assert summary["attainment"] == pytest.approx(1 / 3, abs=1e-6)
    assert (summary["tokens"]["prompt"], summary["tokens"]["cached"], summary["tokens"]["output"]) == (400, 64, 13)
    assert summary["latency"]["ttft_ms"]["max"] == pytest.approx(300)
    assert summary["latency"]["queue_ms"] is None
    assert summary["latency"]["gap_ms"]["count"] == 4 + 7
    assert {name: part["requests"] for name, part in summary["buckets"].items()} == {"<256": 2, "<1k": 1}
    assert summary["buckets"]["<256"]["errors"] == 1


def test_lengths_that_differ_from_what_was_asked_are_seen() -> None:
    records = [record(asked_prompt=100), record(asked_prompt=97), record(asked_output=9)]
    tokens = summarize(records, Slo())["tokens"]
    assert tokens["prompts_off_by"] == {"mean": 1.5, "max": 3}
    assert tokens["outputs_short"] == 1


@pytest.mark.parametrize("records", [[], [failed()]])
def test_nothing_answered(records: list[object]) -> None:
    summary = summarize(records, Slo(ttft=1.0))  # type: ignore[arg-type]
    assert summary["answered"] == 0
    assert summary["throughput"]["output_tokens_per_s"] == 0.0
    assert summary["latency"]["ttft_ms"] is None


def test_an_slo_is_parsed() -> None:
    assert parse_slo("ttft=500ms, tpot=50ms,itl=0.2,e2e=10s") == Slo(0.5, 0.05, 0.2, 10.0)
    assert not parse_slo("")


@pytest.mark.parametrize("text", ["ttft", "ttft=", "p99=5ms", "ttft=fast", "ttft=1s,ttft=2s", "ttft=0"])
def test_a_wrong_slo_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--slo"):
        parse_slo(text)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(ttft=0.1), True),
        (Slo(ttft=0.09), False),
        (Slo(tpot=0.1), True),
        (Slo(tpot=0.09), False),
        (Slo(e2e=0.49), False),
        (Slo(itl=0.05), False),
        (Slo(ttft=0.1, tpot=0.11, itl=0.11, e2e=0.5), True),
    ],
)
def test_bounds(slo: Slo, met: bool) -> None:
    assert slo.met(record(0.0, 0.1, 0.5, 5)) is met


def test_an_error_meets_nothing_and_one_token_has_no_pace_to_miss() -> None:
    assert not Slo(ttft=100.0).met(failed())
    assert Slo(tpot=0.0001).met(record(tokens=1))
