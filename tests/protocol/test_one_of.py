"""Which alternatives exclude each other, and what becomes of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from tailrace.protocol.one_of import as_any_of

CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]}
PLACES = {"$defs": {"cat": CAT, "dog": DOG, "a/b": DOG}}


@pytest.mark.parametrize(
    "options",
    [
        [CAT, DOG],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/a~1b"}, {"type": "null"}],
        [{"const": "a"}, {"enum": ["b", "c"]}],
        [{"type": "string"}, {"type": ["integer", "null"]}],
    ],
)
def test_alternatives_that_exclude_each_other_are_any_of_them(options: list[Any]) -> None:
    schema = PLACES | {"oneOf": options, "title": "t"}
    assert as_any_of(schema, schema) == PLACES | {"anyOf": options, "title": "t"}


@pytest.mark.parametrize(
    "options",
    [
        [CAT, {key: value for key, value in DOG.items() if key != "required"}],
        [CAT, {key: value for key, value in DOG.items() if key != "type"}],
        [CAT, CAT],
        [{"type": "number"}, {"type": "integer"}],
        [{"type": "string"}, {"const": "a"}],
        [{"const": 1}, {"const": 2}],
        [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/nobody"}],
        [{"$ref": "#/$defs/cat"}, True],
        [{"type": "string"}, {}],
    ],
)
def test_others_stay(options: list[Any]) -> None:
    schema = PLACES | {"oneOf": options}
    assert as_any_of(schema, schema) == schema


def test_beside_an_any_of_it_stays() -> None:
    schema = {"oneOf": [CAT, DOG], "anyOf": [{}]}
    assert as_any_of(schema, schema) == schema


def test_a_discriminator_must_be_there() -> None:
    class Cat(BaseModel):
        kind: Literal["cat"] = "cat"

    class Dog(BaseModel):
        kind: Literal["dog"] = "dog"
        good: bool

    class Owner(BaseModel):
        pet: Annotated[Cat | Dog, Field(discriminator="kind")]

    root = Owner.model_json_schema()
    made = as_any_of(root["properties"]["pet"], root)
    assert made["anyOf"] == [
        {"allOf": [{"$ref": f"#/$defs/{name}"}, {"required": ["kind"]}]} for name in ("Cat", "Dog")
    ]
