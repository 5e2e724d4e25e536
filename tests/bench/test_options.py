"""Options that contradict each other are refused before anything is sent, naming the flag."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.bench.options import Options
from tailrace.errors import ConfigError
from tailrace.figures.quantities import seconds


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"concurrency": 4, "rate": 2.0}, "--rate"),
        ({"concurrency": 0}, "--concurrency"),
        ({"rate": -1.0}, "--rate"),
        ({"rate": float("nan")}, "--rate"),
        ({"arrival": "weibull"}, "--arrival"),
        ({"endpoint": "embeddings"}, "--endpoint"),
        ({"workload": "file"}, "--prompts"),
        ({"workload": "mixed"}, "--mix"),
        ({"trace": "x.csv", "workload": "multi-turn"}, "--workload"),
        ({"trace": "x.csv", "sweep": True}, "--sweep"),
        ({"sweep": True, "repeats": 3}, "--repeats"),
        ({"warmup": -1}, "--warmup"),
        ({"attainment": 1.5}, "--attainment"),
        ({"on_429": "give up"}, "--on-429"),
        ({"length_scale": 0.0}, "--length-scale"),
    ],
)
def test_refused(fields: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Options(**fields)
    assert raised.value.param == flag
    assert flag in raised.value.message


def test_what_makes_a_loop_open() -> None:
    assert Options(rate=1.0).open_loop
    assert Options(trace="x.csv").open_loop
    assert not Options(trace="x.csv", concurrency=2).open_loop
    assert not Options().open_loop


@pytest.mark.parametrize(
    ("text", "value"), [("500ms", 0.5), ("2s", 2.0), ("1.5m", 90.0), ("3", 3.0), ("250us", 0.00025), ("1h", 3600.0)]
)
def test_times(text: str, value: float) -> None:
    assert seconds(text, "--duration") == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "0", "-1s", "soon", "5 parsecs"])
def test_no_times(text: str) -> None:
    with pytest.raises(ConfigError, match="--duration"):
        seconds(text, "--duration")
