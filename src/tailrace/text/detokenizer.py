"""Bytes of tokens to text, as they come: only whole characters leave, so no client sees half of one.

The joined output equals `all_bytes.decode("utf-8", "replace")` for any cut: invalid bytes become U+FFFD (one for each
maximal part, as in WHATWG's decoder), and an answer that ends inside a character ends with exactly one U+FFFD, the same
streamed and plain.
"""

from __future__ import annotations

from codecs import utf_8_decode


class Detokenizer:
    """Incremental UTF-8. `pending` are the bytes of an unfinished character, at most three."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = b""

    def push(self, data: bytes) -> str:
        data = self.pending + data
        text, used = utf_8_decode(data, "replace", False)
        self.pending = data[used:]
        return text

    def flush(self) -> str:
        """The end of the text: one U+FFFD if it ends inside a character, otherwise nothing."""
        text, _ = utf_8_decode(self.pending, "replace", True)
        self.pending = b""
        return text
