"""What the Python API returns, and how a request's events become it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.clock import Clock
from tailrace.errors import InternalError, TailraceError, Unavailable
from tailrace.frozen import frozen
from tailrace.observe.timeline import Phase, Timeline
from tailrace.observe.timings import Timings, timings
from tailrace.types import FinishReason, GenerateRequest, TokenEvent, TokenLogprob, Usage


@dataclass(slots=True)
class Output:
    """One answer to a prompt. `finish_reason` is "stop", "length" or "error"; `stop_reason` the stop string or token id
    that ended it, None for the model's own end. `logprobs` is None unless asked for, else one entry per token."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprob] | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum over the answer's tokens; None without log-probabilities."""
        return None if self.logprobs is None else math.fsum(token.logprob or 0.0 for token in self.logprobs)


@frozen
class Completion:
    """A prompt and its `n` outputs. `text`, `token_ids`, `finish_reason` and `logprobs` are the first output's.

    `prompt` is the text as it was tokenized (a chat's after its template), None for token ids. `error` is set when
    processing this prompt failed; its outputs hold what came before. Times are milliseconds, as over HTTP.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Output]
    usage: Usage
    timings: Timings
    prompt_logprobs: list[TokenLogprob] | None = None
    error: TailraceError | None = None

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        return self.outputs[0].logprobs


@frozen
class Score:
    """How likely a text is: its scored tokens and their log-probabilities (natural logarithm).

    `is_greedy`: each scored token is the one that greedy decoding would have chosen.
    """

    token_ids: list[int]
    logprobs: list[float]
    is_greedy: bool

    @property
    def logprob(self) -> float:
        """Of the whole scored text."""
        return math.fsum(self.logprobs)

    @property
    def perplexity(self) -> float:
        return math.exp(-self.logprob / len(self.logprobs))


class Collector:
    """Takes in the events of one request, then tells the whole."""

    def __init__(self, request: GenerateRequest, prompt: str | None, clock: Clock) -> None:
        self._request = request
        self._prompt = prompt
        wanted = request.sampling.logprobs is not None
        self._outputs = [Output(index, logprobs=[] if wanted else None) for index in range(request.n)]
        self._texts: list[list[str]] = [[] for _ in range(request.n)]
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self._cached = 0
        self._learned = False
        self._timeline = Timeline(clock)
        self._timeline.enter(Phase.QUEUE)
        self._timeline.enter(Phase.PREFILL)  # until the backend says when it began

    def take(self, events: Sequence[TokenEvent]) -> int:
        """A step's events; returns how many tokens they brought. Raises the error of a choice that failed."""
        made = sum(map(self._take, events))
        if made:
            self._timeline.enter(Phase.DECODE)
        return made

    def completion(self, error: TailraceError | None = None) -> Completion:
        """Once every choice has ended, or when `error` ended them."""
        for output, texts in zip(self._outputs, self._texts, strict=True):
            output.text = "".join(texts)
            output.finish_reason = output.finish_reason or FinishReason.ERROR.value
        usage = self._usage()
        self._timeline.close("ok" if error is None else "error")
        return Completion(
            prompt=self._prompt,
            prompt_token_ids=self._request.prompt.tolist(),
            outputs=self._outputs,
            usage=usage,
            timings=timings(self._timeline),
            prompt_logprobs=self._prompt_logprobs,
            error=error,
        )

    def _take(self, event: TokenEvent) -> int:
        output = self._outputs[event.index]
        self._texts[event.index].append(event.text)
        output.token_ids.extend(event.token_ids)
        if output.logprobs is not None:
            output.logprobs.extend(event.logprobs)
        if event.prompt_logprobs is not None:
            self._prompt_logprobs = list(event.prompt_logprobs)
        if event.cached_tokens is not None and event.index == 0:
            self._cached = event.cached_tokens
        if event.finish is not None:
            self._finish(event)
        return len(event.token_ids)

    def _finish(self, event: TokenEvent) -> None:
        if event.facts is not None:
            self._timeline.learn(event.facts, first=not self._learned)
            self._learned = True
        raise_failure(event)
        assert event.finish is not None
        output = self._outputs[event.index]
        output.finish_reason, output.stop_reason = event.finish.value, event.stop_reason

    def _usage(self) -> Usage:
        """Also noted on the timeline, which derives rates from it."""
        made = [len(output.token_ids) for output in self._outputs]
        usage = Usage(len(self._request.prompt), sum(made), self._cached)
        self._timeline.facts.update(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            longest=max(made),
        )
        return usage


def raise_failure(event: TokenEvent) -> None:
    """The error of a choice that ended by one: a typed one as it is, anything else without its insides."""
    if event.finish is FinishReason.ABORT:
        raise Unavailable("the engine was closed before this answer ended", code="aborted")
    if event.finish is FinishReason.ERROR:
        if isinstance(event.error, TailraceError):
            raise event.error
        raise InternalError("processing this prompt failed") from event.error
