"""Alternatives that exclude each other: for them `oneOf` means what `anyOf` does, which llguidance can follow.

It sees that itself only where the alternatives stand in place. Here references inside the schema are looked up too, as
in tagged unions: objects that all must have the same property, each with values of its own for it. An OpenAPI
`discriminator` names that property, and says that it must be there.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any
from urllib.parse import unquote

_HOPS = 8  # references to references


def as_any_of(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """The schema with `anyOf` in place of a `oneOf` whose parts exclude each other; others as they are."""
    options = schema.get("oneOf")
    if not isinstance(options, list) or "anyOf" in schema or not all(isinstance(each, dict) for each in options):
        return schema
    tag = schema.get("discriminator")
    name = tag.get("propertyName") if isinstance(tag, dict) else None
    must = {name} if isinstance(name, str) else set[str]()
    found = [_look_up(each, root) for each in options]
    if not all(_exclude(a, b, must) for a, b in combinations(found, 2)):
        return schema
    if must and not all(must <= set(_required(each)) for each in found):
        options = [{"allOf": [each, {"required": [name]}]} for each in options]
    return {key: value for key, value in schema.items() if key != "oneOf"} | {"anyOf": options}


def _exclude(a: dict[str, Any], b: dict[str, Any], must: set[str]) -> bool:
    """Whether nothing can be of both, by what each plainly says. `must`: properties that objects here have."""
    if _apart(a, b):
        return True
    if a.get("type") != "object" or b.get("type") != "object":
        return False
    shared = (must | (set(_required(a)) & set(_required(b)))) & _properties(a).keys() & _properties(b).keys()
    return any(_apart(_properties(a)[name], _properties(b)[name]) for name in shared)


def _apart(a: Any, b: Any) -> bool:
    """By their types, or by their texts."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return False
    texts, others = _texts(a), _texts(b)
    if texts is not None and others is not None and not texts & others:
        return True
    types, other_types = _types(a), _types(b)
    return bool(types and other_types) and not types & other_types


def _texts(schema: dict[str, Any]) -> set[str] | None:
    """All values that it allows, if these are texts."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return set(values)


def _types(schema: dict[str, Any]) -> set[str]:
    said = schema.get("type")
    types = {said} if isinstance(said, str) else {each for each in said if isinstance(each, str)} if said else set()
    return types | {"integer"} if "number" in types else types


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _required(schema: dict[str, Any]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _look_up(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """What it refers to inside the schema, or itself."""
    for _ in range(_HOPS):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for part in unquote(reference[2:]).split("/"):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            break
        schema = found
    return schema
