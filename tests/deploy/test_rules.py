"""The rules, the dashboard and the manifests that are shipped fit what the server shows and does."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from tailrace.config import ControlConfig
from tests.deploy.expressions import DASHBOARD, RULES, everything, named, panels, rules
from tests.docs.test_metrics import told
from tests.prometheus_server import DEPLOY, TOOL, needs_prometheus


def promtool(*arguments: str) -> None:
    done = subprocess.run([str(TOOL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_the_configuration_and_its_rules_are_valid() -> None:
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    promtool("check", "rules", *map(str, RULES))


@needs_prometheus
def test_alerts_fire_when_they_should_and_else_do_not() -> None:
    promtool("test", "rules", str(DEPLOY / "prometheus" / "tests" / "alerts.yml"))


def test_every_alert_has_a_test() -> None:
    tried = (DEPLOY / "prometheus" / "tests" / "alerts.yml").read_text()
    assert [rule["alert"] for rule in rules() if "alert" in rule and f"alertname: {rule['alert']}\n" not in tried] == [
        "TailraceSloSlowBurn"  # as the fast one, over longer
    ]


def test_every_expression_names_metrics_that_exist() -> None:
    known = set(told("observability.md")) | {rule["record"] for rule in rules() if "record" in rule}
    assert {name for expression in everything() for name in named(expression)} - known == set()


def test_the_dashboard_can_be_provisioned() -> None:
    text = DASHBOARD.read_text()
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert all(panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for panel in panels())
    assert all(panel["targets"] for panel in panels())
    assert '"type": "datasource"' in text


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_panels_do_not_overlap_or_stick_out(panel: dict[str, dict[str, int]]) -> None:
    place = panel["gridPos"]
    assert place["x"] + place["w"] <= 24
    for other in panels():
        at = other["gridPos"]
        if other["id"] != panel["id"]:
            beside = at["x"] >= place["x"] + place["w"] or place["x"] >= at["x"] + at["w"]
            assert beside or at["y"] >= place["y"] + place["h"] or place["y"] >= at["y"] + at["h"]


def test_supervisors_wait_longer_than_a_drain_takes() -> None:
    drain = ControlConfig().drain_timeout
    unit = (DEPLOY / "systemd" / "tailrace.service").read_text()
    assert f"TimeoutStopSec={drain + 15:.0f}\n" in unit
    workload, _ = yaml.safe_load_all((DEPLOY / "kubernetes" / "tailrace.yaml").read_text())
    pod = workload["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == drain + 15
    assert pod["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert pod["containers"][0]["livenessProbe"]["httpGet"]["path"] == "/health/live"
