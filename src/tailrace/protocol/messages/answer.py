"""Token events as one of Anthropic's messages, plain or streamed.

    message_start, ping,
    content_block_start, content_block_delta..., content_block_stop    for each block
    message_delta, message_stop

A call's input that no grammar holds to JSON comes in one piece, once it is whole. `usage.input_tokens` leaves out what
the prefix cache had, as Anthropic counts.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import orjson
from pydantic_core import from_json

from tailrace.errors import TailraceError
from tailrace.observe.timings import Timings
from tailrace.protocol.ask import Ask
from tailrace.protocol.form import Form, Json, named_event
from tailrace.protocol.messages.errors import error_body
from tailrace.protocol.outline import Change, Outline, Part, Verb
from tailrace.protocol.said import TOOL_CALLS, Said
from tailrace.text.parsers.delta import Kind
from tailrace.text.parsers.reasoning import Plain
from tailrace.types import FinishReason, TokenEvent, Usage

_TYPES = {Kind.TEXT: "text", Kind.REASONING: "thinking", Kind.CALL: "tool_use"}


class MessageAnswer(Form):
    ping = named_event({"type": "ping"})

    def __init__(self, ask: Ask, answer_id: str, created: int) -> None:
        self._ask = ask
        self._id, self._model = answer_id, ask.requests[0].model
        said = Said((ask.reader or Plain)(), answer_id, ask.call_ids, "toolu_")
        self._outline = Outline(said, hold=ask.requests[0].grammar is None)
        self._begun = False

    def collect(self, index: int, event: TokenEvent) -> None:
        self._outline.read(event)

    def body(self, usage: Usage, timings: Timings) -> bytes:
        content = [self._block(part) for part in self._outline.parts]
        message = self._message(content, self._reason(), self._counts(usage))
        return orjson.dumps({**message, "timings": timings.body()})

    def chunk(self, index: int, event: TokenEvent) -> bytes:
        begin = b"" if self._begun else self._start(event.cached_tokens or 0)
        return begin + b"".join(self._event(change) for change in self._outline.read(event))

    def end(self, usage: Usage, timings: Timings) -> bytes:
        delta = {**self._reason(), "stop_details": None, "container": None}
        counts = {key: value for key, value in self._counts(usage).items() if key not in _FIRST_ONLY}
        last = {"type": "message_delta", "delta": delta, "usage": counts, "timings": timings.body()}
        return named_event(last) + named_event({"type": "message_stop"})

    def failed(self, error: TailraceError) -> bytes:
        return named_event(error_body(error))

    # --- streamed

    def _start(self, cached: int) -> bytes:
        self._begun = True
        usage = self._counts(Usage(self._ask.prompt_tokens, 0, cached))
        message = self._message([], {"stop_reason": None, "stop_sequence": None}, usage)
        return named_event({"type": "message_start", "message": message}) + self.ping

    def _event(self, change: Change) -> bytes:
        part = change.part
        if change.verb is Verb.OPEN:
            block = self._opening(part)
            return named_event({"type": "content_block_start", "index": part.index, "content_block": block})
        if change.verb is Verb.ADD:
            return self._delta(part, _addition(part.kind, change.text)) if self._shows(part) else b""
        signed = b""
        if part.kind is Kind.REASONING:
            signed = self._delta(part, {"type": "signature_delta", "signature": _signature(part)})
        return signed + named_event({"type": "content_block_stop", "index": part.index})

    def _delta(self, part: Part, delta: Json) -> bytes:
        return named_event({"type": "content_block_delta", "index": part.index, "delta": delta})

    def _opening(self, part: Part) -> Json:
        if part.kind is Kind.CALL:
            return self._called(part, {})
        return {"type": "text", "text": ""} if part.kind is Kind.TEXT else _thought("", "")

    # --- shared

    def _shows(self, part: Part) -> bool:
        return part.kind is not Kind.REASONING or not self._ask.about.get("thoughts_omitted")

    def _block(self, part: Part) -> Json:
        if part.kind is Kind.TEXT:
            return {"type": "text", "text": part.text}
        if part.kind is Kind.REASONING:
            return _thought(part.text if self._shows(part) else "", _signature(part))
        return self._called(part, _input(part.text))

    def _called(self, part: Part, value: Any) -> Json:
        return {"type": "tool_use", "id": self._outline.said.call_id(part.call), "name": part.name, "input": value}

    def _message(self, content: list[Json], reason: Json, usage: Json) -> Json:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model}
        return {**head, "content": content, **reason, "stop_details": None, "container": None, "usage": usage}

    def _reason(self) -> Json:
        outline = self._outline
        assert outline.finish is not None, "a message has a reason once it has ended"
        reason, sequence = outline.said.reason(outline.finish), None
        if outline.finish is FinishReason.STOP and isinstance(outline.stop_reason, str):
            reason, sequence = "stop_sequence", outline.stop_reason
        return {"stop_reason": _REASONS.get(reason, reason), "stop_sequence": sequence}

    def _counts(self, usage: Usage) -> Json:
        counts: Json = {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "service_tier": "standard",
        }
        if self._outline.said.reasons:
            counts["output_tokens_details"] = {"thinking_tokens": self._outline.said.reasoning_tokens}
        return counts


_REASONS = {"stop": "end_turn", "length": "max_tokens", TOOL_CALLS: "tool_use"}
_FIRST_ONLY = frozenset(("service_tier",))


def _addition(kind: Kind, text: str) -> Json:
    if kind is Kind.CALL:
        return {"type": "input_json_delta", "partial_json": text}
    return {"type": f"{_TYPES[kind]}_delta", _TYPES[kind]: text}


def _thought(text: str, signature: str) -> Json:
    return {"type": "thinking", "thinking": text, "signature": signature}


def _signature(part: Part) -> str:
    """Of the thoughts, for clients that look for one; nothing here asks for it again."""
    return blake2b(part.text.encode(), digest_size=24).hexdigest()


def _input(text: str) -> Any:
    """The object; of one that was cut, what is there of it, as the streams of Anthropic's clients read it."""
    try:
        value = from_json(text, allow_inf_nan=False, allow_partial=True) if text else {}
        return orjson.Fragment(json.dumps(value, ensure_ascii=False).encode())
    except ValueError:  # a number of thousands of digits
        return {}
