"""Many prompts at once from plain Python: texts, token ids or conversations in, whole answers out."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tailrace.errors import InvalidRequest, Unavailable
from tailrace.llm.asker import Job, Message, Prompt, apart, as_conversations, as_prompts
from tailrace.llm.core import Core, engine_config
from tailrace.llm.meter import metered
from tailrace.llm.output import Completion, Score
from tailrace.llm.params import SamplingParams, spread
from tailrace.llm.worker import LoopThread

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model on this process's CPUs.

        with LLM("smollm2:135m") as llm:
            for completion in llm.generate(["Once upon a time", "The sea is"], max_tokens=32, temperature=0):
                print(completion.text)

    All prompts of a call run in one continuous batch; results keep their order and do not depend on the batch. Calls
    block, may come from several threads at once (they share the batch), and work inside a running asyncio loop too,
    which they block: AsyncEngine is for that. Ctrl-C ends the engine's work, and the object can be used again.
    """

    def __init__(self, model: str | Path | None = None, *, progress: bool = True, **settings: Any) -> None:
        """`model`: a name of the store (pulled when needed) or a path. `settings`: threads, kv_memory, max_context and
        the other fields of EngineConfig. `progress`: bars on stderr, here and in every call that does not say.

        Raises ConfigError, StoreError, ModelFileError.
        """
        self._show = progress
        core = Core(engine_config(model, settings), show=progress)
        self._core: Core | None = core
        self._loop = LoopThread()
        self._end = weakref.finalize(self, _close, core, self._loop)

    def close(self) -> None:
        """Stop the engine and give its memory back. Safe to call twice; also done at exit."""
        self._core = None
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def model(self) -> str:
        """The model's name."""
        return self._running.model.name

    @property
    def max_context(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._running.asker.limits.max_context

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        progress: bool | None = None,
        **fields: Any,
    ) -> list[Completion]:
        """A completion for each prompt (a text or token ids; one alone is taken as a list of one), in their order.

        `sampling_params`: one for all or one for each; `fields` (max_tokens, stop, n, ...) win over them. Every prompt
        is checked before any runs: raises RequestError naming it. A prompt that fails while running has `error` set.
        """
        many, _ = as_prompts(prompts)
        params = spread(sampling_params, fields, len(many))
        asker = self._running.asker
        jobs = [asker.completion(prompt, params[i], f"prompts[{i}]") for i, prompt in enumerate(many)]
        return self._run(jobs, "generating", progress)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        progress: bool | None = None,
        template: dict[str, Any] | None = None,
        **fields: Any,
    ) -> list[Completion]:
        """As `generate`, for one conversation (a list of messages) or several, through the model's chat template.

        `fields` may also be those of a chat: tools, tool_choice, parallel_tool_calls, reasoning_effort,
        thinking_token_budget. `template`: add_generation_prompt, continue_final_message, chat_template_kwargs. Without
        max_tokens an answer may fill the context.
        """
        many = as_conversations(conversations)
        talk, fields = apart(fields)
        params = spread(sampling_params, fields, len(many))
        asker, options = self._running.asker, {**(template or {}), **talk}
        jobs = [asker.chat(turns, params[i], f"conversations[{i}]", options) for i, turns in enumerate(many)]
        return self._run(jobs, "chatting", progress)

    def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Prompt | Sequence[Prompt] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[Score]:
        """How likely each text is, or each continuation after its prompt; several may follow one prompt.

        Without continuations all tokens but the first are scored. Raises RequestError naming the prompt, and the error
        of a prompt that failed.
        """
        asker = self._running.asker
        jobs = [asker.scoring(a, b, f"prompts[{i}]") for i, (a, b) in enumerate(_pairs(prompts, continuations))]
        completions = self._run(jobs, "scoring", progress)
        return [_score(job, completion) for job, completion in zip(jobs, completions, strict=True)]

    def tokenize(self, text: str) -> list[int]:
        """Token ids as `generate` would see them (a start token first where the model wants one)."""
        ids: list[int] = self._running.model.tokenizer.encode_rendered(text).tolist()
        return ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Raises InvalidRequest for an id outside the vocabulary."""
        return self._running.model.tokenizer.decode(token_ids)

    @property
    def _running(self) -> Core:
        if self._core is None:
            raise Unavailable("this LLM is closed")
        return self._core

    def _run(self, jobs: list[Job], what: str, progress: bool | None) -> list[Completion]:
        core, show = self._running, self._show if progress is None else progress
        with metered(what, len(jobs), core.model.clock, show=show) as meter:
            return self._loop.run(core.complete_all(jobs, meter.tell))


def _close(core: Core, loop: LoopThread) -> None:
    core.close()
    loop.close()


def _pairs(
    prompts: Prompt | Sequence[Prompt], continuations: Prompt | Sequence[Prompt] | None
) -> list[tuple[Prompt, Prompt | None]]:
    """(prompt, continuation); a single prompt goes with every continuation."""
    many, single = as_prompts(prompts)
    if continuations is None:
        return [(prompt, None) for prompt in many]
    after, _ = as_prompts(continuations)
    if single:
        many = many * len(after)
    if len(many) != len(after):
        raise InvalidRequest(
            f"continuations has {len(after)} entries for {len(many)} prompts; give one for each", param="continuations"
        )
    return list(zip(many, after, strict=True))


def _score(job: Job, completion: Completion) -> Score:
    if completion.error is not None:
        raise completion.error
    assert completion.prompt_logprobs is not None
    tokens = completion.prompt_logprobs[job.known :]
    greedy = all(token.top[0][2] <= (token.logprob or 0.0) for token in tokens)
    return Score([t.token_id for t in tokens], [t.logprob or 0.0 for t in tokens], greedy)
