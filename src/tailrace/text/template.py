"""A model's chat template: messages to the text the model was trained to continue.

Owns the shape of messages that templates see and turns whatever goes wrong inside a template into an error of the
request (TemplateRefused, 400) with the template's own reason. How templates are kept from doing harm: `sandbox`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateRuntimeError, TemplateSyntaxError, UndefinedError
from jinja2.exceptions import SecurityError

from tailrace.clock import Clock
from tailrace.errors import ConfigError, InvalidRequest, ModelFileError, TailraceError, TemplateRefused
from tailrace.text.budget import WorkExceeded
from tailrace.text.sandbox import Refused, Sandbox
from tailrace.text.tokenizer import clean_text
from tailrace.text.vocabulary import token_id

MAX_SOURCE = 256 * 1024  # characters; the longest in use have about 20,000
MAX_OUTPUT = 8_000_000  # characters of a rendered prompt
MAX_REASON = 500  # characters of a template's own words in an error

DEFAULT, WITH_TOOLS = "default", "tool_use"  # the names that model folders give
_TEMPLATE_KEYS = {DEFAULT: "tokenizer.chat_template", WITH_TOOLS: "tokenizer.chat_template.tool_use"}

NO_TEMPLATE = (
    "this model has no chat template, so it cannot answer chats; start the server with --chat-template FILE, "
    "or use /v1/completions"
)

# What templates may ask for without knowing whether a request has it.
_ABSENT = {"tools": None, "documents": None, "add_generation_prompt": False}

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's template, compiled. Immutable: several threads may render at once.

    `source` is one template, or several by name: "default", and "tool_use" for requests with tools. `bos` and `eos` are
    the texts of the start and end token. Raises ConfigError or ModelFileError (`error`) with the line when a source is
    not a template.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        clock: Clock,
        bos: str = "",
        eos: str = "",
        special: Mapping[str, str] | None = None,
        origin: str = "chat template",
        error: type[TailraceError] = ConfigError,
    ) -> None:
        sources = {DEFAULT: source} if isinstance(source, str) else source
        if DEFAULT not in sources:
            raise error(f'{origin} has no template named "{DEFAULT}", only {", ".join(sorted(sources)) or "none"}')
        self.source = sources[DEFAULT]
        self._clock = clock
        self._variables: dict[str, Any] = {**(special or {}), "bos_token": bos, "eos_token": eos}
        self._sandbox = Sandbox()
        self._sandbox.globals["strftime_now"] = self._strftime_now
        self._template = _compile(self._sandbox, self.source, origin, error)
        with_tools = sources.get(WITH_TOOLS)
        self.source_with_tools = self.source if with_tools is None else with_tools
        self._with_tools = (
            self._template
            if with_tools is None
            else _compile(self._sandbox, with_tools, f"{origin} ({WITH_TOOLS})", error)
        )
        self._takes_parts = self._probe_parts()

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], *, clock: Clock) -> ChatTemplate | None:
        """The template that a model brings, or None when it has none (chat routes then answer 400 with NO_TEMPLATE).

        `tokenizer.chat_template`, and `tokenizer.chat_template.tool_use` where a model has one of its own for tools.
        """
        sources = {name: metadata.get(key) for name, key in _TEMPLATE_KEYS.items()}
        found = {name: source for name, source in sources.items() if isinstance(source, str)}
        if sources[DEFAULT] is None:
            return None
        if DEFAULT not in found:
            raise ModelFileError("tokenizer.chat_template is not a string; use --chat-template FILE")
        return cls(
            found,
            clock=clock,
            bos=_token_text(metadata, "bos_token"),
            eos=_token_text(metadata, "eos_token"),
            origin="tokenizer.chat_template",
            error=ModelFileError,
        )

    @classmethod
    def from_file(cls, path: Path | str, metadata: Mapping[str, object], *, clock: Clock) -> ChatTemplate:
        """A template that replaces the model's own; `metadata` says how the start and end token are written."""
        try:
            source = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--chat-template {path}: cannot be read as UTF-8 text ({error})") from None
        return cls(
            source,
            clock=clock,
            bos=_token_text(metadata, "bos_token"),
            eos=_token_text(metadata, "eos_token"),
            origin=f"--chat-template {path}",
        )

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text. `continue_final_message`: the text stops right after the last message's content, so that
        the model goes on with it (then no generation prompt is added). `variables` are further names of the template.

        Raises InvalidRequest for messages no template can take, TemplateRefused for those this one does not.
        """
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        shown = self._messages(messages)
        mark = ""
        if continue_final_message:
            mark = _mark_end(shown)
            add_generation_prompt = False
        text = self._run(
            {**variables, "messages": shown, "add_generation_prompt": add_generation_prompt, "tools": tools or None},
            self._with_tools if tools else self._template,
        )
        if mark:
            text, found, _ = text.rpartition(mark)
            if not found:
                raise TemplateRefused("the chat template does not show the end of the last message", param="messages")
        return clean_text(text, field="messages")

    def _run(self, variables: dict[str, Any], template: Template) -> str:
        values = self._sandbox.variables(self._clock, **{**_ABSENT, **self._variables, **variables})
        try:
            return _collect(template, values)
        except Refused as error:
            reason = str(error)[:MAX_REASON] or "it gave no reason"
            raise TemplateRefused(f"the chat template refused the messages: {reason}", param="messages") from None
        except WorkExceeded as error:
            raise TemplateRefused(f"the chat template needs too much work: {error}", param="messages") from None
        except Exception as error:
            raise TemplateRefused(_reason(error), param="messages") from None

    def _messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        return [self._message(message, f"messages[{index}]") for index, message in enumerate(messages)]

    def _message(self, message: Message, field: str) -> dict[str, Any]:
        if type(message) is not dict and not isinstance(message, Mapping):  # what checks for mappings is slow
            raise InvalidRequest(f"{field} must be an object", param=field)
        content = message.get("content")
        if not isinstance(content, list | tuple):
            return dict(message)
        texts = [_part_text(part, f"{field}.content[{index}]") for index, part in enumerate(content)]
        parts = [{"type": "text", "text": text} for text in texts]
        return {**message, "content": parts if self._takes_parts else "\n".join(texts)}

    def _probe_parts(self) -> bool:
        """Whether the template reads contents made of parts, found out by giving it one. Others get the parts' texts
        joined by line ends, since they would print the list as Python writes it."""
        parts = [{"type": "text", "text": "probe-of-parts"}]
        try:
            text = self._run({"messages": [{"role": "user", "content": parts}]}, self._template)
        except TemplateRefused:
            return False
        return "probe-of-parts" in text and "'type'" not in text and '"type"' not in text

    def _strftime_now(self, pattern: str) -> str:
        if len(pattern) > 200 or any(char.isdigit() for char in pattern):  # digits are widths to the C library
            raise WorkExceeded("it formats the date with a width or a long pattern")
        return datetime.fromtimestamp(self._clock.wall()).strftime(pattern)


def _collect(template: Template, values: dict[str, Any]) -> str:
    pieces, size = [], 0
    for piece in template.root_render_func(template.new_context(values)):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_OUTPUT:
            raise WorkExceeded(f"it writes more than {MAX_OUTPUT} characters")
    return "".join(pieces)


def _compile(sandbox: Sandbox, source: str, origin: str, error: type[TailraceError]) -> Template:
    if len(source) > MAX_SOURCE:
        raise error(f"{origin} has {len(source)} characters; at most {MAX_SOURCE} are accepted")
    try:
        template = sandbox.from_string(source)
        template.globals = dict(template.globals)  # each rendering copies them, which is slow of Jinja's own chain
    except TemplateSyntaxError as problem:
        raise error(f"{origin}, line {problem.lineno}: {problem.message}") from None
    except Exception as problem:  # nested beyond what the compiler takes
        raise error(f"{origin} cannot be compiled: {problem or type(problem).__name__}") from None
    return template


def _reason(error: Exception) -> str:
    """What to tell the client: the template's words where there are some, nothing of Python's."""
    if isinstance(error, UndefinedError):
        return f"the chat template needs a value that the request lacks: {error}"[:MAX_REASON]
    if isinstance(error, SecurityError):
        return f"the chat template does what templates may not: {error}"[:MAX_REASON]
    if isinstance(error, TemplateRuntimeError):
        return f"the chat template cannot be rendered: {error}"[:MAX_REASON]
    if isinstance(error, RecursionError):
        return "the chat template needs too much work: it is nested too deeply"
    return "the chat template cannot handle these messages: a value has a type or form that it does not expect"


def _part_text(part: object, field: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise InvalidRequest(f'{field}: only parts of type "text" are supported, not {kind!r}', param=field)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}.text must be a string", param=f"{field}.text")
    return text


def _mark_end(messages: list[dict[str, Any]]) -> str:
    """Appends a mark that no message can hold, as it is drawn here, to the last message's content, to find its end in
    the rendered text."""
    content = messages[-1].get("content")
    mark = f"\u2063end-{secrets.token_hex(16)}\u2063"
    if isinstance(content, str):
        messages[-1]["content"] = content + mark
    elif isinstance(content, list) and content:
        content[-1] = {**content[-1], "text": content[-1]["text"] + mark}
    else:
        raise InvalidRequest("the last message has no content to continue", param="continue_final_message")
    return mark


def _token_text(metadata: Mapping[str, object], key: str) -> str:
    """How the model writes the token; nothing when it names none."""
    text = metadata.get(f"tokenizer.{key}")  # model folders give the text itself
    if isinstance(text, str):
        return text
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Sequence):
        return ""
    index = token_id(metadata, f"{key}_id", len(tokens))
    return "" if index is None else str(tokens[index])
