"""Results on paper: the JSON file, the terminal's table, charts, and two results compared."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tailrace.bench.charts import charts, draw
from tailrace.bench.compare import cautions, differences, show_comparison
from tailrace.bench.options import Options
from tailrace.bench.report import Report, Run, read
from tailrace.bench.summary import summarize
from tailrace.bench.table import show
from tailrace.errors import ConfigError
from tailrace.figures.chart import check_plot
from tailrace.figures.results import write
from tailrace.figures.slo import Slo
from tailrace.figures.svg import page, svg, ticks
from tests.bench.records import failed, record

SERVER = {"url": "http://127.0.0.1:8000", "shape": {"model": "<odd> & co"}}


def run(label: str, load: float, factor: float = 1.0, slo: Slo | None = None) -> Run:
    records = [record(i, i + 0.1 * factor, i + (0.5 + 0.01 * i) * factor) for i in range(20)] + [
        failed("429 full", 3.0)
    ]
    return Run(label, load, summarize(records, slo or Slo(ttft=0.2)), records)


def report(*runs: Run, **fields: Any) -> dict[str, Any]:
    made = Report(Options(key="secret", **fields), 0.0, SERVER, list(runs), notes=["be <careful>"])
    return made.data()


def swept() -> dict[str, Any]:
    data = report(run("concurrency 1", 1), run("concurrency 4", 4, 3.0), run("concurrency 2", 2, 1.5))
    return data | {"knee": {"unit": "concurrency", "load": 2, "rule": "highest load", "limited": False}}


def shown(data: dict[str, Any]) -> str:
    out = io.StringIO()
    show(Console(file=out, width=160), data)
    return out.getvalue()


# --- the file


def test_the_file_reads_back_and_holds_no_key(tmp_path: Path) -> None:
    data = report(run("measuring", 8))
    write(tmp_path / "r.json", data)
    again = read(tmp_path / "r.json")
    assert again["runs"][0]["summary"]["latency"] == data["runs"][0]["summary"]["latency"]
    assert again["options"]["key"] == "(given)"
    assert "secret" not in (tmp_path / "r.json").read_text()


def test_a_request_in_the_file() -> None:
    request = report(run("measuring", 8))["runs"][0]["requests"][1]
    assert (request["scheduled_ms"], request["first_ms"], request["end_ms"]) == (1000.0, 1100.0, 1510.0)
    assert request["gaps_ms"] == pytest.approx([102.5] * 4)


@pytest.mark.parametrize("content", [None, "{}", "[1]", "{", '{"tailrace_bench": 99}'])
def test_other_files_are_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"r\.json"):
        read(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--json"):
        write(tmp_path / "no" / "r.json", {})


# --- the terminal


def test_the_table_says_what_was_measured() -> None:
    text = shown(report(run("measuring", 8)))
    assert "20 of 21 requests answered" in text
    assert "95.2% meet the SLO" in text
    assert re.search(r"TTFT +100 +100 +100 +100 +100", text)
    assert re.search(r"429 full +1 +it said 429 full", text)
    assert "note: be <careful>" in text


def test_a_sweep_is_a_row_for_each_load_in_order() -> None:
    text = shown(swept())
    assert re.findall(r"^([0-9]+) +21 +1 ", text, flags=re.MULTILINE) == ["1", "2", "4"]
    assert "knee: concurrency 2 (highest load)" in text


def test_repeats_have_a_row_each_and_nothing_breaks_without_answers() -> None:
    assert shown(report(run("run 1", 8), run("run 2", 8))).count("run ") >= 2
    empty = Run("measuring", 8, summarize([failed()], Slo()), [failed()])
    assert "0 of 1 requests answered" in shown(report(empty))
    assert "be <careful>" in shown(report())


# --- charts


def test_charts_of_a_run_and_of_a_sweep() -> None:
    titles = [chart.title.split(":")[0] for chart in charts(report(run("measuring", 8)))]
    assert titles == [
        "time to first token", "mean time per token", "gaps between pieces", "end to end",
        "open requests over the run", "time to first token over the run",
    ]  # fmt: skip
    throughput, *_, met = charts(swept())
    assert [x for x, _ in throughput.lines["output tokens/s"]] == [1, 2, 4]
    assert throughput.mark == 2
    assert set(met.lines) == {"requests/s", "goodput/s"}
    assert charts(report()) == []


def test_a_distribution_ends_at_the_largest_value() -> None:
    (points,) = charts(report(run("measuring", 8)))[3].lines.values()
    assert points[0] == (pytest.approx(500), 1 / 20)
    assert points[-1] == (pytest.approx(690), 1.0)


def test_the_page_is_one_file_of_well_formed_drawings(tmp_path: Path) -> None:
    draw(tmp_path / "out.html", report(run("run 1", 8), run("run 2", 8, 2.0)))
    text = (tmp_path / "out.html").read_text()
    assert "&lt;odd&gt; &amp; co" in text
    assert "be &lt;careful&gt;" in text
    assert not re.search(r"<script|<link|src=|url\(", text)
    for drawing in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ET.fromstring(drawing)  # raises where it is not well formed
    assert text.count("<svg") == 6


def test_points_stay_inside_the_drawing() -> None:
    for chart in charts(swept()):
        for number in re.findall(r'c[xy]="([-0-9.]+)"', svg(chart)):
            assert 0 <= float(number) <= 460


def test_no_answers_make_a_page_too() -> None:
    assert "No request was answered" in page("t", [], [])


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_ticks_cover_the_range(one: float, other: float) -> None:
    low, high = sorted((one, other))
    found = ticks(low, high)
    assert found[0] <= low + 1e-6 * (high + 1)
    assert found[-1] >= high - 1e-6 * (high + 1)
    assert 2 <= len(found) <= 8


def test_a_picture_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tailrace.figures.chart.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'tailrace\[plots\]'"):
        check_plot(tmp_path / "out.png")
    with pytest.raises(ConfigError, match=r"\.html or \.png"):
        check_plot(tmp_path / "out.jpeg")


def test_a_picture_gets_every_chart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a stand-in for matplotlib, which is an extra."""
    calls: list[tuple[str, Any]] = []

    class Anything:
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def __getattr__(self, name: str) -> Any:
            def call(*args: Any, **kwargs: Any) -> Anything:
                calls.append((name, args))
                return self

            return call

    stand_in = type(sys)("matplotlib.figure")
    stand_in.Figure = Anything  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", type(sys)("matplotlib"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", stand_in)
    monkeypatch.setattr("tailrace.figures.chart.find_spec", lambda name: name)
    draw(tmp_path / "out.png", swept())
    names = [name for name, _ in calls]
    assert names.count("add_subplot") == 4
    assert names[-1] == "savefig"
    assert calls[-1][1] == (tmp_path / "out.png",)


# --- two results


def found(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[float | None, str]]:
    return {d.name: (d.ratio, d.verdict) for d in differences(a, b)}


def test_one_run_each_says_nothing_about_noise() -> None:
    compared = found(report(run("m", 8)), report(run("m", 8, 2.0)))
    assert compared["ttft p95 (ms)"] == (pytest.approx(2.0), "noise unknown")


def test_repeats_tell_difference_from_noise() -> None:
    a = report(*[run("m", 8, factor) for factor in (1.0, 1.1, 1.2)])
    slower = report(*[run("m", 8, factor) for factor in (2.0, 2.1, 2.2)])
    alike = report(*[run("m", 8, factor) for factor in (1.15, 1.3, 1.25)])
    assert found(a, slower)["ttft p99 (ms)"] == (pytest.approx(2.1 / 1.1, rel=1e-3), "differs")
    assert found(a, alike)["ttft p99 (ms)"][1] == "within noise"


def test_what_makes_a_comparison_doubtful_is_said() -> None:
    a, b = report(run("m", 8), concurrency=8), report(run("m", 4), concurrency=4)
    assert list(cautions(a, b)) == [
        "different load: --concurrency 8 against 4",
        "one run says nothing about noise: measure both with --repeats 3",
        "A had 1 errors: its latencies are those of the answered requests alone",
        "B had 1 errors: its latencies are those of the answered requests alone",
    ]


def test_the_comparison_is_shown() -> None:
    out = io.StringIO()
    show_comparison(Console(file=out, width=120), report(run("m", 8)), report(run("m", 8, 2.0)))
    assert re.search(r"ttft p50 \(ms\) +100\.00 +200\.00 +2\.000 +noise unknown", out.getvalue())
