"""Values that never change and cost little to make: `@frozen` in the place of `@dataclass(frozen=True, slots=True)`.

A frozen dataclass sets each field through `object.__setattr__`, because its own refuses: 0.3 us a field, and a request
makes forty such objects before its first token. Here a new object belongs to a twin class without that refusal until
its fields are set. Everything else - equality, hash, text, `replace`, the refusal itself - is the dataclass's.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
_ABSENT = object()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Of a class without bases and without `__post_init__`, whose fields are all arguments."""
    made: Any = dataclass(frozen=True, slots=True)(cls)
    twin = type(f"_{made.__name__}", (), {"__slots__": made.__slots__, "__module__": made.__module__})
    made.__init__ = _init(fields(made), {"_made": made, "_twin": twin, "_set": object.__setattr__, "_absent": _ABSENT})
    result: type[T] = made
    return result


def _init(found: tuple[Field[Any], ...], names: dict[str, Any]) -> Any:
    arguments, lines = ["self"], ["_set(self, '__class__', _twin)"]
    for each in found:
        given, put = each.name, each.name
        if each.default is not MISSING:
            names[f"_default_{given}"] = each.default
            given += f"=_default_{given}"
        elif each.default_factory is not MISSING:
            names[f"_new_{given}"] = each.default_factory
            put = f"_new_{given}() if {given} is _absent else {given}"
            given += "=_absent"
        arguments.append(given)
        lines.append(f"self.{each.name} = {put}")
    body = "\n ".join([*lines, "self.__class__ = _made"])
    exec(f"def __init__({', '.join(arguments)}):\n {body}", names)
    return names["__init__"]
