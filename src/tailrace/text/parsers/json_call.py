"""One call as JSON, `{"name": "f", "arguments": {...}}`, read character by character.

Keys come in any order; `parameters` is as good as `arguments`, and the call may stand in a `function` of another
object, as OpenAI's does. The arguments are passed on as they are written: brackets and strings are followed, not every
comma.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

WHITE = " \t\r\n"
MOST_BEFORE = 65_536  # characters before it is certain that this is a call

_NAME, _ARGUMENTS, _INNER = ("name",), ("arguments", "parameters"), ("function",)
_CLOSING = {"{": "}", "[": "]"}


class NotACall(Exception):
    """What was read is something else."""


class JsonSpan:
    """Where a JSON value ends."""

    __slots__ = ("_escaped", "_first", "_quoted", "_stack", "complete")

    def __init__(self) -> None:
        self._first = ""
        self._stack: list[str] = []
        self._quoted = self._escaped = False
        self.complete = False

    def take(self, char: str) -> bool:
        """Whether the character is part of the value. A number or word ends in front of the first that is not."""
        if self._quoted:
            self._in_string(char)
            return True
        if not self._first:
            self._first = char
        elif not self._stack and char in ",]}" + WHITE:
            self.complete = True
            return False
        if char == '"':
            self._quoted = True
        elif char in _CLOSING:
            self._stack.append(_CLOSING[char])
        elif self._stack and char == self._stack[-1]:
            self._stack.pop()
            self.complete = not self._stack
        return True

    def _in_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._quoted = False
            self.complete = not self._stack


class JsonCall:
    """Feed it with `take`. `announced`: it is certain that this is a call, of `name`. `arguments` are what was read of
    them since the last look."""

    def __init__(self, names: Collection[str], name: str = "") -> None:
        """`name`: it is known already, and what comes is the arguments alone."""
        self._names = names
        self._step: Callable[[str], bool] = self._value if name else self._open
        self._alone = bool(name)
        self._key = _ARGUMENTS[0] if name else ""
        self._span = JsonSpan()
        self._span_text: list[str] = []
        self._inner = False
        self._seen = False  # arguments
        self._size = 0
        self.name = name
        self.announced = bool(name)
        self.arguments = ""
        self.done = False

    def take(self, char: str) -> bool:
        """Whether the character is part of it; after the first that is not, nothing is. Raises NotACall."""
        self._size += 1
        if self._size > MOST_BEFORE and not self.announced:
            raise NotACall
        try:
            return self._step(char)
        except NotACall:
            if not self.announced:
                raise
            self._end()
            return False

    def take_arguments(self) -> str:
        text, self.arguments = self.arguments, ""
        return text

    # --- one step for each place in the object

    def _open(self, char: str) -> bool:
        self._expect(char == "{")
        self._step = self._before_key
        return True

    def _before_key(self, char: str) -> bool:
        if char == '"':
            self._start_span(self._in_key)
            self._in_key(char)
        elif char == "}":
            self._close()
        else:
            self._expect(char in WHITE)
        return True

    def _in_key(self, char: str) -> bool:
        self._span.take(char)
        self._span_text.append(char)
        if self._span.complete:
            self._key = self._decoded()
            self._step = self._colon
        return True

    def _colon(self, char: str) -> bool:
        if char == ":":
            self._step = self._before_value
        else:
            self._expect(char in WHITE)
        return True

    def _before_value(self, char: str) -> bool:
        if char in WHITE:
            return True
        if self._key in _INNER and char == "{" and not self._inner:
            self._inner = True
            self._step = self._before_key
            return True
        self._start_span(self._value)
        return self._value(char)

    def _value(self, char: str) -> bool:
        if self._alone and not self._span_text and char in WHITE:
            return True
        taken = self._span.take(char)
        if taken:
            self._span_text.append(char)
            if self._key in _ARGUMENTS:
                self._argument(char)
        if self._span.complete:
            self._end_value()
        return taken or self._step(char)

    def _after_value(self, char: str) -> bool:
        if char == ",":
            self._step = self._before_key
        elif char == "}":
            self._close()
        else:
            self._expect(char in WHITE)
        return True

    # --- parts

    def _start_span(self, step: Callable[[str], bool]) -> None:
        self._span, self._span_text = JsonSpan(), []
        self._step = step

    def _argument(self, char: str) -> None:
        if self._seen or self._span_text[0] != "{":
            return
        self.arguments += char
        self.announced = self.announced or bool(self.name)

    def _end_value(self) -> None:
        if self._key in _NAME and not self.name:
            name = self._decoded()
            self._expect(name in self._names)
            self.name = name
            self.announced = bool(self.arguments)
        elif self._key in _ARGUMENTS and not self._seen:
            self._seen = True
            if self._span_text[0] != "{":
                self.arguments += _as_object("".join(self._span_text))
                self.announced = bool(self.name)
        if self._alone:
            self._end()
        else:
            self._step = self._after_value

    def _decoded(self) -> str:
        try:
            value = json.loads("".join(self._span_text), strict=False)
        except ValueError:
            raise NotACall from None
        self._expect(isinstance(value, str))
        return str(value)

    def _close(self) -> None:
        if self._inner:
            self._inner = False
            self._step = self._after_value
            return
        self._expect(bool(self.name))
        self._end()

    def _end(self) -> None:
        self.announced = self.done = True
        if not self._seen and not self.arguments:
            self.arguments = "{}"
        self._seen = True

    def _expect(self, holds: bool) -> None:
        if not holds:
            raise NotACall


def _as_object(text: str) -> str:
    """Arguments that are no object: the JSON text of one, nothing at all, or whatever the model means by it."""
    if text.startswith('"'):
        try:
            inner = str(json.loads(text, strict=False))
            inner.encode()  # half a surrogate pair cannot be sent
        except ValueError:
            return text
        text = inner
    return "{}" if text.strip() in ("", "null") else text
