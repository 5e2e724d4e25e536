"""A batch's input, read piece by piece: lines of JSON to lines of a job, and what is wrong with them, by number.

Nothing of a file starts unless all of it is right; what a model makes of a line is not asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from tailrace.database.job import NewLine
from tailrace.errors import ModelNotFound
from tailrace.frozen import frozen

MOST_LINES = 50_000
MOST_ERRORS = 50  # that are told, after which nothing more is read
_MOST_ID = 512  # characters of a custom_id
_BOM = b"\xef\xbb\xbf"

Find = Callable[[str | None], str]  # the name that serves what `model` says; raises ModelNotFound


@frozen
class LineError:
    code: str
    message: str
    line: int | None = None  # counted from 1
    param: str | None = None

    def body(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line}


class InputReader:
    """`feed` the file until it is `over`, then `end`; both return lines. With `errors` none of them may run."""

    def __init__(self, endpoint: str, find: Find, *, most_bytes: int, most_lines: int = MOST_LINES) -> None:
        """`most_bytes`: in a line."""
        self.errors: list[LineError] = []
        self.count = 0  # of lines that hold something
        self.over = False  # there is no use in reading on
        self._endpoint = endpoint
        self._find = find
        self._most_bytes = most_bytes
        self._most_lines = most_lines
        self._line = 0
        self._rest = b""
        self._ids: dict[str, int] = {}

    def feed(self, data: bytes) -> list[NewLine]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        found = list(self._lines(whole))
        if len(self._rest) > self._most_bytes:  # nobody looks for its end
            self.errors.append(self._too_long(self._line + 1))
            self.over = True
        return found

    def end(self) -> list[NewLine]:
        found = list(self._lines([self._rest] if self._rest else []))
        if not (self.count or self.errors):
            self.errors.append(LineError("empty_file", "The file holds no requests"))
        return found

    def _lines(self, whole: list[bytes]) -> Iterator[NewLine]:
        for raw in whole:
            self._line += 1
            data = (raw.removeprefix(_BOM) if self._line == 1 else raw).strip()
            if self.over or not data:
                continue
            self.count += 1
            made = self._one(data)
            if isinstance(made, LineError):
                self.errors.append(made)
                self.over = len(self.errors) >= MOST_ERRORS
            else:
                yield made

    def _one(self, data: bytes) -> NewLine | LineError:
        here = self._line
        if self.count > self._most_lines:
            return LineError("too_many_lines", f"The file has more than {self._most_lines} requests", here)
        if len(data) > self._most_bytes:
            return self._too_long(here)
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            return LineError("invalid_json_line", f"This line is not parseable as valid JSON: {error}", here)
        if not isinstance(value, dict):
            return LineError("invalid_json_line", "The line must be a JSON object", here)
        return self._envelope(value, here) or self._request(value, here)

    def _envelope(self, value: dict[str, Any], here: int) -> LineError | None:
        custom_id, method, url = value.get("custom_id"), value.get("method"), value.get("url")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MOST_ID or "\0" in custom_id:
            text = f"custom_id must be a text of 1 to {_MOST_ID} characters"
            return LineError("invalid_custom_id", text, here, "custom_id")
        if method != "POST":
            return LineError("invalid_method", f"method must be 'POST', not {_shown(method)}", here, "method")
        if url != self._endpoint:
            text = f"url must be the batch's endpoint {self._endpoint}, not {_shown(url)}"
            return LineError("invalid_url", text, here, "url")
        first = self._ids.setdefault(custom_id, here)
        if first != here:
            text = f"custom_id {_shown(custom_id)} is that of line {first} too"
            return LineError("duplicate_custom_id", text, here, "custom_id")
        return None

    def _request(self, value: dict[str, Any], here: int) -> NewLine | LineError:
        body = value.get("body")
        if not isinstance(body, dict):
            return LineError("invalid_body", "body must be an object", here, "body")
        model = body.get("model")
        if not isinstance(model, str | None):
            return LineError("invalid_body", "body.model must be a text", here, "body.model")
        try:
            served = self._find(model)
            text = orjson.dumps(body).decode()
        except ModelNotFound as error:
            return LineError("model_not_found", error.message, here, "body.model")
        except (orjson.JSONEncodeError, RecursionError):
            return LineError("invalid_body", "body is nested too deeply", here, "body")
        return NewLine(self.count - 1, value["custom_id"], self._endpoint, served, text)

    def _too_long(self, here: int) -> LineError:
        return LineError("line_too_long", f"The line has more than {self._most_bytes} bytes", here)


def _shown(value: object) -> str:
    return ascii(value)[:80]
