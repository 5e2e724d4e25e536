"""Request body to a checked model: JSON errors and type errors become one clear sentence naming the field.

A duplicate key takes its last value, as in most JSON readers. NaN and Infinity are not JSON and are refused. So is what
is nested deeper than JSON writers go, as parts of a body are written again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from tailrace.errors import InvalidRequest

_BRANCHES = frozenset(("str", "int", "float", "bool", "list", "dict"))
_OBJECT = re.compile(r"a valid dictionary( or instance of \w+)?")  # JSON's word for it
_SUBJECT = re.compile(r"^(Input|List|String|Dictionary) should")
_MAX_DEPTH = 200  # orjson writes 254, and an answer may repeat a part of the body some levels down
_MAX_NAMED = 8  # unknown fields that a warning names
_MAX_KEY = 64  # characters of a client's own key in a message

T = TypeVar("T")


class _FirstComplaint:
    """As pydantic's FailFast, which cannot stand in a union as it has no hash."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        assert schema["type"] == "list"
        return {**schema, "fail_fast": True}


# A list given up at its first wrong entry: a body may hold a million, and every complaint about one costs.
Items = Annotated[list[T], _FirstComplaint()]


# What checks values is built when it is first asked for, or by a server that is ready: not while it starts.
_EXACT = ConfigDict(strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True)


class Shape(BaseModel):
    """Base of request bodies: exact types (no "5" for 5), finite numbers, unknown fields kept to be warned about."""

    model_config = ConfigDict(**_EXACT, extra="allow")


class Part(BaseModel):
    """Base of objects inside a body: as Shape, but unknown fields are dropped."""

    model_config = ConfigDict(**_EXACT, extra="ignore")


S = TypeVar("S", bound=Shape)


def shapes() -> Iterator[type[BaseModel]]:
    """Those of bodies, without what they have in common; one that is made of several comes several times."""
    return (shape for shape in _below(Shape) if not shape.__subclasses__())


def parse(shape: type[S], data: bytes) -> S:
    """Raises InvalidRequest for anything that is not a JSON object of this shape."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object", code="invalid_json")
    if data.count(b"{") + data.count(b"[") > _MAX_DEPTH and _deep(value):
        raise InvalidRequest(f"The request body is nested more than {_MAX_DEPTH} levels deep", code="invalid_json")
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise explain(error) from None


def _deep(value: object) -> bool:
    """Level by level: a body may hold a million values, but few objects and lists."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        inside = (node.values() if isinstance(node, dict) else node for node in level)
        level = [each for values in inside for each in values if isinstance(each, dict | list)]  # type: ignore[attr-defined]
        if not level:
            return False
    return True


def explain(error: ValidationError) -> InvalidRequest:
    """The first field pydantic complains about, as one sentence.

    A value that may have several forms brings a complaint for each: the deepest one is of the form it has; complaints
    about the value as a whole are joined with "or".
    """
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    outer = _path(errors[0]["loc"])
    related = [e for e in errors if _path(e["loc"]).startswith(outer)]
    deepest = max(related, key=lambda e: len(e["loc"]))
    path = _path(deepest["loc"])
    if path == outer:
        deepest = errors[0]
    if deepest["type"] == "missing":
        return missing(path)
    reasons = [_reason(e["msg"]) for e in related if _path(e["loc"]) == path]
    return InvalidRequest(f"{path} {' or '.join(dict.fromkeys(reasons))}", param=path, code="invalid_value")


def _reason(message: str) -> str:
    message = _OBJECT.sub("an object", message.removeprefix("Value error, ")).replace(" after validation", "")
    return _SUBJECT.sub("should", message)  # which the field is


def _path(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "content", "str") -> messages[0].content; names of union branches are not part of it."""
    path = str(location[0]) if location else "body"
    branches = _BRANCHES | {part.__name__ for part in _below(Part)}
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in branches:
            path += f".{part[:_MAX_KEY]}"
    return path


def _below(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for shape in base.__subclasses__():
        yield shape
        yield from _below(shape)


def missing(field: str) -> InvalidRequest:
    return InvalidRequest(f"{field} is missing", param=field, code="missing_field")


def needed(value: str | None, field: str) -> str:
    """The value. Raises InvalidRequest naming the field when it is absent."""
    if value is None:
        raise missing(field)
    return value


def refused_field(shape: Shape, refused: Mapping[str, Sequence[object]], without_effect: Collection[str]) -> str | None:
    """Take the fields that an API knows and the shape does not out of what would be warned about. Returns the first of
    `refused` that asks for something, which is anything but null and the values listed with it."""
    extra = shape.model_extra
    if not extra:
        return None
    for name in [name for name in extra if name in refused or name in without_effect]:
        value = extra.pop(name)
        if value is not None and name in refused and value not in refused[name]:
            return name
    return None


def unknown_fields(shape: Shape) -> str | None:
    """A header value naming the fields that nothing here knows; None when there are none. null means absent."""
    return ignored(name for name, value in (shape.model_extra or {}).items() if value is not None)


def ignored(unknown: Iterable[str]) -> str | None:
    """That value for names of fields, of a form too."""
    names = sorted(unknown)
    if not names:
        return None
    shown = [ascii(name[:64])[1:-1] for name in names[:_MAX_NAMED]]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"ignored unknown fields: {', '.join(shown)}{more}"
