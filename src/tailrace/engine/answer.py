"""One request's choices as text: what a committed step becomes for its reader. Runs in the engine's loop thread."""

from __future__ import annotations

from tailrace.engine.beams import Hypothesis
from tailrace.engine.pool import Hidden, Pool
from tailrace.engine.sequence import Group
from tailrace.engine.step import F32, I32, Scores, StepResult, Update
from tailrace.text.stops import StopStrings
from tailrace.text.stream import Pushed, TextStream
from tailrace.text.tokenizer import Tokenizer
from tailrace.types import FinishReason, TokenEvent, TokenLogprob


class Answer:
    """Turns the updates of one group into events. A choice's first event carries what belongs to the request."""

    def __init__(self, group: Group, tokenizer: Tokenizer) -> None:
        request = group.request
        self.group = group
        self._tokenizer = tokenizer
        strings = StopStrings(request.stop.strings) if request.stop.strings else None
        ends, complete = tokenizer.end_ids, group.grammar is not None
        self.streams = [
            TextStream(tokenizer, request.stop, ends, strings=strings, complete=complete, shown=request.shown_ids)
            for _ in group.sequences
        ]
        self._begun = [False] * request.n
        self._wants_logprobs = request.sampling.logprobs is not None
        self._pool = None if request.pooling is None else Pool(group)
        self._scores: list[TokenLogprob] = []
        self._scores_left = False
        if group.wants_scores:
            self._scores_left = True
            self._scores.append(self._logprob(int(request.prompt[0]), None))

    def event(self, update: Update, result: StepResult | None) -> TokenEvent:
        """The event of one update. `finish` is set when the choice ends, by the scheduler's word or its own text."""
        sequence, token, sample, finish, error, answer = update
        stream = self.streams[sequence.index]
        if answer is not None:
            return self._begin(self._found(sequence.index, answer))
        if token is None:
            text = "" if error is not None else stream.finish()
            event = self._begin(TokenEvent(sequence.index, text, finish=finish, error=error))
            if self._pool is not None and finish is FinishReason.LENGTH:
                event.embedding = self._pool.vector()
            return event
        plain = stream.plain(token)
        if plain is not None and finish is None:
            event = TokenEvent(sequence.index, plain, (token,))
        else:
            pushed = stream.push(token) if plain is None else Pushed(plain)
            event = TokenEvent(sequence.index, pushed.text, (token,), finish=finish)
            if pushed.reason is not None or finish is not None:
                self._end(event, pushed, stream)
        if self._wants_logprobs:
            assert result is not None
            event.logprobs = (self._sampled(token, sample, result),)
        return event if self._begun[sequence.index] else self._begin(event)

    def pool(self, hidden: Hidden) -> None:
        """Take in hidden states of a prompt that becomes a vector."""
        assert self._pool is not None
        self._pool.add(hidden)

    def score(self, scores: Scores) -> None:
        """Take in log-probabilities of prompt tokens; they come in order."""
        tokens = scores.sequence.tokens[scores.start : scores.start + len(scores.logprobs)]
        for place, token in enumerate(tokens.tolist()):
            top = self._top(scores.top_ids, scores.top_logprobs, place)
            self._scores.append(self._logprob(token, float(scores.logprobs[place]), top))

    def _end(self, event: TokenEvent, pushed: Pushed, stream: TextStream) -> None:
        if pushed.reason is None:
            event.text += stream.finish()
        else:
            event.finish, event.stop_reason = pushed.reason, pushed.stop_reason

    def _begin(self, event: TokenEvent) -> TokenEvent:
        if not self._begun[event.index]:
            self._begun[event.index] = True
            event.cached_tokens = self.group.cached
        if event.index == 0 and self._scores_left and event.finish not in (FinishReason.ABORT, FinishReason.ERROR):
            event.prompt_logprobs = tuple(self._scores)
            self._scores_left = False
        return event

    def _found(self, index: int, answer: Hypothesis) -> TokenEvent:
        """All of an answer that a beam search found."""
        stream, steps = self.streams[index], answer.steps()
        tokens = tuple(step.token for step in steps)
        pushed = stream.push_many(tokens)
        event = TokenEvent(index, pushed.text, tokens, finish=answer.reason)
        self._end(event, pushed, stream)
        if self._wants_logprobs:
            wanted = self.group.request.sampling.logprobs or 0
            event.logprobs = tuple(
                self._logprob(step.token, step.logprob, self._named(step.offer.ids[:wanted], step.offer.logprobs))
                for step in steps
            )
        return event

    def _sampled(self, token: int, sample: int, result: StepResult) -> TokenLogprob:
        wanted = self.group.request.sampling.logprobs or 0
        top = self._top(result.top_ids[:, :wanted], result.top_logprobs, sample)
        return self._logprob(token, float(result.logprobs[sample]), top)

    def _top(self, ids: I32, logprobs: F32, place: int) -> tuple[tuple[int, bytes, float], ...]:
        return self._named(ids[place].tolist(), logprobs[place].tolist())

    def _named(self, ids: list[int], logprobs: list[float]) -> tuple[tuple[int, bytes, float], ...]:
        pairs = zip(ids, logprobs, strict=False)  # cells without a value hold -1
        return tuple((i, self._tokenizer.token_bytes(i, special=True), value) for i, value in pairs if i >= 0)

    def _logprob(
        self, token: int, logprob: float | None, top: tuple[tuple[int, bytes, float], ...] = ()
    ) -> TokenLogprob:
        return TokenLogprob(token, self._tokenizer.token_bytes(token, special=True), logprob, top)
