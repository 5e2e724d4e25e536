"""JSON Schemas as clients send them to what the grammar compiler takes: checked keyword by keyword, never in silence.

What a keyword means is llguidance's (JSON Schema 2020-12 but for the keywords it does not know). Here are the options
that every schema gets, the words that mean nothing for an answer, and formats that llguidance takes too widely (29
February in any year). Everything else unknown is refused by name.

Properties that nobody named are not made up: an object with `properties` and not a word about others has no others.
That is stricter than JSON Schema, so every answer is valid, and it is what people mean; only where schemas are joined,
so that one may name what another must allow, nothing is closed.

White space is fixed: one space behind each comma and colon, none elsewhere. So an answer cannot wander off in blanks,
and all that is certain in it can be written without asking the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from tailrace.errors import InvalidRequest
from tailrace.protocol.one_of import as_any_of

MAX_DEPTH = 64  # schemas inside schemas

_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
    "coerce_one_of": False,
}
_OPTIONS_KEY = "x-guidance"

# They say something about a schema and nothing about its instances.
_ANNOTATIONS = frozenset(("deprecated", "discriminator", "example", "externalDocs", "propertyOrdering", "xml"))

_ONE = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")

# Formats as patterns that only valid texts match; some rare valid ones (leap seconds, long host names) do not.
_DATE = (
    r"(([1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
    r"|(\d{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_LABEL = "[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*"
_FORMATS: dict[str, dict[str, Any]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "hostname": {"pattern": rf"^{_LABEL}(\.{_LABEL})*$", "maxLength": 63},
}

# All of JSON Schema's own, also those that llguidance refuses by name; it would pass over a word it has never heard of.
_KEYWORDS = frozenset(
    (
        *_ONE, *_LISTS, *_MAPS, "$anchor", "$comment", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor",
        "$recursiveRef", "$ref", "$schema", "$vocabulary", "const", "contentEncoding", "contentMediaType",
        "contentSchema", "default", "dependencies", "dependentRequired", "description", "enum", "examples",
        "exclusiveMaximum", "exclusiveMinimum", "format", "id", "maxContains", "maxItems", "maxLength",
        "maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
        "pattern", "readOnly", "required", "title", "type", "uniqueItems", "writeOnly",
    )
)  # fmt: skip

_ALTERNATIVES = frozenset(("$ref", "$dynamicRef", "anyOf", "oneOf", "if"))
_OF_OTHERS = frozenset(
    ("additionalProperties", "patternProperties", "minProperties", "propertyNames", "unevaluatedProperties")
)
_OF_OBJECTS = _OF_OTHERS | {"properties", "required"}

ANY_OBJECT = {"type": "object"}


def schema_source(schema: object, field: str) -> str:
    """The schema as JSON with our options, for GrammarKind.JSON_SCHEMA or behind `%json` in a Lark grammar.

    Raises InvalidRequest naming `field`.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{field} must be a JSON Schema: an object", param=field)
    if _OPTIONS_KEY in schema:
        raise InvalidRequest(f"{field} holds {_OPTIONS_KEY}, which is this server's to set", param=field)
    cleaned = _Cleaner(field, schema).clean(schema)
    try:
        return orjson.dumps(cleaned | {_OPTIONS_KEY: _OPTIONS}).decode()
    except TypeError as error:
        raise InvalidRequest(f"{field} is not a JSON Schema: {error}", param=field) from None


class _Cleaner:
    """Copies the schemas in `root` without annotations that llguidance does not know. Where none is joined with
    another, objects that say nothing of further properties have none."""

    def __init__(self, field: str, root: dict[str, Any]) -> None:
        self._field = field
        self._root = root
        self._closes = not _joins(root)

    def clean(self, schema: Any, depth: int = 0) -> Any:
        if not isinstance(schema, dict):
            return schema
        self._check(schema, depth)
        schema = as_any_of(schema, self._root)
        clean = {key: value for key, value in schema.items() if not _is_annotation(key)}
        for key, inner in _inner(clean):
            clean[key] = _map(inner, lambda each: self.clean(each, depth + 1))
        if self._closes and _says_nothing_of_others(clean):
            clean["additionalProperties"] = False
        return _with_format(clean)

    def _check(self, schema: dict[str, Any], depth: int) -> None:
        field = self._field
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"{field} nests schemas deeper than {MAX_DEPTH} levels", param=field)
        if depth and "$ref" in schema and "$id" in schema:  # its meaning differs between drafts
            raise InvalidRequest(f"{field} has $ref and $id in one schema, which is not supported", param=field)
        for key in schema.keys() - _KEYWORDS:
            if not _is_annotation(key):
                raise InvalidRequest(f"{field} holds {key[:40]!a}, which is no keyword of JSON Schema", param=field)


def _is_annotation(key: str) -> bool:
    return key in _ANNOTATIONS or key.startswith("x-")


def _inner(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    """Where a schema holds others: keywords with a schema, a list of them, or named ones."""
    found = [(key, schema[key]) for key in _ONE if isinstance(schema.get(key), dict)]
    found += [(key, schema[key]) for key in _LISTS if isinstance(schema.get(key), list)]
    found += [(key, _Named(schema[key])) for key in _MAPS if isinstance(schema.get(key), dict)]
    return found


class _Named(dict[str, Any]):
    """Schemas by name, which is not a schema itself."""


def _map(inner: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(inner, _Named):
        return {name: change(each) for name, each in inner.items()}
    return [change(each) for each in inner] if isinstance(inner, list) else change(inner)


def _joins(schema: Any, depth: int = 0) -> bool:
    """Whether any schema in it is joined with another, so that one's properties may be another's further ones."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return False
    if "allOf" in schema or (schema.keys() & _ALTERNATIVES and schema.keys() & _OF_OBJECTS):
        return True
    found: list[bool] = []
    for _, inner in _inner(schema):
        _map(inner, lambda each: found.append(_joins(each, depth + 1)))
    return any(found)


def _says_nothing_of_others(schema: dict[str, Any]) -> bool:
    """Of properties that are not listed; and what must be there is listed."""
    listed, required = schema.get("properties"), schema.get("required", [])
    return (
        isinstance(listed, dict)
        and not schema.keys() & _OF_OTHERS
        and isinstance(required, list)
        and all(name in listed for name in required if isinstance(name, str))
    )


def _with_format(schema: dict[str, Any]) -> dict[str, Any]:
    said = schema.get("format")
    if not isinstance(said, str) or said not in _FORMATS:
        return schema
    del schema["format"]
    both = schema.get("allOf")
    return schema | {"allOf": [*(both if isinstance(both, list) else ()), _FORMATS[said]]}
