"""Every PromQL expression that deploy/ ships, and the metrics that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.prometheus_server import DEPLOY

RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "tailrace.json"
_NAME = re.compile(r"\b(?:tailrace|process)[_:][a-z0-9_:]+")
_VARIABLES = {"$__rate_interval": "1m", "$job": "tailrace", "$instance": ".*"}


def rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(path.read_text()) for path in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    board = json.loads(DASHBOARD.read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def drawn() -> Iterator[str]:
    """Of the dashboard, with values in the place of its variables."""
    for panel in panels():
        for target in panel["targets"]:
            expression: str = target["expr"]
            for name, value in _VARIABLES.items():
                expression = expression.replace(name, value)
            yield expression


def everything() -> list[str]:
    return [*(rule["expr"] for rule in rules()), *drawn()]


def named(expression: str) -> set[str]:
    """Metrics and recorded rules; those of a histogram by the name of the whole."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in _NAME.findall(expression)}
