"""Token events to answers: one plain body, or the chunks of a stream. The two say the same.

A stream is: per choice a first chunk (chat: with the role), deltas, one finish chunk; with `include_usage` a chunk
without choices at the end. The last chunk with choices carries `timings`, and so does the one with the usage.
`usage.completion_tokens` counts every token sampled, also the one that ended the answer and those of a matched stop
string.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace

import orjson

from tailrace.observe.timings import Timings
from tailrace.protocol.ask import Ask
from tailrace.protocol.form import Form, Json
from tailrace.protocol.logprobs import CompletionLogprobs, chat_logprobs
from tailrace.protocol.said import Said
from tailrace.protocol.scoring import prompt_logprobs, shown
from tailrace.types import FinishReason, TokenEvent, TokenLogprob, Usage


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    columns: CompletionLogprobs = field(default_factory=CompletionLogprobs)
    opened: bool = False
    prompt: int = 0  # its place among the prompts
    tokens: int = 0
    score: float = 0.0  # sum of its tokens' log-probabilities, where the best choices are kept
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    said: Said | None = None  # what reads the text, where it may hold more than prose


class Answer(Form):
    """OpenAI's two older forms, with any number of choices."""

    plain_object: str
    chunk_object: str

    def __init__(self, ask: Ask, answer_id: str, created: int) -> None:
        self._ask = ask
        self._id, self._created, self._model = answer_id, created, ask.requests[0].model
        self._choices = [_Choice(said=self._said(i), prompt=i // ask.n) for i in range(len(ask.requests) * ask.n)]
        self._open = len(self._choices)
        head = {"id": answer_id, "object": self.chunk_object, "created": created, "model": self._model}
        self._prefix = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if ask.include_usage else b"]}\n\n"
        self._last: bytes | None = None  # the final finish chunk's choice, held for the timings

    # --- plain

    def collect(self, index: int, event: TokenEvent) -> None:
        """Add one event of choice `index` (over all prompts)."""
        choice = self._choices[index]
        if not choice.opened:
            choice.opened = True
            self._begin(index, choice, event)
        if choice.said is None:
            choice.text.append(event.text)
        else:
            choice.said.read(event)
        choice.logprobs.extend(event.logprobs)
        choice.tokens += len(event.token_ids)
        if self._ask.keep:
            choice.score += sum(token.logprob or 0.0 for token in event.logprobs)
        if event.prompt_logprobs is not None:
            choice.prompt_logprobs = event.prompt_logprobs
        if event.finish is not None:
            choice.finish, choice.stop_reason = event.finish, event.stop_reason

    def body(self, usage: Usage, timings: Timings) -> bytes:
        """The whole answer, once every choice has finished."""
        return orjson.dumps(
            {
                "id": self._id,
                "object": self.plain_object,
                "created": self._created,
                "model": self._model,
                "choices": [self._plain_choice(i, choice) for i, choice in enumerate(self._kept())],
                **self._beside(),
                "usage": usage_body(usage, self._reasoning_tokens()),
                "timings": timings.body(),
            }
        )

    def _kept(self) -> list[_Choice]:
        made, choices = self._ask.n, self._choices
        prompts = [choices[at : at + made] for at in range(0, len(choices), made)]
        return [group[i] for group in prompts for i in shown(self._ask, *_ranks(group))]

    def _beside(self) -> Json:
        """Fields beside the choices."""
        return {}

    def _prompt_scores(self, prompt: int) -> Json:
        """`prompt_logprobs` where they were asked for."""
        width = self._ask.prompt_logprobs
        if width is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self._choices[prompt * self._ask.n].prompt_logprobs, width)}

    # --- streamed

    def chunk(self, index: int, event: TokenEvent) -> bytes:
        """The server-sent events of one token event: none when there is nothing to show yet."""
        choice = self._choices[index]
        out = b""
        if not choice.opened:
            choice.opened = True
            out = self._opening(index, choice, event)
        if choice.said is not None:
            out += self._read(index, choice.said, event)
        elif event.text or event.logprobs:
            out += self._wrap(self._delta(index, choice, event))
        if event.finish is not None:
            self._open -= 1
            finish = orjson.dumps(self._finish(index, event))
            if self._open:
                return out + self._wrap(finish)
            self._last = finish
        return out

    def end(self, usage: Usage, timings: Timings) -> bytes:
        """The last finish chunk, the usage when asked for, and the end mark."""
        assert self._last is not None, "a stream ends after its last choice"
        times = b'"timings":' + orjson.dumps(timings.body()) + b"}\n\n"
        done = b"data: [DONE]\n\n"
        if not self._ask.include_usage:
            return self._prefix + self._last + b"]," + times + done
        counts = b'],"usage":' + orjson.dumps(usage_body(usage, self._reasoning_tokens())) + b","
        return self._prefix + self._last + b'],"usage":null,' + times + self._prefix + counts + times + done

    def _wrap(self, choice: bytes) -> bytes:
        return self._prefix + choice + self._tail

    def _reasoning_tokens(self) -> int | None:
        """Of all choices; None where nothing reads thoughts."""
        thoughts = [choice.said for choice in self._choices if choice.said is not None and choice.said.reasons]
        return sum(said.reasoning_tokens for said in thoughts) if thoughts else None

    def _said(self, index: int) -> Said | None:
        if self._ask.reader is None:
            return None
        return Said(self._ask.reader(), f"{self._id}/{index}", self._ask.call_ids)

    def _read(self, index: int, said: Said, event: TokenEvent) -> bytes:
        """An event's text as deltas, one chunk for each; its log-probabilities go with the first."""
        bodies = said.bodies(said.read(event), last=event.finish is not None)
        logprobs = None
        if event.logprobs:
            logprobs = {"content": chat_logprobs(event.logprobs), "refusal": None}
            bodies = bodies or [{}]
        out = b""
        for body in bodies:
            choice = {"index": index, "delta": body, "logprobs": logprobs, "finish_reason": None}
            out += self._wrap(orjson.dumps(choice))
            logprobs = None
        return out

    # --- what differs between chat and completions

    @abstractmethod
    def _begin(self, index: int, choice: _Choice, event: TokenEvent) -> None: ...
    @abstractmethod
    def _opening(self, index: int, choice: _Choice, event: TokenEvent) -> bytes: ...
    @abstractmethod
    def _delta(self, index: int, choice: _Choice, event: TokenEvent) -> bytes: ...
    @abstractmethod
    def _finish(self, index: int, event: TokenEvent) -> Json: ...
    @abstractmethod
    def _plain_choice(self, index: int, choice: _Choice) -> Json: ...


class ChatAnswer(Answer):
    plain_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _begin(self, index: int, choice: _Choice, event: TokenEvent) -> None:
        pass

    def _beside(self) -> Json:
        return self._prompt_scores(0)

    def _opening(self, index: int, choice: _Choice, event: TokenEvent) -> bytes:
        content = b'""' if choice.said is None else b"null"  # what reads it tells of text when there is some
        return self._wrap(
            b'{"index":%d,"delta":{"role":"assistant","content":%b},"logprobs":null,"finish_reason":null}'
            % (index, content)
        )

    def _delta(self, index: int, choice: _Choice, event: TokenEvent) -> bytes:
        logprobs = b"null"
        if self._ask.logprobs:
            logprobs = orjson.dumps({"content": chat_logprobs(event.logprobs), "refusal": None})
        return b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null}' % (
            index, orjson.dumps(event.text), logprobs,
        )  # fmt: skip

    def _finish(self, index: int, event: TokenEvent) -> Json:
        ended = {"finish_reason": _reason(self._choices[index], event.finish), "stop_reason": event.stop_reason}
        return {"index": index, "delta": {}, "logprobs": None, **ended}

    def _plain_choice(self, index: int, choice: _Choice) -> Json:
        logprobs = {"content": chat_logprobs(choice.logprobs), "refusal": None} if self._ask.logprobs else None
        return {
            "index": index,
            "message": self._message(choice),
            "logprobs": logprobs,
            "finish_reason": _reason(choice, choice.finish),
            "stop_reason": choice.stop_reason,
        }

    def _message(self, choice: _Choice) -> Json:
        if choice.said is not None:
            return choice.said.message()
        return {"role": "assistant", "content": "".join(choice.text), "refusal": None}


class CompletionAnswer(Answer):
    plain_object = chunk_object = "text_completion"

    def _echo(self, index: int) -> str:
        return self._ask.echo[index // self._ask.n] if self._ask.echo else ""

    def _begin(self, index: int, choice: _Choice, event: TokenEvent) -> None:
        choice.text.append(self._echo(index))
        choice.logprobs.extend(self._prompt_logprobs(index, event))

    def _opening(self, index: int, choice: _Choice, event: TokenEvent) -> bytes:
        text, logprobs = self._echo(index), self._prompt_logprobs(index, event)
        if not text and not logprobs:
            return b""
        return self._wrap(self._delta(index, choice, TokenEvent(index, text, logprobs=logprobs)))

    def _prompt_logprobs(self, index: int, event: TokenEvent) -> tuple[TokenLogprob, ...]:
        """The prompt's, which come with the first event of a prompt's first choice and serve its other choices too."""
        first = self._choices[index - index % self._ask.n]
        if event.prompt_logprobs is not None:
            first.prompt_logprobs = event.prompt_logprobs
        if not (self._ask.echo and self._ask.logprobs):
            return ()
        shown = self._ask.requests[0].sampling.logprobs or 0
        if shown >= (self._ask.prompt_logprobs or 0):
            return first.prompt_logprobs
        return tuple(replace(token, top=token.top[:shown]) for token in first.prompt_logprobs)

    def _delta(self, index: int, choice: _Choice, event: TokenEvent) -> bytes:
        logprobs = orjson.dumps(choice.columns.columns(event.logprobs)) if self._ask.logprobs else b"null"
        return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}' % (
            index, orjson.dumps(event.text), logprobs,
        )  # fmt: skip

    def _finish(self, index: int, event: TokenEvent) -> Json:
        ended = {"finish_reason": event.finish, "stop_reason": event.stop_reason}
        return {"index": index, "text": "", "logprobs": None, **ended}

    def _plain_choice(self, index: int, choice: _Choice) -> Json:
        return {
            "index": index,
            "text": "".join(choice.text),
            "logprobs": choice.columns.columns(choice.logprobs) if self._ask.logprobs else None,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            **self._prompt_scores(choice.prompt),
        }


def _ranks(choices: list[_Choice]) -> tuple[list[float], list[int]]:
    return [choice.score for choice in choices], [choice.tokens for choice in choices]


def _reason(choice: _Choice, finish: FinishReason | None) -> str | None:
    return finish if choice.said is None or finish is None else choice.said.reason(finish)


def usage_body(usage: Usage, reasoning_tokens: int | None = None) -> Json:
    body: Json = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return body
