"""Prompts as people have them (texts, token ids, conversations) to requests for the engine, checked as over HTTP."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from tailrace.errors import InvalidRequest, TailraceError
from tailrace.frozen import frozen
from tailrace.llm.params import SamplingParams
from tailrace.llm.ready import Model
from tailrace.protocol.ask import Ask, check_fits
from tailrace.protocol.body import explain
from tailrace.protocol.chat import ChatRequest, Conversation
from tailrace.protocol.completions import DEFAULT_MAX_TOKENS, prompt_tokens
from tailrace.protocol.sampling import Limits
from tailrace.text.parsers.dialect import Dialect
from tailrace.types import GenerateRequest, Tokens

Prompt = str | Sequence[int]
Message = Mapping[str, Any]

_TALK = frozenset(Conversation.model_fields) - {"messages"}

_SCORING = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=1)


@frozen
class Job:
    """A request with the shape of its answer, and its prompt as text where there is one. The first `known` tokens of it
    are not to be scored."""

    ask: Ask
    prompt: str | None
    known: int = 1

    @property
    def request(self) -> GenerateRequest:
        return self.ask.requests[0]


class _Chat(ChatRequest):
    """An answer may have no tokens here: the prompt's log-probabilities alone."""

    max_tokens: int | None = Field(None, ge=0)


class Asker:
    """Makes jobs. `where` names a prompt in errors ("prompts[3]"); all raise RequestError. `stream`: its events are
    wanted as they come."""

    def __init__(self, model: Model, dialect: Dialect | None = None) -> None:
        caps = model.backend.caps
        self._model = model
        self._dialect = dialect or Dialect.of(model.template, model.tokenizer)
        self._ids = f"llm-{secrets.token_hex(6)}"  # ids of calls are made from it, and must differ between programs
        self._numbers = count()
        vocab = min(caps.vocab_size, model.tokenizer.vocab_size)
        self.limits = Limits(caps.models, caps.max_context, vocab, max_choices=caps.max_sequences)

    def completion(self, prompt: Prompt, params: SamplingParams, where: str, *, stream: bool = False) -> Job:
        params.check(self.limits, stream=stream)
        room = 0 if params.max_tokens == 0 else 1
        given, tokenizer = _plain(prompt, where), self._model.tokenizer
        tokens = prompt_tokens(given, where, tokenizer, params.uncut(self.limits), room=room)
        asked = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
        tokens = params.cut(tokens, self.limits, asked)
        check_fits(len(tokens), self.limits, where, room=room)
        return self._job(tokens, prompt, params, DEFAULT_MAX_TOKENS)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        where: str,
        options: Mapping[str, Any],
        *,
        stream: bool = False,
    ) -> Job:
        """`options`: what a chat says beside its messages and sampling parameters, as over HTTP."""
        for name in options.keys() - _TALK:
            raise InvalidRequest(f"{name} is no option of a chat; known are {', '.join(sorted(_TALK))}", param=name)
        params.check(self.limits, stream=stream)
        try:
            turns = [dict(turn) for turn in messages]
        except (TypeError, ValueError):
            raise InvalidRequest(f"{where} must be a list of messages, each with role and content") from None
        try:
            body = _Chat.model_validate({"messages": turns, **options, **params.chat_fields()})
            ask = body.ask(self._id(), self._model.template, self._model.tokenizer, self.limits, self._dialect)
        except ValidationError as error:
            raise named(explain(error), where) from None
        except TailraceError as error:
            raise named(error, where) from None
        return self._checked(Job(ask, ask.rendered))

    def scoring(self, prompt: Prompt, continuation: Prompt | None, where: str) -> Job:
        """Scores the continuation, or without one the prompt after its first token."""
        if continuation is None:
            tokens, known = self.tokens(prompt, where, room=0), 1
        elif isinstance(prompt, str) and isinstance(continuation, str):
            tokens = self.tokens(prompt + continuation, where, room=0)
            known = max(1, _shared(tokens, self.tokens(prompt, where, room=0)))
        elif isinstance(prompt, str) or isinstance(continuation, str):
            raise InvalidRequest(f"{where}: prompt and continuation must both be texts or both be token ids")
        else:
            tokens, known = self.tokens([*prompt, *continuation], where, room=0), len(prompt)
        if not 0 < known < len(tokens):
            raise InvalidRequest(f"{where} leaves nothing to score: it needs a token before the first scored one")
        job = self._job(tokens, prompt, _SCORING, None)
        return Job(job.ask, job.prompt, known)

    def tokens(self, prompt: Prompt, where: str, *, room: int = 0) -> Tokens:
        """Its ids; the context must have `room` for that many more."""
        return prompt_tokens(_plain(prompt, where), where, self._model.tokenizer, self.limits, room=room)

    def _job(self, tokens: Tokens, prompt: object, params: SamplingParams, default_length: int | None) -> Job:
        ask = params.ask(self._id(), tokens, self._model.tokenizer, self.limits, default_length=default_length)
        return self._checked(Job(ask, prompt if isinstance(prompt, str) else None))

    def _checked(self, job: Job) -> Job:
        self._model.parts.scheduler.validate(job.request)
        return job

    def _id(self) -> str:
        return f"{self._ids}-{next(self._numbers)}"


def apart(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what is said of the chat, sampling parameters)."""
    talk = {name: value for name, value in fields.items() if name in _TALK}
    return talk, {name: value for name, value in fields.items() if name not in _TALK}


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """(prompts, whether it was a single one: a text, or a flat list of token ids). Raises InvalidRequest."""
    if isinstance(prompts, str):
        return [prompts], True
    many: list[Any] = list(prompts)
    if many and all(isinstance(item, (int, np.integer)) for item in many):
        return [many], True
    return many, False


def as_conversations(conversations: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation (a list of messages) or several, as several."""
    many: list[Any] = list(conversations)
    return [many] if many and all(isinstance(item, Mapping) for item in many) else many


def named(error: TailraceError, where: str) -> TailraceError:
    """The error with the place of its prompt in front."""
    error.message = f"{where}: {error.message}"
    error.args = (error.message,)
    return error


def _plain(prompt: Prompt, where: str) -> str | list[int]:
    """As protocol checks it. Raises InvalidRequest for anything but a text or token ids."""
    if isinstance(prompt, str):
        return prompt
    try:
        ids = list(prompt)
    except TypeError:
        ids = [None]  # type: ignore[list-item]
    if not ids or not all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in ids):
        raise InvalidRequest(f"{where} must be a text or a list of token ids, not empty", param=where)
    return [int(i) for i in ids]


def _shared(whole: Tokens, part: Tokens) -> int:
    """Length of the common prefix: where text and continuation merge into one token, that token is scored."""
    length = min(len(whole), len(part))
    different = np.flatnonzero(whole[:length] != part[:length])
    return int(different[0]) if len(different) else length
