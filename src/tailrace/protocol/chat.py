"""/v1/chat/completions: the request and its way through the chat template to a GenerateRequest."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from tailrace.errors import InvalidRequest, TemplateRefused, Unsupported
from tailrace.protocol.ask import Ask, Template, TextModel, check_fits, check_size
from tailrace.protocol.beams import Beams
from tailrace.protocol.body import Items, Part, Shape, missing
from tailrace.protocol.prompt import PromptFields
from tailrace.protocol.restrict import Restricted
from tailrace.protocol.sampling import Generation, Limits, answer_length, check_logprobs, check_model
from tailrace.protocol.thinking import Effort, Wish, leaving_room, reading, thinking
from tailrace.protocol.tool_grammar import tool_grammar
from tailrace.protocol.tools import Offer, Tool, ToolChoice, offer, past_calls
from tailrace.text.parsers.dialect import Dialect
from tailrace.text.template import NO_TEMPLATE
from tailrace.text.tokenizer import clean_text
from tailrace.text.tool_prompt import with_tools
from tailrace.types import GenerateRequest

Role = Literal["system", "developer", "user", "assistant", "tool"]
_OTHER_PARTS = frozenset(("image_url", "input_image", "input_audio", "audio", "video_url", "file", "refusal"))

_PLAIN = Dialect()
_OWN_VARIABLES = frozenset(("messages", "add_generation_prompt", "continue_final_message", "tools"))


class ContentPart(Part):
    """A text part; other kinds are known and refused as not supported."""

    type: str
    text: str | None = None


class Message(Part):
    """One turn. Content is text, or text parts (joined by line ends for templates that know no parts). Which orders of
    roles are allowed is the template's decision."""

    model_config = ConfigDict(extra="allow")

    role: Role
    content: str | Items[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Items[dict[str, Any]] | None = None

    def plain(self) -> dict[str, Any]:
        """What is said beside content and calls. Most messages have nothing but their role there."""
        if self.model_extra:
            return self.model_dump(exclude_none=True, exclude={"content", "tool_calls"})
        known = {"role": self.role, "name": self.name, "tool_call_id": self.tool_call_id}
        return {name: value for name, value in known.items() if value is not None}


class Conversation(Shape):
    """What a template renders; shared by the chat route and the tokenize route."""

    messages: Items[Message]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Items[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: int | None = Field(None, ge=0)

    def wish(self) -> Wish:
        """How much it is to think."""
        return Wish(self.reasoning_effort, self.thinking_token_budget)

    def offer(self) -> Offer | None:
        """The tools that the answer may call."""
        return offer(self.tools, self.tool_choice, self.parallel_tool_calls)

    def uses_tools(self) -> bool:
        return bool(self.tools) or any([message.role == "tool" or message.tool_calls for message in self.messages])

    def render(self, template: Template | None, tokenizer: TextModel, limits: Limits, dialect: Dialect = _PLAIN) -> str:
        """The prompt's text. Raises TemplateRefused, InvalidRequest, Unsupported, ContextLengthExceeded."""
        if not self.messages:
            raise InvalidRequest("messages must hold at least one message", param="messages")
        check_fits(len(self.messages), limits, "messages", least=True)  # a turn takes a token, whatever the template
        check_size(sum(map(_characters, self.messages)), tokenizer, limits, "messages")
        turns = [_turn(message, dialect, f"messages[{i}]") for i, message in enumerate(self.messages)]
        found = self.offer()
        tools = [] if found is None else found.for_template()
        check_size(len(json.dumps(tools)) if tools else 0, tokenizer, limits, "tools")
        if template is None:
            raise InvalidRequest(NO_TEMPLATE, param="messages", code="no_chat_template")
        proceed = bool(self.continue_final_message)
        generate = not proceed if self.add_generation_prompt is None else self.add_generation_prompt
        if proceed and generate:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        if not dialect.knows_tools and self.uses_tools():
            turns = with_tools(turns, tools, dialect.tools, takes_system=dialect.takes_system)
        return template.render(
            turns,
            add_generation_prompt=generate,
            continue_final_message=proceed,
            tools=tools if dialect.knows_tools else None,
            **{**self.wish().variables(), **self._variables()},
        )

    def _variables(self) -> dict[str, Any]:
        variables = self.chat_template_kwargs or {}
        for name in _OWN_VARIABLES & variables.keys():
            raise InvalidRequest(f"chat_template_kwargs must not hold {name}", param="chat_template_kwargs")
        return variables


class ChatRequest(Conversation, PromptFields, Restricted, Beams, Generation):
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)

    def ask(
        self,
        request_id: str,
        template: Template | None,
        tokenizer: TextModel,
        limits: Limits,
        dialect: Dialect = _PLAIN,
    ) -> Ask:
        """Render, tokenize once, check against the limits. Raises RequestError."""
        model = check_model(self.model, limits)
        logprobs = self._logprobs(limits)
        made, beams = self.made(), self.beams()
        sampling, grammar, found = self.sampling(limits, self.ranked_by(logprobs)), self.grammar(), self.offer()
        if found is not None:
            grammar = tool_grammar(found, dialect, grammar)
        sampling = self.restrict(sampling, grammar, tokenizer, limits)
        wish = self.wish()
        wish.check(dialect)
        text = self.render(template, tokenizer, self.uncut(limits), dialect)
        prompt, thought = tokenizer.encode_rendered(text), thinking(wish, dialect.reasoning, text)
        if not len(prompt):
            raise TemplateRefused("the chat template makes an empty prompt of these messages", param="messages")
        asked = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        prompt = self.cut(prompt, limits, asked or 1)
        check_fits(len(prompt), limits, "messages")
        stop = self.stopping(limits, answer_length(asked, None, len(prompt), limits))
        if grammar is not None:
            thought = leaving_room(thought, stop.max_tokens)
        request = GenerateRequest(
            request_id, model, prompt, sampling, stop, n=made, beams=beams, grammar=grammar, thinking=thought,
            shown_ids=dialect.shown(tools=found is not None), prompt_logprobs=self.prompt_logprobs, salt=self.salt(),
        )  # fmt: skip
        calls = None
        if found is not None:
            calls = partial(dialect.reader(constrained=grammar is not None), found.signatures)
        return Ask(
            (request,),
            bool(self.stream),
            self.include_usage(),
            made,
            logprobs is not None,
            reader=reading(dialect.reasoning, thought, calls),
            prompt_logprobs=self.prompt_logprobs,
            call_ids=dialect.tools.id_length,
            keep=self.keep(),
            sorted=beams is not None,
            rendered=text,
        )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        self.check_beams(limits, stream=bool(self.stream))
        self.check_prompt(limits, stream=bool(self.stream))

    def _logprobs(self, limits: Limits) -> int | None:
        top = self.top_logprobs
        if not self.logprobs:
            if top:
                raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
            return None
        check_logprobs(top, limits, "top_logprobs")
        return top or 0


def _turn(message: Message, dialect: Dialect, where: str) -> dict[str, Any]:
    """The message as templates expect it: absent fields are absent, parts are text parts."""
    turn = message.plain()
    if message.tool_calls:
        turn["tool_calls"] = past_calls(message.tool_calls, dialect, f"{where}.tool_calls")
    content = message.content
    if content is None and not message.tool_calls:
        raise missing(f"{where}.content")
    if isinstance(content, list):
        turn["content"] = [_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
    else:
        turn["content"] = None if content is None else clean_text(content, field=f"{where}.content")
    return turn


def _part(part: ContentPart, where: str) -> dict[str, str]:
    if part.type in _OTHER_PARTS:
        raise Unsupported(f"{where}: parts of type {part.type} are not supported by this server", param=where)
    if part.type != "text":
        raise InvalidRequest(f"{where}.type is {part.type[:40]!a}; expected 'text'", param=f"{where}.type")
    if part.text is None:
        raise missing(f"{where}.text")
    return {"type": "text", "text": clean_text(part.text, field=f"{where}.text")}


def _characters(message: Message) -> int:
    if isinstance(message.content, list):
        return sum(len(part.text or "") for part in message.content)
    return len(message.content or "")
