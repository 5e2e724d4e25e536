"""What a request may say of its prompt besides the text: cut it, score it, keep its cache apart."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from tailrace.errors import InvalidRequest
from tailrace.protocol.body import Shape
from tailrace.protocol.sampling import Limits, check_logprobs
from tailrace.text.tokenizer import clean_text
from tailrace.types import Tokens

_MOST_SALT = 256  # characters
_CUT_FROM = 16  # times the context: how long a prompt may be that is to be cut


class Salted(Shape):
    cache_salt: str | None = Field(None, min_length=1, max_length=_MOST_SALT)

    def salt(self) -> bytes:
        """Raises InvalidRequest for half a surrogate pair."""
        return b"" if self.cache_salt is None else clean_text(self.cache_salt, field="cache_salt").encode()


class PromptFields(Salted):
    """Fields of both OpenAI routes."""

    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    prompt_logprobs: int | None = Field(None, ge=0)

    def check_prompt(self, limits: Limits, *, stream: bool) -> None:
        """Raises InvalidRequest naming the field."""
        check_cut(self.truncate_prompt_tokens, limits)
        check_logprobs(self.prompt_logprobs, limits, "prompt_logprobs")
        if self.prompt_logprobs is not None and stream:
            raise InvalidRequest("prompt_logprobs is not given with stream: true", param="prompt_logprobs")

    def uncut(self, limits: Limits) -> Limits:
        """What the prompt is checked against before it is cut."""
        if self.truncate_prompt_tokens is None:
            return limits
        return replace(limits, max_context=limits.max_context * _CUT_FROM)

    def cut(self, prompt: Tokens, limits: Limits, room: int) -> Tokens:
        """Its last tokens, as many as are to be kept. `room`: tokens to leave for the answer where it says -1."""
        keep = self.truncate_prompt_tokens
        if keep is None:
            return prompt
        return prompt[-(max(1, limits.max_context - room) if keep < 0 else keep) :]


def check_cut(keep: int | None, limits: Limits) -> None:
    """Raises InvalidRequest for a `truncate_prompt_tokens` that leaves nothing, or more than the context takes."""
    if keep == 0 or (keep or 0) > limits.max_context:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {keep}; accepted is 1 to {limits.max_context}, or -1 for what the context "
            "takes",
            param="truncate_prompt_tokens",
        )
