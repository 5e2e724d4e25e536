"""Values that never change and cost little: `@frozen` in the place of `@dataclass(frozen=True, slots=True)`.

They are dataclasses to everyone (`fields`, `replace`, `asdict`), made otherwise. A frozen dataclass sets each field
through `object.__setattr__`, because its own refuses: 0.3 us a field, and a request makes forty such objects before its
first token. Here a new object belongs to a twin class without that refusal until its fields are set. And a dataclass
compiles seven methods for each class, which was a fifth of the time that importing a server took; here it is one, the
others are shared or closures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")
_ABSENT = object()


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Of a class without bases and without `__post_init__`, whose fields are all arguments, compared and shown."""
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # or dataclass would look at the signature to write one
    found = fields(dataclass(init=False, repr=False, eq=False)(cls))  # type: ignore[arg-type]
    names = tuple(each.name for each in found)
    made = _slotted(cls, names)
    twin = type(f"_{cls.__name__}", (), {"__slots__": names, "__module__": cls.__module__})
    made.__init__ = _init(found, {"_made": made, "_twin": twin, "_set": object.__setattr__, "_absent": _ABSENT})
    made.__repr__ = made.__dict__.get("__repr__", _text)
    made.__eq__, made.__hash__ = _compared(made, names)
    made.__setattr__ = made.__delattr__ = _refuse
    made.__getstate__, made.__setstate__ = _state, _restore
    result: type[T] = made
    return result


def _slotted(cls: type, names: tuple[str, ...]) -> Any:
    """The same class with slots for its fields, whose defaults would be in their way."""
    left = {name: each for name, each in vars(cls).items() if name not in {*names, "__dict__", "__weakref__"}}
    made = type(cls)(cls.__name__, cls.__bases__, {**left, "__slots__": names})
    made.__qualname__ = cls.__qualname__
    return made


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


def _compared(made: type, names: tuple[str, ...]) -> tuple[Callable[[Any, object], Any], Callable[[Any], int]]:
    key = attrgetter(*names) if names else lambda _: ()

    def equal(self: Any, other: object) -> Any:
        return key(self) == key(other) if other.__class__ is made else NotImplemented

    def hashed(self: Any) -> int:
        return hash(key(self))

    return equal, hashed


def _text(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse(self: Any, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"{name} of a {self.__class__.__name__} cannot change")


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__slots__]


def _restore(self: Any, state: list[Any]) -> None:
    for name, each in zip(self.__slots__, state, strict=True):
        object.__setattr__(self, name, each)
