"""/tokenize, /detokenize and /apply-template: the same path to token ids as the routes that compute something."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from tailrace.errors import InvalidRequest
from tailrace.protocol.ask import Template, TextModel, check_size
from tailrace.protocol.body import Items, Shape
from tailrace.protocol.chat import Conversation, Message
from tailrace.protocol.sampling import Limits, check_ids, check_model
from tailrace.text.parsers.dialect import Dialect
from tailrace.text.tokenizer import clean_text
from tailrace.types import Tokens

_PLAIN = Dialect()


def _none_as_empty(value: object) -> object:
    return [] if value is None else value


class TokenizeRequest(Conversation):
    """Either `prompt` or `messages`. Special tokens in a text are parsed and a start token is added where the model
    wants one, exactly as for a completion; of a model that only makes vectors, as for an embedding."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = Field(None, description="As prompt, which goes before it.")
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: Annotated[Items[Message], BeforeValidator(_none_as_empty)] = Field(default_factory=list)

    def tokens(
        self,
        template: Template | None,
        tokenizer: TextModel,
        limits: Limits,
        dialect: Dialect = _PLAIN,
        *,
        generates: bool = True,
    ) -> Tokens:
        """Ids as the engine would see them. Raises RequestError."""
        check_model(self.model, limits)
        text = self.content if self.prompt is None else self.prompt
        if text is None:
            if "messages" not in self.model_fields_set:
                raise InvalidRequest("prompt or messages is missing", param="prompt", code="missing_field")
            return tokenizer.encode_rendered(self.render(template, tokenizer, limits, dialect))
        if self.messages:
            raise InvalidRequest("prompt and messages exclude each other", param="messages")
        field = "content" if self.prompt is None else "prompt"
        check_size(len(text), tokenizer, limits, field)
        if self.add_special_tokens is False:
            return tokenizer.encode(clean_text(text, field=field), add_special=False, parse_special=True)
        if not generates:
            return tokenizer.encode(clean_text(text, field=field), add_special=True, parse_special=False)
        return tokenizer.encode_rendered(clean_text(text, field=field))


class ApplyTemplateRequest(Conversation):
    """A conversation as the model's template writes it."""

    model: str | None = None

    def rendered(
        self, template: Template | None, tokenizer: TextModel, limits: Limits, dialect: Dialect = _PLAIN
    ) -> str:
        """Raises RequestError."""
        check_model(self.model, limits)
        return self.render(template, tokenizer, limits, dialect)


class DetokenizeRequest(Shape):
    tokens: Items[int]
    model: str | None = None

    def text(self, tokenizer: TextModel, limits: Limits) -> str:
        check_model(self.model, limits)
        return tokenizer.decode(check_ids(self.tokens, limits.vocab_size, "tokens"))
