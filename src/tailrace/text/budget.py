"""What one rendering of a chat template may cost, and the checks of a value's size before it is made.

Three bounds: steps, which end nested loops the same way on every machine; characters made, and the size of any one
value; a deadline, for what is slow without being many steps (searching large strings). Servers count the thread's own
processor time, so that a busy machine refuses nobody.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any

from jinja2.utils import Namespace

from tailrace.clock import Clock

MAX_STEPS = 1_000_000
MAX_CHARS = 64_000_000  # made in one rendering, temporary or not
MAX_VALUE = 8_000_000  # characters of one value
MAX_ELEMENTS = 100_000  # of one structure, counted through all levels
MAX_RANGE = 10_000
MAX_BITS = 4096  # of a number
MAX_SECONDS = 2.0
_LOOK = 16  # steps between looks at the clock, which take longer than a step

# Widths in printf and format patterns: four digits, taken from an argument, or nested.
_WIDE_PATTERN = re.compile(r"\d{4}|%[^%a-zA-Z]*\*|\{[^{}]*\{")


class WorkExceeded(Exception):
    """The rendering costs more than allowed; the message says what."""


class Budget:
    """What one rendering has cost so far. One for each rendering, so that renderings may run at the same time."""

    __slots__ = ("_chars", "_clock", "_deadline", "_steps")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadline = clock.now() + MAX_SECONDS
        self._steps = MAX_STEPS
        self._chars = MAX_CHARS

    def spend(self, chars: int = 0) -> None:
        """A step that made so many characters."""
        self._steps -= 1
        self._chars -= chars
        if self._steps < 0:
            raise WorkExceeded(f"it takes more than {MAX_STEPS} steps")
        if self._chars < 0:
            raise WorkExceeded(f"it makes more than {MAX_CHARS} characters")
        if not self._steps % _LOOK and self._clock.now() > self._deadline:
            raise WorkExceeded(f"it takes longer than {MAX_SECONDS:g} seconds")

    def take(self, value: Any) -> Any:
        """`value`, which was just made, after it has been paid for. Views of a dictionary become lists, as they hide
        what they contain."""
        if isinstance(value, KeysView | ValuesView | ItemsView):
            value = list(value)
        if isinstance(value, str):
            check_size(len(value))
            self.spend(len(value))
        elif isinstance(value, list | tuple | dict):
            weight(value)
            self.spend(len(value))
        elif isinstance(value, Iterator):
            return self._counted(value)
        else:
            self.spend()
        return value

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.spend()
            yield item


def check_size(chars: int, elements: int = 0) -> None:
    if chars > MAX_VALUE:
        raise WorkExceeded(f"it makes a value of more than {MAX_VALUE} characters")
    if elements > MAX_ELEMENTS:
        raise WorkExceeded(f"it makes a structure of more than {MAX_ELEMENTS} elements")


def weight(value: Any) -> int:
    """Elements and characters of a structure as if written out, in which something may be contained many times over.

    Since every structure is weighed when it is made, none exists whose writing out or comparing would never end. A
    namespace can change afterwards, so it may not be inside.
    """
    chars, elements, waiting = 0, 0, [value]
    while waiting:
        item = waiting.pop()
        elements += 1
        if isinstance(item, str):
            chars += len(item)
        elif isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, Namespace):
            raise WorkExceeded("it uses a namespace as a value")
        check_size(chars, elements + len(waiting))
    return chars + elements


def check_sum(left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        check_size(len(left) + len(right))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        check_size(0, len(left) + len(right))


def check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(value, str):
            check_size(len(value) * times)
        elif isinstance(times, int) and isinstance(value, list | tuple):
            check_size(0, len(value) * times)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * abs(right))


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise WorkExceeded(f"it makes a number of more than {MAX_BITS} bits")


def check_pattern(pattern: str, values: Any) -> None:
    """For printf and format patterns, where each field may write all of the values."""
    if _WIDE_PATTERN.search(pattern):
        raise WorkExceeded("it formats with a width that is large or not written out")
    check_size(len(pattern) + weight(values) * (pattern.count("%") + pattern.count("{")))


def check_join(separator: str, parts: list[Any]) -> None:
    check_size(len(separator) * len(parts) + sum(len(part) for part in parts if isinstance(part, str)))


def check_replace(text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        check_size(len(text) + text.count(old) * len(new))
