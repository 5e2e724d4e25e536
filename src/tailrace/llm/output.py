"""What the Python API returns, and how a request's events become it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.clock import Clock
from tailrace.errors import InternalError, TailraceError, Unavailable
from tailrace.frozen import frozen
from tailrace.observe.timeline import Phase, Timeline
from tailrace.observe.timings import Timings, timings
from tailrace.protocol.ask import Ask
from tailrace.protocol.said import Said
from tailrace.protocol.scoring import shown
from tailrace.types import FinishReason, TokenEvent, TokenLogprob, Usage

Json = dict[str, Any]


@dataclass(slots=True)
class Output:
    """One answer to a prompt. `finish_reason` is "stop", "length", "tool_calls" or "error"; `stop_reason` the stop
    string or token id that ended it, None for the model's own end. `logprobs` is None unless asked for, else one entry
    per token. Of a chat `tool_calls` are as over HTTP, and neither they nor `reasoning_content` are part of `text`."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprob] | None = None
    tool_calls: list[Json] = field(default_factory=list)
    reasoning_content: str | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum over the answer's tokens; None without log-probabilities."""
        return None if self.logprobs is None else math.fsum(token.logprob or 0.0 for token in self.logprobs)


@frozen
class Completion:
    """A prompt and its `n` outputs. `text`, `token_ids`, `finish_reason`, `logprobs`, `tool_calls` and
    `reasoning_content` are the first output's.

    `prompt` is the text as it was tokenized (a chat's after its template), None for token ids; of a prompt that was cut
    `prompt_token_ids` are what was left. `error` is set when processing this prompt failed; its outputs hold what came
    before. Times are milliseconds, as over HTTP.
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

    @property
    def tool_calls(self) -> list[Json]:
        return self.outputs[0].tool_calls

    @property
    def reasoning_content(self) -> str | None:
        return self.outputs[0].reasoning_content


@frozen
class ChatEvent:
    """What a step adds to one choice of a chat. `deltas` are as in HTTP's chunks ({"content"}, {"reasoning_content"},
    {"tool_calls"}); `text` is their content. `finish` ("stop", "length", "tool_calls") is on a choice's last event."""

    index: int
    text: str
    deltas: list[Json]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: str | None
    stop_reason: int | str | None
    prompt_logprobs: tuple[TokenLogprob, ...] | None


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

    def __init__(self, ask: Ask, prompt: str | None, clock: Clock) -> None:
        self._ask = ask
        self._request = ask.requests[0]
        self._prompt = prompt
        self._outputs = [Output(index, logprobs=[] if ask.logprobs else None) for index in range(ask.n)]
        self._texts: list[list[str]] = [[] for _ in range(ask.n)]
        self._said = readers(ask)
        self._scores = [0.0] * ask.n  # sums of log-probabilities
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
        for output in self._outputs:
            self._tell(output)
        usage = self._usage()
        self._timeline.close("ok" if error is None else "error")
        return Completion(
            prompt=self._prompt,
            prompt_token_ids=self._request.prompt.tolist(),
            outputs=self._shown(),
            usage=usage,
            timings=timings(self._timeline),
            prompt_logprobs=self._prompt_logprobs,
            error=error,
        )

    def _take(self, event: TokenEvent) -> int:
        output = self._outputs[event.index]
        said = self._said[event.index]
        if said is None:
            self._texts[event.index].append(event.text)
        else:
            said.read(event)
        self._scores[event.index] += sum(token.logprob or 0.0 for token in event.logprobs)
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

    def _tell(self, output: Output) -> None:
        """The whole of what it says."""
        output.finish_reason = output.finish_reason or FinishReason.ERROR.value
        said = self._said[output.index]
        if said is None:
            output.text = "".join(self._texts[output.index])
            return
        message = said.message()
        output.text = message["content"] or ""
        output.tool_calls = message.get("tool_calls", [])
        output.reasoning_content = message.get("reasoning_content")

    def _shown(self) -> list[Output]:
        places = shown(self._ask, self._scores, [len(output.token_ids) for output in self._outputs])
        return [replace(self._outputs[place], index=index) for index, place in enumerate(places)]

    def _finish(self, event: TokenEvent) -> None:
        if event.facts is not None:
            self._timeline.learn(event.facts, first=not self._learned)
            self._learned = True
        raise_failure(event)
        assert event.finish is not None
        output = self._outputs[event.index]
        output.finish_reason, output.stop_reason = reason(event.finish, self._said[event.index]), event.stop_reason

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


class Chunks:
    """One chat's events to what each adds."""

    def __init__(self, ask: Ask) -> None:
        self._said = readers(ask)

    def chunk(self, event: TokenEvent) -> ChatEvent:
        """Raises the error of a choice that failed."""
        raise_failure(event)
        said, ended = self._said[event.index], event.finish is not None
        if said is None:
            deltas: list[Json] = [{"content": event.text}] if event.text else []
        else:
            deltas = said.bodies(said.read(event), last=ended)
        return ChatEvent(
            index=event.index,
            text="".join(delta.get("content", "") for delta in deltas),
            deltas=deltas,
            token_ids=event.token_ids,
            logprobs=event.logprobs,
            finish=None if event.finish is None else reason(event.finish, said),
            stop_reason=event.stop_reason,
            prompt_logprobs=event.prompt_logprobs,
        )


def readers(ask: Ask) -> list[Said | None]:
    """What reads each choice, where it may hold more than prose."""
    make, request = ask.reader, ask.requests[0].id
    return [None if make is None else Said(make(), f"{request}/{index}", ask.call_ids) for index in range(ask.n)]


def reason(finish: FinishReason, said: Said | None) -> str:
    return finish.value if said is None else said.reason(finish)


def raise_failure(event: TokenEvent) -> None:
    """The error of a choice that ended by one: a typed one as it is, anything else without its insides."""
    if event.finish is FinishReason.ABORT:
        raise Unavailable("the engine was closed before this answer ended", code="aborted")
    if event.finish is FinishReason.ERROR:
        if isinstance(event.error, TailraceError):
            raise event.error
        raise InternalError("processing this prompt failed") from event.error
