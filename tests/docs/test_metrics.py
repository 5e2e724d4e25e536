"""The tables of metrics in docs/observability.md name what a server shows, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tailrace.observe.losses import Losses
from tests.serving import chat, in_process, make_state

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"`((?:tailrace|process)_[a-z0-9_]+)(?:\{([a-z_,]+)\})?`")


def told(path: str) -> dict[str, set[str]]:
    """Labels by name, of every row of a table."""
    rows = [line for line in (DOCS / path).read_text().splitlines() if line.startswith("| `")]
    return {name: set(labels.split(",")) - {""} for row in rows for name, labels in NAME.findall(row)}


def shown(registry: CollectorRegistry) -> dict[str, Metric]:
    return {family.name + "_total" * (family.type == "counter"): family for family in registry.collect()}


async def test_every_metric_is_told_and_no_other() -> None:
    state = make_state()
    state.metrics.show(Losses({}))
    assert set(told("observability.md")) == set(shown(state.metrics.registry))


async def test_their_labels_are_those_that_are_told() -> None:
    state = make_state()
    async with in_process(state) as client:
        assert (await client.post("/v1/chat/completions", json=chat(max_tokens=3))).status_code == 200
        assert (await client.post("/v1/chat/completions", json={})).status_code == 400
        text = (await client.get("/metrics")).text
    expected, found = told("observability.md"), set()
    for family in text_string_to_metric_families(text):
        name = family.name + "_total" * (family.type == "counter")
        found.add(name)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == expected[name], sample
    assert found == set(shown(state.metrics.registry)), "what is registered is shown"


def test_what_operations_names_exists() -> None:
    assert {name for name in told("operations.md")} <= set(told("observability.md"))
