"""/v1/messages and /v1/messages/count_tokens: what they take, as the chat request that it means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from tailrace.errors import InvalidRequest, TailraceError, Unsupported
from tailrace.protocol.ask import Ask, Template, TextModel
from tailrace.protocol.body import Items, Part, Shape, missing, refused_field
from tailrace.protocol.chat import ChatRequest
from tailrace.protocol.messages.conversation import ResultBlock, Talk, Turn
from tailrace.protocol.messages.tools import CustomTool, ToolChoice, chat_choice, chat_tools
from tailrace.protocol.names import Names
from tailrace.protocol.prompt import Salted
from tailrace.protocol.sampling import Asking, Further, Limits
from tailrace.protocol.tokenize import TokenizeRequest
from tailrace.text.parsers.dialect import Dialect
from tailrace.types import Tokens, Traits

VERSIONS = ("2023-06-01", "2026-10-21")  # the same here: the later one only refuses sampling fields, which stay
_MOST_USER_ID = 256

# Documented fields that would change what is answered, and the values of them that ask for nothing.
_REFUSED: dict[str, tuple[object, ...]] = {
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
    "inference_geo": ("global",),
    "speed": ("standard",),
}
_WITHOUT_EFFECT = frozenset(("cache_control", "diagnostics", "user_profile_id", "workspace_id", "betas"))

_NAMES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
    "reasoning_effort": "thinking",
    "continue_final_message": "messages",
    "response_format.json_schema.schema": "output_config.format.schema",
    "response_format": "output_config.format",
    "tool_choice.function.name": "tool_choice.name",
}
_EFFORTS = {"max": "xhigh"}


class Metadata(Part):
    user_id: str | None = Field(None, max_length=_MOST_USER_ID)
    task: Any = None  # a label, as in chat's metadata


class ThinkingConfig(Part):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Part):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Part):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountRequest(Shape):
    """What makes a prompt. Blocks' `cache_control` has no effect: prefixes are cached by themselves."""

    model: str | None = Field(None, description="Name of a served model; absent: the one this server serves.")
    messages: Items[Turn]
    system: str | Items[ResultBlock] | None = None
    tools: Items[CustomTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None

    def tokens(self, template: Template | None, tokenizer: TextModel, limits: Limits, dialect: Dialect) -> Tokens:
        """The prompt that a message with the same fields has. Raises RequestError."""
        fields, names = self.prompt_fields()
        with names.renaming():
            return TokenizeRequest.model_validate(fields).tokens(template, tokenizer, limits, dialect)

    def prompt_fields(self) -> tuple[dict[str, Any], Names]:
        """Fields of a chat request, without those that say nothing. Raises RequestError."""
        self._refuse()
        talk = Talk(self.system, self.messages)
        names = talk.names
        for path, own in _NAMES.items():
            names[path] = own
        fields: dict[str, Any] = {"model": self.model, "messages": talk.messages, **self._thoughts()}
        if self.tools:
            fields["tools"] = chat_tools(self.tools, names)
        if self.tool_choice is not None:
            fields.update(chat_choice(self.tool_choice))
        if talk.continues:
            if self.thinks:
                raise InvalidRequest(
                    "messages must not end with the assistant's when thinking is enabled: its text is begun already",
                    param="messages",
                )
            fields["continue_final_message"] = True
        return {name: value for name, value in fields.items() if value is not None}, names

    @property
    def thinks(self) -> bool:
        return self.thinking is not None and self.thinking.type != "disabled"

    def _thoughts(self) -> dict[str, Any]:
        """Without a word about it, no thoughts: their blocks come before the text that clients expect first."""
        thinking = self.thinking
        if thinking is None or thinking.type == "disabled":
            if thinking is not None and thinking.budget_tokens is not None:
                raise InvalidRequest(
                    "thinking.budget_tokens needs thinking.type enabled", param="thinking.budget_tokens"
                )
            return {"reasoning_effort": "none"}
        if thinking.type == "enabled" and thinking.budget_tokens is None:
            raise missing("thinking.budget_tokens")
        effort = (self.output_config and self.output_config.effort) or "high"
        return {
            "thinking_token_budget": thinking.budget_tokens,
            "reasoning_effort": _EFFORTS.get(effort, effort),
        }

    def _refuse(self) -> None:
        name = refused_field(self, _REFUSED, _WITHOUT_EFFECT)
        if name is not None:
            raise Unsupported(f"{name} is not supported by this server; leave it out", param=name)


class MessagesRequest(CountRequest, Salted, Further, Asking):
    max_tokens: int = Field(ge=1)
    stop_sequences: Items[str] | None = None
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    priority: int | None = Field(None, description="Below 0 sooner, where the key may; above 0 when there is time.")
    _chat: ChatRequest = PrivateAttr()
    _names: Names = PrivateAttr(default_factory=lambda: Names({}))

    def check(self, limits: Limits) -> None:
        budget = self.thinking.budget_tokens if self.thinking else None
        if budget is not None and budget >= self.max_tokens:
            raise InvalidRequest(
                f"thinking.budget_tokens is {budget}; accepted is 1 to less than max_tokens ({self.max_tokens})",
                param="thinking.budget_tokens",
            )
        fields, self._names = self.prompt_fields()
        with self._names.renaming():
            self._chat = ChatRequest.model_validate({**fields, **self._more_fields()})
            self._chat.check(limits)

    def ask(
        self, request_id: str, template: Template | None, tokenizer: TextModel, limits: Limits, dialect: Dialect
    ) -> Ask:
        """Raises RequestError."""
        with self._names.renaming():
            ask = self._chat.ask(request_id, template, tokenizer, limits, dialect)
        hidden = self.thinking is not None and self.thinking.display == "omitted"
        return replace(ask, about={"thoughts_omitted": hidden})

    def traits(self, route: str) -> Traits:
        return self._chat.traits(route)

    def rename(self, error: TailraceError) -> None:
        self._names.rename(error)

    def _more_fields(self) -> dict[str, Any]:
        """Those that say how the answer is made."""
        plain = {name: getattr(self, name) for name in _SAME}
        fields = {**plain, "max_completion_tokens": self.max_tokens, "stop": self.stop_sequences}
        if self.metadata is not None:
            fields["metadata"] = {"task": self.metadata.task}
        form = self.output_config and self.output_config.format
        if form:
            fields["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": form.schema_},
            }
        return {name: value for name, value in fields.items() if value is not None}


_SAME = ("stream", "temperature", "top_k", "top_p", "priority", *Further.model_fields, *Salted.model_fields)
