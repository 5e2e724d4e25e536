"""Fields that constrain an answer: what each becomes, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.errors import InvalidRequest, RequestError
from tailrace.protocol.json_schema import MAX_DEPTH, schema_source
from tailrace.protocol.structured import FIELDS, grammar_of, json_part
from tailrace.types import Grammar, GrammarKind

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA, "strict": True}}


def made(**fields: Any) -> Grammar:
    grammar = grammar_of(fields)
    assert grammar is not None
    return grammar


def source(**fields: Any) -> dict[str, Any]:
    """The schema without our options."""
    grammar = made(**fields)
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    schema: dict[str, Any] = json.loads(grammar.source)
    assert schema.pop("x-guidance")["whitespace_flexible"] is False
    return schema


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        grammar_of(fields)
    assert caught.value.status == 400
    assert caught.value.param is not None
    assert caught.value.param.partition(".")[0].partition("[")[0] in FIELDS
    return caught.value


@pytest.mark.parametrize("fields", [{}, dict.fromkeys(FIELDS), {"response_format": {"type": "text"}}])
def test_nothing_asked_for_is_no_grammar(fields: dict[str, Any]) -> None:
    assert grammar_of(fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": NAMED},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA, "regex": None, "disable_fallback": True}},
    ],
)
def test_every_way_to_a_schema_means_the_same(fields: dict[str, Any]) -> None:
    assert source(**fields) == SCHEMA
    assert made(**fields).source == made(guided_json=SCHEMA).source


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_any_object(fields: dict[str, Any]) -> None:
    assert source(**fields) == {"type": "object"}


def test_texts() -> None:
    assert made(guided_regex="a+") == Grammar(GrammarKind.REGEX, "a+", "guided_regex")
    assert made(guided_grammar='start: "a"') == Grammar(GrammarKind.LARK, 'start: "a"', "guided_grammar")
    assert made(structured_outputs={"regex": "a+"}).field == "structured_outputs.regex"
    quoted = made(guided_choice=["yes", 'no"', "yes", "vielleicht schön"])
    assert quoted == Grammar(GrammarKind.LARK, 'start: "yes" | "no\\"" | "vielleicht schön"', "guided_choice")


def test_a_schema_inside_a_lark_grammar_has_the_same_options() -> None:
    part = json_part(SCHEMA, "tools[0]")
    assert part.removeprefix("%json ") == made(guided_json=SCHEMA).source


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": NAMED, "guided_json": SCHEMA}, "guided_json", "exclude each other"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "exclude each other"),
        ({"response_format": {}}, "response_format.type", "None"),
        ({"response_format": {"type": "structural_tag"}}, "response_format.type", "structural_tag"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema", "an object"),
        ({"guided_json": "{"}, "guided_json", "not JSON"),
        ({"guided_json": False}, "guided_json", "must be a JSON Schema"),
        ({"guided_json": [1]}, "guided_json", "must be a JSON Schema"),
        ({"guided_json": SCHEMA | {"x-guidance": {}}}, "guided_json", "x-guidance"),
        ({"guided_json": {"minLenght": 3}}, "guided_json", "minLenght"),
        ({"guided_json": {"items": {"nullable": True}}}, "guided_json", "nullable"),
        ({"guided_json": "\ud800"}, "guided_json", "surrogate"),
        ({"guided_choice": []}, "guided_choice", "at least one"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]", "not empty"),
        ({"guided_regex": ""}, "guided_regex", "not empty"),
        ({"guided_grammar": ""}, "guided_grammar", "not empty"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "not supported"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern", "not supported"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", "true or false"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], param: str, says: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert says in error.message


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"name": None}, "name"),
        ({"name": "with space"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"schema": None}, "schema"),
        ({"strict": "yes"}, "strict"),
    ],
)
def test_a_named_schema_is_checked_as_openai_does(change: dict[str, Any], param: str) -> None:
    named = {key: value for key, value in (NAMED["json_schema"] | change).items() if value is not None}  # type: ignore[operator]
    error = refused(response_format={"type": "json_schema", "json_schema": named})
    assert error.param == f"response_format.json_schema.{param}"


def test_unknown_words_beside_a_schema_are_refused() -> None:
    named = NAMED["json_schema"] | {"scheme": 1}  # type: ignore[operator]
    assert "scheme" in refused(response_format={"type": "json_schema", "json_schema": named}).message


def test_annotations_go_and_properties_of_that_name_stay() -> None:
    schema = {
        "properties": {"example": {"type": "string", "example": "x", "deprecated": True, "x-order": 1}},
        "discriminator": {},
    }
    assert source(guided_json=schema)["properties"] == {"example": {"type": "string"}}
    assert source(guided_json={"enum": [{"example": 1}]}) == {"enum": [{"example": 1}]}


LISTED: dict[str, Any] = {"properties": {"a": {}}}


@pytest.mark.parametrize("schema", [LISTED, {"properties": {}}, LISTED | {"required": ["a"], "type": "object"}])
def test_an_object_has_no_properties_that_nobody_named(schema: dict[str, Any]) -> None:
    assert source(guided_json=schema)["additionalProperties"] is False
    assert source(guided_json={"items": schema})["items"]["additionalProperties"] is False
    assert source(guided_json={"anyOf": [schema, {"type": "null"}]})["anyOf"][0]["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        LISTED | {"additionalProperties": {"type": "string"}},
        LISTED | {"additionalProperties": True},
        LISTED | {"required": ["b"]},
        LISTED | {"minProperties": 2},
        LISTED | {"patternProperties": {"^x": {}}},
        {"allOf": [LISTED, {"properties": {"b": {}}}]},
        LISTED | {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"b": {}}}}},
        LISTED | {"anyOf": [{"required": ["b"]}, {}]},
    ],
)
def test_an_object_stays_open_where_it_says_so_or_is_joined_with_another(schema: dict[str, Any]) -> None:
    assert source(guided_json=schema) == schema
    assert source(guided_json={"$defs": {"inner": schema}})["$defs"]["inner"] == schema


def test_formats_that_are_taken_too_widely_become_patterns() -> None:
    made = source(guided_json={"type": "string", "format": "date", "allOf": [{"maxLength": 10}]})
    assert "format" not in made
    assert [list(each) for each in made["allOf"]] == [["maxLength"], ["pattern"]]
    assert source(guided_json={"format": "uuid"}) == {"format": "uuid"}


@pytest.mark.parametrize("key", ["items", "not", "additionalProperties"])
def test_a_schema_that_nests_too_deep_is_refused(key: str) -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_DEPTH):
        schema = {key: schema}
    schema_source(schema, "guided_json")
    with pytest.raises(InvalidRequest, match="deeper than"):
        schema_source({key: schema}, "guided_json")


def test_a_value_that_nests_too_deep_is_refused() -> None:
    value: Any = []
    for _ in range(2000):
        value = [value]
    with pytest.raises(InvalidRequest, match="not a JSON Schema"):
        schema_source({"const": value}, "guided_json")
