"""Families of plain numbers say what the library's would."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tailrace.observe.families import Counts, Histograms, summed


class Alone:
    def __init__(self, of: Histograms) -> None:
        self.of = of

    def collect(self) -> Iterator[Metric]:
        return self.of.collect()


def samples(text: str) -> list[object]:
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sorted((each.name, sorted(each.labels.items()), each.value) for each in found)


def test_the_text_of_histograms_is_what_the_library_writes() -> None:
    made = Histograms("wait_seconds", "How long", ("class", "model"), (0.001, 0.5, 10))
    for value, model in ((0.1, "m"), (20.0, "m"), (0.5, 'hostile "\\\n}{'), (1 / 3, "m")):
        made.at["agent", model].add(value)
    text = made.text()
    assert samples(text) == samples(generate_latest(Alone(made)).decode())  # type: ignore[arg-type]
    assert text.splitlines()[:3] == [
        "# HELP tailrace_wait_seconds How long",
        "# TYPE tailrace_wait_seconds histogram",
        'tailrace_wait_seconds_bucket{class="agent",model="m",le="0.001"} 0',
    ]
    assert len(text.splitlines()) == 2 + 2 * 6


def test_counts_start_at_nothing() -> None:
    counts = Counts("seen", "What came", ("kind",))
    counts.at["a",] += 2
    (family,) = counts.collect()
    assert [(sample.name, sample.labels, sample.value) for sample in family.samples] == [
        ("tailrace_seen_total", {"kind": "a"}, 2)
    ]


def test_equal_labels_are_added() -> None:
    assert summed([(("a",), 1.0), (("b",), 2.0), (("a",), 3.0)]) == {("a",): 4.0, ("b",): 2.0}
