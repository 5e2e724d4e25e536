"""Log-probabilities in the two formats of OpenAI's API. Values below -9999 (also minus infinity) are sent as -9999."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from tailrace.types import TokenLogprob

_FLOOR = -9999.0


def chat_logprobs(tokens: Iterable[TokenLogprob]) -> list[dict[str, object]]:
    """Entries of `logprobs.content`: the bytes are exact, `token` marks what is no character by itself."""
    return [
        {
            **_chat_entry(token.data, token.logprob),
            "top_logprobs": [_chat_entry(data, logprob) for _, data, logprob in token.top],
        }
        for token in tokens
    ]


def _chat_entry(data: bytes, logprob: float | None) -> dict[str, object]:
    return {"token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)}


class CompletionLogprobs:
    """The columns of a completion's `logprobs`. One per choice, so that text offsets run on from chunk to chunk."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None  # few answers have any
        self._offset = 0

    def columns(self, tokens: Iterable[TokenLogprob]) -> dict[str, list[object]]:
        """Tokens that are not whole characters are written as `bytes:\\xNN`, so that no two look alike."""
        names: list[object] = []
        values: list[object] = []
        tops: list[object] = []
        offsets: list[object] = []
        decoder = self._decoder = self._decoder or codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            names.append(_name(token.data))
            values.append(_finite(token.logprob))
            tops.append(_top(token))
            offsets.append(self._offset)
            self._offset += len(decoder.decode(token.data))
        return {"tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _top(token: TokenLogprob) -> dict[str, float | None] | None:
    if token.logprob is None:
        return None
    top = {_name(data): _finite(logprob) for _, data, logprob in token.top}
    top.setdefault(_name(token.data), _finite(token.logprob))
    return top


def _name(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(float(logprob), _FLOOR)
