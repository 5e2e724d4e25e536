"""The command that runs the JSON-Schema-Test-Suite finds what it is to find, on a suite of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from tests.conformance.json_schema import Suite


def group(schema: Any, *tests: tuple[Any, bool]) -> dict[str, Any]:
    listed = [{"description": "t", "data": data, "valid": valid} for data, valid in tests]
    return {"description": "g", "schema": schema, "tests": listed}


def ran(*groups: dict[str, Any]) -> Suite:
    suite = Suite(jsonschema.Draft202012Validator)
    try:
        for each in groups:
            suite.run("file.json", each)
    finally:
        suite.close()
    return suite


def test_good_schemas_have_no_failures_and_others_are_counted_by_reason() -> None:
    listed = {"properties": {"a": {"type": "integer"}, "b": {}}}
    report = ran(
        group({"type": "integer", "minimum": 3}, (3, True), (2, False)),
        group(listed, ({"b": 1, "a": 1}, True), ({"a": "x"}, False)),
        group({"uniqueItems": True}, ([1, 1], False)),
    ).report
    assert (report.schemas, report.taken, report.failures) == (3, 2, [])
    assert report.passed["valid instances accepted"] == 2
    assert report.passed["invalid instances not accepted"] == 2
    assert report.passed["random answers"] > 0
    (reason,) = report.refused
    assert "uniqueItems" in reason


def test_an_invalid_instance_that_passes_is_a_failure() -> None:
    report = ran(group({"type": "integer"}, (5, False))).report
    assert len(report.failures) == 1
    assert "takes 5" in report.failures[0]


def test_a_file_of_the_suite_has_this_form(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([group({"const": 1}, (1, True))]))
    assert ran(*json.loads(path.read_text())).report.taken == 1
