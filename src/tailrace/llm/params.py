"""How a prompt's answers are made: the HTTP routes' own fields, with their bounds and their words for errors."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, Field, ValidationError, field_validator

from tailrace.errors import InvalidRequest
from tailrace.protocol.ask import Ask, TextModel
from tailrace.protocol.beams import Beams
from tailrace.protocol.body import explain
from tailrace.protocol.prompt import PromptFields
from tailrace.protocol.restrict import Restricted
from tailrace.protocol.sampling import Limits, answer_length, check_logprobs
from tailrace.types import GenerateRequest, Tokens


class SamplingParams(PromptFields, Restricted, Beams):
    """How answers are made; checked when it is made, and frozen. Fields are those of HTTP, all optional.

    n, max_tokens (texts: 16, chats: what the context leaves), min_tokens, stop, stop_token_ids,
    include_stop_str_in_output, ignore_eos, temperature (1; 0 is greedy), top_p, top_k, min_p, typical_p,
    presence_penalty, frequency_penalty, repetition_penalty, logit_bias (token id -> -100 ... 100), bad_words,
    allowed_token_ids, seed (drawn for each prompt when absent), best_of (so many are made, the n most likely shown),
    use_beam_search, length_penalty, early_stopping, logprobs (alternatives per answer token, 0: only its own),
    prompt_logprobs (the same for the prompt's tokens), truncate_prompt_tokens, cache_salt. What the answer must look
    like: response_format, guided_json (a schema, or a pydantic model), guided_regex, guided_choice, guided_grammar,
    structured_outputs (docs/structured-output.md). Raises InvalidRequest naming the field for a wrong type or value and
    for an unknown name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0)

    def __init__(self, **fields: Any) -> None:
        for name in fields.keys() - type(self).model_fields.keys():
            near = difflib.get_close_matches(name, type(self).model_fields, n=1, cutoff=0.0)
            raise InvalidRequest(f"unknown sampling parameter {name}; the nearest known one is {near[0]}", param=name)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise explain(error) from None

    @field_validator("stop", "stop_token_ids", "bad_words", "allowed_token_ids", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return list(value) if isinstance(value, (tuple, set, frozenset)) else value

    @field_validator("guided_json", mode="before")
    @classmethod
    def _schema(cls, value: object) -> object:
        made = getattr(value, "model_json_schema", None)
        return made() if callable(made) else value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """Token ids may be numbers here; JSON has only strings for keys."""
        return {str(key): bias for key, bias in value.items()} if isinstance(value, Mapping) else value

    def but(self, **fields: Any) -> SamplingParams:
        """The same with other values for some fields."""
        return SamplingParams(**self.model_dump(exclude_unset=True) | fields) if fields else self

    def check(self, limits: Limits, *, stream: bool) -> None:
        """What a type cannot say. Raises InvalidRequest naming the field."""
        if (self.n or 1) > limits.max_choices:
            raise InvalidRequest(
                f"n is {self.n}; at most {limits.max_choices} answers are made at once: raise max_sequences", param="n"
            )
        check_logprobs(self.logprobs, limits, "logprobs")
        self.check_beams(limits, stream=stream)
        self.check_prompt(limits, stream=False)  # they come with the first event

    def ask(
        self, request_id: str, prompt: Tokens, tokenizer: TextModel, limits: Limits, *, default_length: int | None
    ) -> Ask:
        """For a prompt that fits the context. Raises InvalidRequest for what the model or the engine cannot do."""
        sampling, grammar, beams = self.sampling(limits, self.ranked_by(self.logprobs)), self.grammar(), self.beams()
        request = GenerateRequest(
            id=request_id,
            model=limits.models[0],
            prompt=prompt,
            sampling=self.restrict(sampling, grammar, tokenizer, limits),
            stop=self.stopping(limits, answer_length(self.max_tokens, default_length, len(prompt), limits)),
            n=self.made(),
            beams=beams,
            prompt_logprobs=self.prompt_logprobs,
            grammar=grammar,
            salt=self.salt(),
        )
        return Ask(
            (request,),
            stream=False,
            include_usage=False,
            n=request.n,
            logprobs=self.logprobs is not None,
            keep=self.keep(),
            sorted=beams is not None,
        )

    def chat_fields(self) -> dict[str, Any]:
        """The same as the chat route names it."""
        fields = self.model_dump(exclude_unset=True)
        width = fields.pop("logprobs", None)
        return fields if width is None else {**fields, "logprobs": True, "top_logprobs": width}


def spread(
    params: SamplingParams | Sequence[SamplingParams] | None, fields: Mapping[str, Any], count: int
) -> list[SamplingParams]:
    """One for each of `count` prompts; `fields` win over `params`. Raises InvalidRequest when the numbers differ."""
    if params is None or isinstance(params, SamplingParams):
        return [(params or SamplingParams()).but(**fields)] * count
    if len(params) != count:
        raise InvalidRequest(
            f"sampling_params has {len(params)} entries for {count} prompts; give one, or one for each",
            param="sampling_params",
        )
    return [each.but(**fields) for each in params]
