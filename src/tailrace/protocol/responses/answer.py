"""Token events as one of OpenAI's responses, plain or streamed.

    response.created, response.in_progress,
    response.output_item.added, ..., response.output_item.done    for each item: thoughts, a message, a call
    response.completed, response.incomplete or response.failed

Thoughts are the model's own words: in a reasoning item's `content`, or in its `summary` where one was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from tailrace.errors import TailraceError
from tailrace.observe.timings import Timings
from tailrace.protocol.ask import Ask
from tailrace.protocol.form import Form, Json, named_event
from tailrace.protocol.logprobs import chat_logprobs
from tailrace.protocol.outline import Change, Outline, Part, Verb
from tailrace.protocol.said import Said
from tailrace.text.parsers.delta import Kind
from tailrace.text.parsers.reasoning import Plain
from tailrace.types import FinishReason, TokenEvent, TokenLogprob, Usage

_LIMITS = ("rate_limit_error", "insufficient_quota")  # types of errors


class _Strand(NamedTuple):
    """How an item of a kind is told of: its id, the events of its one part (none for a call) and of the text in it."""

    prefix: str
    part: str
    text: str
    place: str
    form: str


_MESSAGE = _Strand("msg", "content_part", "output_text", "content_index", "output_text")
_CALL = _Strand("fc", "", "function_call_arguments", "", "")
_THOUGHTS = _Strand("rs", "content_part", "reasoning_text", "content_index", "reasoning_text")
_SUMMARY = _Strand("rs", "reasoning_summary_part", "reasoning_summary_text", "summary_index", "summary_text")


class ResponseAnswer(Form):
    """`response` is the whole object, once it has ended."""

    def __init__(self, ask: Ask, answer_id: str, created: int) -> None:
        self.id, self.ask = answer_id, ask
        self.response: Json | None = None
        self._created = created
        self._outline = Outline(Said((ask.reader or Plain)(), answer_id, ask.call_ids), blank=True)
        summarized = ask.about["response"]["reasoning"]["summary"]
        self._strands = {Kind.TEXT: _MESSAGE, Kind.CALL: _CALL, Kind.REASONING: _SUMMARY if summarized else _THOUGHTS}
        self._sent = 0  # events, with those before that `go_on` was told of
        self._created_told = self._begun = False

    def go_on(self, sent: int, *, created: bool) -> None:
        """Number the events from `sent` on; `created`: its readers know that there is a response."""
        self._sent, self._created_told = sent, created

    def collect(self, index: int, event: TokenEvent) -> None:
        self._outline.read(event)

    def body(self, usage: Usage, timings: Timings) -> bytes:
        return orjson.dumps(self._ended(usage, timings))

    def chunk(self, index: int, event: TokenEvent) -> bytes:
        return self._start() + b"".join(self._told(change) for change in self._outline.read(event))

    def end(self, usage: Usage, timings: Timings) -> bytes:
        response = self._ended(usage, timings)
        return self._event(response["status"], response=response)

    def failed(self, error: TailraceError) -> bytes:
        begun = self._response("in_progress", output=self._output())
        self.response = failed_body(begun, error.body())
        return self._start() + self._event("failed", response=self.response)

    # --- the response

    def _ended(self, usage: Usage, timings: Timings) -> Json:
        cut = self._outline.finish is FinishReason.LENGTH
        self.response = self._response(
            "incomplete" if cut else "completed",
            completed_at=None if cut else self._created + int(timings.total_ms / 1000),
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            output=self._output(),
            usage=self._counts(usage),
            timings=timings.body(),
        )
        return self.response

    def _response(self, status: str, **more: Any) -> Json:
        return response_body(self.id, self._created, status, self.ask.about["response"]) | more

    def _output(self) -> list[Json]:
        return [self._item(part, "completed" if part.whole else "incomplete") for part in self._outline.parts]

    def _counts(self, usage: Usage) -> Json:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._outline.said.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }

    # --- items

    def _item(self, part: Part, status: str, *, empty: bool = False) -> Json:
        """`empty`: as it begins."""
        head = {"id": self._item_id(part), "status": status}
        inside = [] if empty else [self._inside(part, part.text, part.logprobs)]
        if part.kind is Kind.TEXT:
            return {**head, "type": "message", "role": "assistant", "content": inside}
        if part.kind is Kind.CALL:
            called = {"call_id": self._outline.said.call_id(part.call), "name": part.name}
            return {**head, "type": "function_call", **called, "arguments": "" if empty else part.text}
        summarized = self._strands[part.kind] is _SUMMARY
        where = {"summary": inside, "content": []} if summarized else {"summary": [], "content": inside}
        return {**head, "type": "reasoning", **where}

    def _inside(self, part: Part, text: str, logprobs: list[TokenLogprob]) -> Json:
        form = {"type": self._strands[part.kind].form, "text": text}
        return {**form, "annotations": [], "logprobs": chat_logprobs(logprobs)} if part.kind is Kind.TEXT else form

    def _item_id(self, part: Part) -> str:
        return f"{self._strands[part.kind].prefix}_{self.id.removeprefix('resp_')}{part.index:02x}"

    # --- events

    def _start(self) -> bytes:
        if self._begun:
            return b""
        self._begun, begun = True, self._response("in_progress")
        told = b"" if self._created_told else self._event("created", response=begun)
        return told + self._event("in_progress", response=begun)

    def _told(self, change: Change) -> bytes:
        events = {Verb.OPEN: self._opens, Verb.ADD: self._grows, Verb.CLOSE: self._closes}[change.verb]
        return b"".join([self._event(kind, **fields) for kind, fields in events(change)])

    def _opens(self, change: Change) -> Iterator[tuple[str, Json]]:
        part, strand = change.part, self._strands[change.part.kind]
        item = self._item(part, "in_progress", empty=True)
        yield "output_item.added", {"output_index": part.index, "item": item}
        if strand.part:
            yield f"{strand.part}.added", {**self._place(part), "part": self._inside(part, "", [])}

    def _grows(self, change: Change) -> Iterator[tuple[str, Json]]:
        part = change.part
        logprobs = {"logprobs": chat_logprobs(change.logprobs)} if part.kind is Kind.TEXT else {}
        yield f"{self._strands[part.kind].text}.delta", {**self._place(part), "delta": change.text, **logprobs}

    def _closes(self, change: Change) -> Iterator[tuple[str, Json]]:
        part, strand = change.part, self._strands[change.part.kind]
        item = self._item(part, "completed" if part.whole else "incomplete")
        place = self._place(part)
        if part.kind is Kind.CALL:
            yield f"{strand.text}.done", {**place, "name": part.name, "arguments": part.text}
        else:
            inside = self._inside(part, part.text, part.logprobs)
            told = {key: value for key, value in inside.items() if key in ("text", "logprobs")}
            yield f"{strand.text}.done", {**place, **told}
            yield f"{strand.part}.done", {**place, "part": inside}
        yield "output_item.done", {"output_index": part.index, "item": item}

    def _place(self, part: Part) -> Json:
        strand = self._strands[part.kind]
        place = {"item_id": self._item_id(part), "output_index": part.index}
        return {**place, strand.place: 0} if strand.place else place

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._sent = self._sent, self._sent + 1
        return response_event(kind, number, **fields)


def response_body(response_id: str, created: int, status: str, shown: Json) -> Json:
    """A response without any output. `shown`: what it repeats of its request."""
    head = {"id": response_id, "object": "response", "created_at": created, "status": status}
    ends = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
    return {**head, **ends, **shown, "output": []}


def failed_body(begun: Json, body: Mapping[str, Any]) -> Json:
    """The response `begun`, ended by an error with this body."""
    error = body["error"]
    code = "rate_limit_exceeded" if error.get("type") in _LIMITS else "server_error"
    shown = {"code": code, "message": error["message"], "type": error.get("code"), "param": error.get("param")}
    return {**begun, "status": "failed", "error": shown}


def response_event(kind: str, number: int, **fields: Any) -> bytes:
    return named_event({"type": f"response.{kind}", "sequence_number": number, **fields})
