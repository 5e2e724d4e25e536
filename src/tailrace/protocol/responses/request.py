"""/v1/responses: what it takes, as the chat request that it means.

`input`, behind what `previous_response_id` leads to, becomes the messages. With `truncation: auto` the oldest turns are
dropped until the prompt fits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, Field, PrivateAttr

from tailrace.errors import ContextLengthExceeded, InvalidRequest, TailraceError, Unsupported
from tailrace.frozen import frozen
from tailrace.protocol.ask import Ask, Template, TextModel
from tailrace.protocol.body import Items, Part, refused_field
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.names import Names
from tailrace.protocol.prompt import Salted
from tailrace.protocol.responses.items import Item, Json, Talk, kept_items, turns
from tailrace.protocol.responses.tools import Choice, ResponseTool, chat_choice, chat_tools
from tailrace.protocol.sampling import Asking, Further, Limits, task_of
from tailrace.protocol.tokenize import TokenizeRequest
from tailrace.text.parsers.dialect import Dialect
from tailrace.types import Tokens, Traits

LOGPROBS = "message.output_text.logprobs"
_INCLUDED = frozenset(
    (
        LOGPROBS,
        "reasoning.encrypted_content",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    )
)  # but for the first they ask for what there is never any of here
_MOST_REFERENCES = 128  # of an input: each may be looked up
_MOST_PAIRS, _MOST_KEY, _MOST_VALUE = 16, 64, 512  # of metadata

# Documented fields that would change what is answered, and the values of them that ask for nothing.
_REFUSED: dict[str, tuple[object, ...]] = {
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
    "moderation": (),
    "image": (),
    "access_programs": (),
}
_WHY = {
    "conversation": "conversation is not supported; use previous_response_id",
    "prompt": "prompt is not supported: there are no stored prompts here; use instructions and input",
}
_WITHOUT_EFFECT = frozenset(("prompt_cache_retention", "prompt_cache_options", "background_options"))

_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tool_choice.function.name": "tool_choice.name",
    "logprobs": "include",
    "top_logprobs": "top_logprobs",
}


class ReasoningConfig(Part):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None

    def summarized(self) -> str | None:
        return self.summary or self.generate_summary


class Format(Part):
    model_config = ConfigDict(extra="allow")

    type: str


class TextConfig(Part):
    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Obfuscation(Part):
    include_obfuscation: bool | None = None


@frozen
class History:
    """Earlier responses, oldest first, each as its input items and itself, in JSON."""

    kept: Sequence[tuple[bytes, bytes]] = ()

    def items(self) -> list[Json]:
        """All that was said."""
        return [item for given, made in self.kept for item in (*orjson.loads(given), *orjson.loads(made)["output"])]


class ResponsesRequest(Salted, Further, Asking):
    model: str | None = Field(None, description="Name of a served model; absent: the one this server serves.")
    input: str | Items[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    max_tool_calls: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: Items[str] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: Items[ResponseTool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    stream_options: Obfuscation | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = Field(None, description="priority: sooner, where the key may; flex: when there is time")
    priority: int | None = Field(None, description="Below 0 sooner, where the key may; above 0 when there is time.")
    background: bool | None = None
    user: str | None = None
    safety_identifier: str | None = Field(None, max_length=64)
    prompt_cache_key: str | None = Field(None, max_length=64)
    _history: History = PrivateAttr(default_factory=History)
    _referred: dict[str, Json] = PrivateAttr(default_factory=dict)
    _names: Names = PrivateAttr(default_factory=lambda: Names({}))
    _uses_tools: bool = PrivateAttr(default=False)

    def check(self, limits: Limits) -> None:
        self._refuse()
        if self.background and not self.stored:
            raise InvalidRequest("background: true needs store: true: it is read from where it is kept", param="store")
        _check_metadata(self.metadata or {})
        if not self.input and self.previous_response_id is None:
            raise InvalidRequest("input must hold at least one item", param="input", code="missing_field")
        for name in self.include or []:
            if name not in _INCLUDED:
                raise InvalidRequest(
                    f"include holds {name[:64]!a}; known are {', '.join(sorted(_INCLUDED))}", param="include"
                )
        if self.top_logprobs and not self.scored:
            raise InvalidRequest(f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs")
        if self.reasoning and self.reasoning.summarized() == "concise":
            raise Unsupported(
                "reasoning.summary is 'concise'; a model's own thoughts are given whole: 'auto' or 'detailed'",
                param="reasoning.summary",
            )
        if self.text and self.text.verbosity in ("low", "high"):
            raise Unsupported(
                "text.verbosity must be 'medium' or absent: say in the instructions how long answers should be",
                param="text.verbosity",
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed with stream: true", param="stream_options")
        names = Names(_NAMES)
        with names.renaming():
            self._chat([], names).check(limits)

    @property
    def scored(self) -> bool:
        return LOGPROBS in (self.include or [])

    def remember(self, history: History) -> None:
        """What `previous_response_id` leads to."""
        self._history = history

    def ask(
        self, request_id: str, template: Template | None, tokenizer: TextModel, limits: Limits, dialect: Dialect
    ) -> Ask:
        """Raises RequestError."""
        own = self.own_items(request_id)
        placed = self._placed(own)

        def attempt(first: int) -> Ask:
            return self._attempt(_without(placed, first), request_id, (template, tokenizer, limits, dialect))

        ask = _fitting(attempt, [0, *turns([item for item, _ in placed])]) if self._cuts else attempt(0)
        return replace(ask, about={"response": self.shown(ask.requests[0].model), "input": own, "store": self.stored})

    def tokens(self, template: Template | None, tokenizer: TextModel, limits: Limits, dialect: Dialect) -> Tokens:
        """The prompt that a response with the same fields has, uncut. Raises RequestError."""
        talk = Talk(self.instructions, self._placed(self.own_items("")))
        names = talk.names
        for path, own in _NAMES.items():
            names[path] = own
        fields = {**self._fields(names), "messages": talk.messages}
        with names.renaming():
            return TokenizeRequest.model_validate(fields).tokens(template, tokenizer, limits, dialect)

    def references(self) -> list[str]:
        """Ids of kept items that the input names. Raises InvalidRequest for too many."""
        items = [] if self.input is None or isinstance(self.input, str) else self.input
        found = [item.id for item in items if item.refers and item.id is not None]
        if len(found) > _MOST_REFERENCES:
            raise InvalidRequest(
                f"input refers to {len(found)} items; at most {_MOST_REFERENCES} may be", param="input"
            )
        return found

    def refer(self, items: Mapping[str, Json]) -> None:
        """What the references mean, by id."""
        self._referred = dict(items)

    def own_items(self, response_id: str) -> list[Json]:
        """The input as it is kept. Raises RequestError."""
        return kept_items(self.input or [], response_id, self._referred)

    def _placed(self, own: Sequence[Json]) -> list[tuple[Json, str]]:
        """All items of the conversation, with where the body has them."""
        simple = isinstance(self.input, str)
        placed = [(item, "previous_response_id") for item in self._history.items()]
        return [*placed, *((item, "input" if simple else f"input[{i}]") for i, item in enumerate(own))]

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def _cuts(self) -> bool:
        return self.truncation == "auto"

    def traits(self, route: str) -> Traits:
        tier, priority = self.service_tier or "", self.priority or 0
        return Traits(
            route=route, service_tier=tier, priority=priority, tools=self._uses_tools, task=task_of(self.metadata)
        )

    def rename(self, error: TailraceError) -> None:
        self._names.rename(error)

    def shown(self, model: str) -> Json:
        """What answers repeat of the request, with its defaults."""
        reasoning, text = self.reasoning or ReasoningConfig(), self.text or TextConfig()
        form = text.format.model_dump() if text.format else {"type": "text"}
        return {
            "background": bool(self.background),
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "model": model,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summarized()},
            "safety_identifier": self.safety_identifier,
            "service_tier": self.service_tier if self.service_tier not in (None, "auto") else "default",
            "store": self.stored,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "text": {"format": form, "verbosity": "medium"},
            "tool_choice": self.tool_choice or "auto",
            "tools": [tool.shown() for tool in self.tools or []],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": self.truncation or "disabled",
            "user": self.user,
        }

    def _attempt(
        self, placed: Sequence[tuple[Json, str]], request_id: str, model: tuple[Any, TextModel, Limits, Dialect]
    ) -> Ask:
        talk = Talk(self.instructions, placed)
        self._names = names = talk.names
        for path, own in _NAMES.items():
            names[path] = own
        chat = self._chat(talk.messages, names)
        self._uses_tools = chat.uses_tools()
        template, tokenizer, limits, dialect = model
        with names.renaming():
            return chat.ask(request_id, template, tokenizer, limits, dialect)

    def _chat(self, messages: Sequence[Json], names: Names) -> ChatRequest:
        """Raises RequestError naming this body's field."""
        fields = self._fields(names)
        with names.renaming():
            return ChatRequest.model_validate({"messages": messages, **fields})

    def _fields(self, names: Names) -> Json:
        """Fields of the chat request but for its messages, without those that say nothing."""
        effort = self.reasoning.effort if self.reasoning else None
        fields: Json = {name: getattr(self, name) for name in _SAME}
        fields |= {
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": "xhigh" if effort == "max" else effort,
            "response_format": self._response_format(),
        }
        if self.tools:
            fields["tools"] = chat_tools(self.tools, names)
        if self.tool_choice is not None:
            fields["tool_choice"] = chat_choice(self.tool_choice, names)
        if self.scored:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return {name: value for name, value in fields.items() if value is not None}

    def _response_format(self) -> Json | None:
        form = self.text.format if self.text else None
        if form is None:
            return None
        body = {name: value for name, value in form.model_dump().items() if name != "type" and value is not None}
        return {"type": form.type, "json_schema": body} if form.type == "json_schema" else {"type": form.type, **body}

    def _refuse(self) -> None:
        name = refused_field(self, _REFUSED, _WITHOUT_EFFECT)
        if name is not None:
            raise Unsupported(_WHY.get(name, f"{name} is not supported by this server; leave it out"), param=name)


_SAME = (
    "model",
    "temperature",
    "top_p",
    "stream",
    "service_tier",
    "priority",
    "parallel_tool_calls",
    *Further.model_fields,
    *Salted.model_fields,
)


def _without(placed: Sequence[tuple[Json, str]], first: int) -> list[tuple[Json, str]]:
    """The items from the first on, and system texts before it; no result whose call is gone."""
    kept = [each for each in placed[:first] if each[0].get("role") in ("system", "developer")] + list(placed[first:])
    gone = {item["call_id"] for item, _ in placed[:first] if item["type"] == "function_call"}
    return [(item, where) for item, where in kept if not (gone and item.get("call_id") in gone)]


def _fitting(attempt: Callable[[int], Ask], places: Sequence[int]) -> Ask:
    """From the first place on from which it fits. Raises ContextLengthExceeded when it does from none."""
    made: dict[int, Ask] = {}

    def fits(place: int) -> bool:
        try:
            made[place] = attempt(place)
        except ContextLengthExceeded:
            return False
        return True

    found = bisect_left(places, True, key=fits)
    return made[places[found]] if found < len(places) else attempt(places[-1])


def _check_metadata(pairs: dict[str, str]) -> None:
    if len(pairs) > _MOST_PAIRS:
        raise InvalidRequest(f"metadata holds {len(pairs)} pairs; at most {_MOST_PAIRS} are taken", param="metadata")
    for key, value in pairs.items():
        if len(key) > _MOST_KEY or len(value) > _MOST_VALUE:
            raise InvalidRequest(
                f"metadata takes keys of up to {_MOST_KEY} and values of up to {_MOST_VALUE} characters",
                param="metadata",
            )
