"""The fields that constrain an answer, OpenAI's and vLLM's, to one Grammar. At most one may be set.

    response_format     {"type": "text" | "json_object" | "json_schema", "json_schema": {"name", "schema", "strict"}}
    guided_json         a schema, as an object or as its text    guided_regex     the whole answer
    guided_choice       texts, of which the answer is one        guided_grammar   Lark, in llguidance's dialect
    structured_outputs  {"json" | "regex" | "choice" | "grammar" | "json_object": ...}, exactly one of them

Nothing is compiled here: that a pattern or a keyword cannot be used is found by Backend.check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tailrace.errors import InvalidRequest, Unsupported
from tailrace.protocol.body import missing
from tailrace.protocol.json_schema import ANY_OBJECT, schema_source
from tailrace.text.tokenizer import clean_text
from tailrace.types import Grammar, GrammarKind

FIELDS = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_NAMED_KEYS = frozenset(("name", "description", "schema", "strict"))
_WITHOUT_EFFECT = frozenset(("disable_fallback", "disable_any_whitespace"))  # there is no other way here, and no blanks


def grammar_of(fields: Mapping[str, Any]) -> Grammar | None:
    """`fields`: those of FIELDS that are set. Raises InvalidRequest or Unsupported naming the field."""
    asked = {name: value for name, value in fields.items() if value is not None and not _is_text(name, value)}
    if not asked:
        return None
    if len(asked) > 1:
        first, second, *_ = sorted(asked)
        raise InvalidRequest(f"{first} and {second} exclude each other: leave one of them out", param=first)
    ((name, value),) = asked.items()
    return _MAKERS[name](value, name)


def json_part(schema: object, field: str) -> str:
    """A schema as a piece of a larger Lark grammar, to stand where a rule's or terminal's name could."""
    return f"%json {schema_source(schema, field)}"


def _is_text(name: str, value: object) -> bool:
    return name == "response_format" and isinstance(value, Mapping) and value.get("type") == "text"


def _response_format(value: Any, field: str) -> Grammar:
    kind = _object(value, field).get("type")
    if kind == "json_object":
        return _schema(value.get("schema") or ANY_OBJECT, f"{field}.schema" if value.get("schema") else field)
    if kind != "json_schema":
        raise InvalidRequest(
            f"{field}.type is {str(kind)[:40]!a}; expected 'text', 'json_object' or 'json_schema'",
            param=f"{field}.type",
        )
    where = f"{field}.json_schema"
    named = _object(value.get("json_schema"), where)
    for key in named.keys() - _NAMED_KEYS:
        raise InvalidRequest(f"{where} holds {key[:40]!a}, which is not known", param=where)
    name, strict = named.get("name"), named.get("strict")
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidRequest(f"{where}.name must be 1 to 64 letters, digits, _ or -", param=f"{where}.name")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(f"{where}.strict must be true or false", param=f"{where}.strict")
    if named.get("schema") is None:
        raise missing(f"{where}.schema")
    return _schema(named["schema"], f"{where}.schema")


def _structured_outputs(value: Any, field: str) -> Grammar:
    value = {key: each for key, each in _object(value, field).items() if each is not None and each is not False}
    value = {key: each for key, each in value.items() if key not in _WITHOUT_EFFECT}
    for key in value.keys() - _OF_STRUCTURED.keys():
        raise Unsupported(f"{field}.{key[:40]} is not supported by this server", param=f"{field}.{key[:40]}")
    if len(value) != 1:
        raise InvalidRequest(f"{field} must hold exactly one of {', '.join(_OF_STRUCTURED)}", param=field)
    ((key, each),) = value.items()
    return _OF_STRUCTURED[key](each, f"{field}.{key}")


def _schema(value: Any, field: str) -> Grammar:
    """A schema, or its text."""
    if isinstance(value, str):
        try:
            value = orjson.loads(clean_text(value, field=field))
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"{field} is not JSON: {error}", param=field) from None
    return Grammar(GrammarKind.JSON_SCHEMA, schema_source(value, field), field)


def _any_object(value: Any, field: str) -> Grammar:
    if value is not True:
        raise InvalidRequest(f"{field} must be true or false", param=field)
    return _schema(ANY_OBJECT, field)


def _regex(value: Any, field: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, _text(value, field), field)


def _lark(value: Any, field: str) -> Grammar:
    return Grammar(GrammarKind.LARK, _text(value, field), field)


def _choice(value: Any, field: str) -> Grammar:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{field} must be a list of at least one text", param=field)
    texts = [_text(each, f"{field}[{i}]") for i, each in enumerate(value)]
    quoted = " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(texts))
    return Grammar(GrammarKind.LARK, f"start: {quoted}", field)


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{field} must be a text that is not empty", param=field)
    return clean_text(value, field=field)


def _object(value: Any, field: str) -> Mapping[str, Any]:
    if value is None:
        raise missing(field)
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{field} must be an object", param=field)
    return value


_Maker = Callable[[Any, str], Grammar]
_OF_STRUCTURED: dict[str, _Maker] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
    "json_object": _any_object,
}
_MAKERS: dict[str, _Maker] = {
    "response_format": _response_format,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _lark,
    "structured_outputs": _structured_outputs,
}
