"""/v1/completions: prompts as text or token ids to GenerateRequests, one for each prompt."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field, WithJsonSchema

from tailrace.errors import InvalidRequest
from tailrace.protocol.ask import Ask, TextModel, check_fits, check_size
from tailrace.protocol.beams import Beams
from tailrace.protocol.prompt import PromptFields
from tailrace.protocol.restrict import Restricted
from tailrace.protocol.sampling import Generation, Limits, answer_length, check_ids, check_logprobs, check_model
from tailrace.text.tokenizer import clean_text
from tailrace.types import GenerateRequest, Tokens

DEFAULT_MAX_TOKENS = 16  # OpenAI's
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}

Prompt = str | list[int]


def prompts_of(value: object) -> list[Prompt]:
    """Every form a prompt may have, as a list of prompts. One scan: lists can be long."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        kinds = set(map(type, value))
        if kinds == {int}:
            return [value]
        if kinds == {str} or (kinds == {list} and all(v and set(map(type, v)) == {int} for v in value)):
            return value
    raise ValueError("should be a string, a list of strings, a list of token ids or a list of such lists, none empty")


class CompletionRequest(PromptFields, Restricted, Beams, Generation):
    prompt: Annotated[Any, BeforeValidator(prompts_of), WithJsonSchema(PROMPT_SCHEMA)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: int | None = Field(None, ge=0)
    echo: bool | None = None

    def ask(self, request_id: str, tokenizer: TextModel, limits: Limits) -> Ask:
        """Tokenize and check every prompt. Raises RequestError."""
        model = check_model(self.model, limits)
        made, beams = self.made(), self.beams()
        sampling, grammar = self.sampling(limits, self.ranked_by(self.logprobs)), self.grammar()
        sampling = self.restrict(sampling, grammar, tokenizer, limits)
        prompts: list[Prompt] = self.prompt
        ids = [self._tokens(p, i, tokenizer, limits) for i, p in enumerate(prompts)]
        requests = tuple(
            GenerateRequest(
                id=request_id if len(ids) == 1 else f"{request_id}-{i}",
                model=model,
                prompt=prompt,
                sampling=sampling,
                stop=self.stopping(limits, answer_length(self.max_tokens, DEFAULT_MAX_TOKENS, len(prompt), limits)),
                n=made,
                prompt_logprobs=self._prompt_width(),
                grammar=grammar,
                salt=self.salt(),
                beams=beams,
            )
            for i, prompt in enumerate(ids)
        )
        echo = self._echo(ids, tokenizer) if self.echo else ()
        scored = self.logprobs is not None
        return Ask(
            requests,
            bool(self.stream),
            self.include_usage(),
            made,
            scored,
            echo,
            prompt_logprobs=self.prompt_logprobs,
            keep=self.keep(),
            sorted=beams is not None,
        )

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if len(self.prompt) > limits.max_prompts:
            raise InvalidRequest(
                f"prompt holds {len(self.prompt)} prompts; at most {limits.max_prompts} are taken at once",
                param="prompt",
            )
        check_logprobs(self.logprobs, limits, "logprobs")
        self.check_beams(limits, stream=bool(self.stream))
        self.check_prompt(limits, stream=bool(self.stream))

    def _prompt_width(self) -> int | None:
        """How many alternatives of each prompt token are wanted by whoever wants most."""
        asked = [width for width in (self.logprobs if self.echo else None, self.prompt_logprobs) if width is not None]
        return max(asked, default=None)

    def _echo(self, ids: list[Tokens], tokenizer: TextModel) -> tuple[str, ...]:
        if self.truncate_prompt_tokens is not None:
            return tuple(tokenizer.decode(each.tolist()) for each in ids)
        return tuple(p if isinstance(p, str) else tokenizer.decode(p) for p in self.prompt)

    def _tokens(self, prompt: Prompt, index: int, tokenizer: TextModel, limits: Limits) -> Tokens:
        field = "prompt" if len(self.prompt) == 1 else f"prompt[{index}]"
        room = 0 if self.max_tokens == 0 else 1
        ids = prompt_tokens(prompt, field, tokenizer, self.uncut(limits), room=room)
        ids = self.cut(ids, limits, DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens)
        check_fits(len(ids), limits, field, room=room)
        return ids


def prompt_tokens(prompt: Prompt, field: str, tokenizer: TextModel, limits: Limits, *, room: int = 1) -> Tokens:
    """The prompt's ids, if the context has `room` for that many more. Raises RequestError naming `field`."""
    if isinstance(prompt, str):
        check_size(len(prompt), tokenizer, limits, field)
        ids = tokenizer.encode_rendered(clean_text(prompt, field=field))
        if not len(ids):
            raise InvalidRequest(f"{field} has no tokens", param=field)
    else:
        check_fits(len(prompt), limits, field, room=room)
        ids = np.array(check_ids(prompt, limits.vocab_size, field), dtype=np.int32)
    check_fits(len(ids), limits, field, room=room)
    return ids
