"""The generation fields both routes share: their bounds, and their way into SamplingParams and StopConditions.

Bounds beyond OpenAI's own: top_k -1 and 0 both mean off; repetition_penalty in [0.01, 10]; any 64-bit seed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tailrace.errors import InvalidRequest, ModelNotFound, TailraceError, Unsupported
from tailrace.frozen import frozen
from tailrace.protocol.body import Items, Part, Shape, refused_field
from tailrace.protocol.structured import FIELDS, grammar_of
from tailrace.text.stops import MAX_STOP_CHARS
from tailrace.text.tokenizer import clean_text
from tailrace.types import Grammar, SamplingParams, StopConditions, Traits

_MAX_STOP_CHARS = 1024
_PENALTY = Annotated[float, Field(ge=-2, le=2)]
MOST_TASK = 64  # characters of a caller's own label
_SMALLEST_SHARE = 1e-30  # less keeps one token all the same, and float32 has no less

# Known fields that are not built yet: name -> the values that ask for nothing. Every other value is refused.
_NOT_BUILT: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "grammar": ("",),
    "json_schema": ({},),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "suffix": ("",),
    "chat_template": (),
    "documents": ([],),
    "lora": (),
}

# Known fields that ask for nothing of the answer; taken and not warned about.
_WITHOUT_EFFECT = frozenset(
    (
        "user",
        "store",
        "safety_identifier",
        "prompt_cache_key",
        "parallel_tool_calls",
        "guided_decoding_backend",
    )
)


@frozen
class Limits:
    """What requests are checked against: the model's and the server's bounds."""

    models: tuple[str, ...]
    max_context: int
    vocab_size: int
    max_choices: int
    max_logprobs: int = 20
    max_stop_strings: int = 16
    max_prompts: int = 64
    max_output: int = 0  # tokens of one answer; 0: what the context leaves


class StreamOptions(Part):
    include_usage: bool | None = None


def _numbers(value: object) -> object:
    """Stops at the first value that is none: a body may hold a million, and every complaint about one costs."""
    if isinstance(value, dict) and any(isinstance(v, bool) or not isinstance(v, int | float) for v in value.values()):
        raise ValueError("values must be numbers")
    return value


LogitBias = Annotated[dict[str, float], BeforeValidator(_numbers)]


def is_task(label: object) -> bool:
    """Whether it can name the thing that a request is a part of."""
    return isinstance(label, str) and 0 < len(label) <= MOST_TASK and label.isascii() and label.isprintable()


def task_of(metadata: object) -> str:
    """The `task` of a body's metadata; empty where there is none, or it is a text of another kind."""
    label = metadata.get("task") if isinstance(metadata, dict) else None
    return label if isinstance(label, str) and is_task(label) else ""


class Asking(Shape):
    """What the body of every generating route can say and do."""

    overflow: Literal["refuse", "job"] | None = Field(
        None, description="What cannot be served in time: refused, or answered with the handle of a job."
    )
    webhook: str | None = Field(None, max_length=2048, description="Told when a job or a background response ends.")

    def check(self, limits: Limits) -> None:
        """What a type cannot say. Raises InvalidRequest or Unsupported naming the field."""

    def traits(self, route: str) -> Traits:
        """What it says of itself besides its size."""
        return Traits(route=route)

    def rename(self, error: TailraceError) -> None:
        """Have an error name the fields as this body does, where they have other names further in."""


class Further(Shape):
    """Fields that no API but the ones for local models has, the same on every generating route."""

    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    min_tokens: int | None = Field(None, ge=0)
    ignore_eos: bool | None = None


class Sampling(Further):
    """How answers are made: the fields that both OpenAI routes and the Python API share. null means absent."""

    n: int | None = Field(None, ge=1)
    max_tokens: int | None = None
    stop: str | Items[str] | None = None
    stop_token_ids: Items[int] | None = None
    include_stop_str_in_output: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    presence_penalty: _PENALTY | None = None
    frequency_penalty: _PENALTY | None = None
    logit_bias: LogitBias | None = None
    response_format: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: Items[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None

    def sampling(self, limits: Limits, logprobs: int | None) -> SamplingParams:
        """Raises InvalidRequest for a token id outside the vocabulary."""
        top_k = self.top_k or 0
        return SamplingParams(
            temperature=_or(self.temperature, 1.0),
            top_k=min(max(top_k, 0), limits.vocab_size),
            top_p=max(_or(self.top_p, 1.0), _SMALLEST_SHARE),
            min_p=_or(self.min_p, 0.0),
            typical_p=max(_or(self.typical_p, 1.0), _SMALLEST_SHARE),
            presence_penalty=_or(self.presence_penalty, 0.0),
            frequency_penalty=_or(self.frequency_penalty, 0.0),
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            logit_bias=_logit_bias(self.logit_bias, limits.vocab_size) if self.logit_bias else (),
            seed=secrets.randbits(63) if self.seed is None else self.seed % 2**64,
            logprobs=logprobs,
        )

    def grammar(self) -> Grammar | None:
        """What the answer must look like. Raises InvalidRequest for contradictions and what is no grammar at all."""
        asked = {name: value for name in FIELDS if (value := getattr(self, name)) is not None}
        return grammar_of(asked) if asked else None

    def stopping(self, limits: Limits, max_tokens: int) -> StopConditions:
        """Raises InvalidRequest for an empty stop string, an id outside the vocabulary, min_tokens > max_tokens."""
        minimum = self.min_tokens or 0
        if minimum > max_tokens:
            raise InvalidRequest(
                f"min_tokens is {minimum}, more than the {max_tokens} tokens the answer may have", param="min_tokens"
            )
        return StopConditions(
            max_tokens=max_tokens,
            min_tokens=minimum,
            strings=() if self.stop is None else _stop_strings(self.stop, limits.max_stop_strings),
            token_ids=tuple(dict.fromkeys(check_ids(self.stop_token_ids or [], limits.vocab_size, "stop_token_ids"))),
            ignore_eos=bool(self.ignore_eos),
            include_stop_string=bool(self.include_stop_str_in_output),
        )


class Generation(Sampling, Asking):
    """Fields of chat and completions."""

    model: str | None = Field(None, description="Name of a served model; absent: the one this server serves.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: str | None = Field(None, description="priority: sooner, where the key may; flex: when there is time")
    priority: int | None = Field(None, description="Below 0 sooner, where the key may; above 0 when there is time.")
    metadata: Any = Field(None, description="`task` in it is a label of your own, kept in the ledger.")

    def check(self, limits: Limits) -> None:
        self._refuse_not_built()
        if (self.n or 1) > limits.max_choices:
            raise InvalidRequest(f"n is {self.n}; this server makes at most {limits.max_choices} choices", param="n")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only allowed with stream: true", param="stream_options")

    def traits(self, route: str) -> Traits:
        tier, priority = self.service_tier or "", self.priority or 0
        return Traits(
            route=route, service_tier=tier, priority=priority, tools=self.uses_tools(), task=task_of(self.metadata)
        )

    def uses_tools(self) -> bool:
        return False

    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def _refuse_not_built(self) -> None:
        name = refused_field(self, _NOT_BUILT, _WITHOUT_EFFECT)
        if name is not None:
            raise Unsupported(f"{name} is not supported by this server yet; leave it out", param=name)


def answer_length(asked: int | None, default: int | None, prompt_tokens: int, limits: Limits) -> int:
    """Tokens the answer may have: what was asked, clamped to what the context leaves (null: the default, or the rest).

    The caller has made sure that the prompt fits.
    """
    left = limits.max_context - prompt_tokens
    if limits.max_output:
        left = min(left, limits.max_output)
    wanted = asked if asked is not None else default
    return left if wanted is None else min(wanted, left)


def check_logprobs(asked: int | None, limits: Limits, field: str) -> None:
    if (asked or 0) > limits.max_logprobs:
        raise InvalidRequest(f"{field} is {asked}; at most {limits.max_logprobs} are given", param=field)


def check_ids(ids: list[int], vocab_size: int, field: str) -> list[int]:
    """The ids themselves. Raises InvalidRequest naming the first one outside the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidRequest(
            f"{field} holds token id {wrong}; this model's ids go from 0 to {vocab_size - 1}", param=field
        )
    return ids


def check_model(name: str | None, limits: Limits) -> str:
    """The served name. Raises ModelNotFound."""
    return pick_model(name, limits.models)


def pick_model(name: str | None, names: Sequence[str]) -> str:
    """The one of these that a request's `model` names; the first when it names none. Raises ModelNotFound."""
    if name is None and names:
        return names[0]
    if name is None or name not in names:
        known = ", ".join(names)
        raise ModelNotFound(f"The model {(name or '')[:100]!a} is not served here; served: {known}", param="model")
    return name


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _logit_bias(bias: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    entries: dict[int, float] = {}
    for key, value in bias.items():
        digits = key.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            raise InvalidRequest(f"logit_bias keys must be token ids, not {key[:40]!a}", param="logit_bias")
        if not -100 <= value <= 100:
            raise InvalidRequest(f"logit_bias values must be from -100 to 100, not {value:g}", param="logit_bias")
        entries[int(key)] = value
    check_ids(list(entries), vocab_size, "logit_bias")
    return tuple(sorted(entries.items()))


def _stop_strings(stop: str | list[str], most: int) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop
    if len(strings) > most:
        raise InvalidRequest(f"stop has {len(strings)} strings; at most {most} are allowed", param="stop")
    for text in strings:
        if not text:
            raise InvalidRequest("stop must not hold an empty string: it would end every answer at once", param="stop")
        if len(text) > _MAX_STOP_CHARS:
            raise InvalidRequest(f"a stop string may have at most {_MAX_STOP_CHARS} characters", param="stop")
        clean_text(text, field="stop")
    strings = list(dict.fromkeys(strings))
    if sum(map(len, strings)) > MAX_STOP_CHARS:
        raise InvalidRequest(f"stop strings may have {MAX_STOP_CHARS} characters altogether", param="stop")
    return tuple(strings)
