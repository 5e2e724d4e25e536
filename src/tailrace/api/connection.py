"""uvicorn's HTTP protocol with a bound on a request's head, which neither it nor its parser has: an endless URL or
header would fill the memory, and collecting it hold up every other connection."""

from __future__ import annotations

from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 256 * 1024  # bytes beyond the first read, by far more than any client sends


class BoundedHead(HttpToolsProtocol):
    """Answers 431 and closes the connection when a head grows beyond MAX_HEAD."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        begun = self._in_head
        super().data_received(data)
        if not (begun and self._in_head):
            self._head_bytes = 0
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD:
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def _refuse_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # not into the middle of another answer
            message = f"The request's URL and headers have more than {MAX_HEAD} bytes"
            error = {"message": message, "type": "invalid_request_error", "param": None, "code": "head_too_large"}
            body = orjson.dumps({"error": error})
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
            )
        self.transport.close()
