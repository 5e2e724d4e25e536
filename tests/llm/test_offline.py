"""LLM over a tiny model: what comes out, in which order, equal to HTTP; mistakes; the end."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from tailrace import LLM, SamplingParams
from tailrace.errors import (
    ConfigError,
    ContextLengthExceeded,
    InternalError,
    InvalidRequest,
    StoreError,
    TemplateRefused,
    Unavailable,
)
from tests.llm.over_http import over_http

PROMPTS = ["hello world", "the", "and other things of the world", "a"]
VARIED: dict[str, Any] = {
    "n": 2, "max_tokens": 20, "temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.9,
    "presence_penalty": 0.3,
    "repetition_penalty": 1.1, "logit_bias": {"40": -1.5}, "seed": 11, "logprobs": 2, "stop": ["qq"],
    "ignore_eos": True,
}  # fmt: skip


def test_order_counts_and_reasons(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=3 + i, temperature=0, ignore_eos=True) for i in range(40)]
    prompts = [[5 + i] * (1 + i) for i in range(40)]
    done = llm.generate(prompts, params)
    assert [c.prompt_token_ids for c in done] == prompts
    assert [len(c.token_ids) for c in done] == [3 + i for i in range(40)]
    assert {c.finish_reason for c in done} == {"length"}
    assert [c.usage.prompt_tokens for c in done] == [1 + i for i in range(40)]
    assert done[0].text == llm.detokenize(done[0].token_ids)
    assert (done[0].prompt, done[0].logprobs, done[0].error) == (None, None, None)
    assert [llm.generate([p], q)[0].token_ids for p, q in zip(prompts[:3], params[:3], strict=True)] == [
        c.token_ids for c in done[:3]
    ]


class City(BaseModel):
    name: str = Field(max_length=8)
    size: Literal["small", "large"]


def test_answers_follow_a_pydantic_model(llm: LLM) -> None:
    for done in llm.generate(["hello", "world"], guided_json=City, max_tokens=120, seed=3):
        assert done.finish_reason == "stop"
        City.model_validate_json(done.text)


def test_a_grammar_that_cannot_be_followed_is_refused_before_any_prompt_runs(llm: LLM) -> None:
    good, bad = SamplingParams(max_tokens=1), SamplingParams(guided_regex="(")
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(["hello", "world"], [good, bad])
    assert caught.value.param == "guided_regex"
    assert good.but(guided_choice=["a"]).guided_choice == ["a"]


def test_a_single_prompt_is_a_list_of_one(llm: LLM) -> None:
    (text,) = llm.generate("hello", max_tokens=2, temperature=0, ignore_eos=True)
    (ids,) = llm.generate(llm.tokenize("hello"), max_tokens=2, temperature=0, ignore_eos=True)
    assert (text.prompt, ids.prompt) == ("hello", None)
    assert text.token_ids == ids.token_ids
    assert llm.generate([]) == []


def test_timings_add_up_and_tell_the_counts(llm: LLM) -> None:
    times = llm.generate("hello world", max_tokens=5, temperature=0, ignore_eos=True)[0].timings
    parts = (times.ingress_ms, times.render_ms, times.queue_ms, times.prefill_ms, times.decode_ms, times.post_ms)
    assert sum(parts) == pytest.approx(times.total_ms)
    assert times.prefill_ms > 0
    assert times.completion_tokens == 5


async def test_texts_equal_the_answers_of_http(llm: LLM, tiny: Path, settings: dict[str, Any]) -> None:
    answer = await over_http(tiny, settings, "/v1/completions", {"prompt": PROMPTS, **VARIED})
    mine = [output for c in llm.generate(PROMPTS, SamplingParams(**VARIED)) for output in c.outputs]
    assert [o.text for o in mine] == [c["text"] for c in answer["choices"]]
    assert [o.finish_reason for o in mine] == [c["finish_reason"] for c in answer["choices"]]
    for output, choice in zip(mine, answer["choices"], strict=True):
        assert output.logprobs is not None
        assert [t.logprob for t in output.logprobs] == choice["logprobs"]["token_logprobs"]
        assert [len(t.top) for t in output.logprobs] == [2] * 20


async def test_chats_equal_the_answers_of_http(llm: LLM, tiny: Path, settings: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hello world"}]
    asked = {"max_tokens": 12, "seed": 5, "temperature": 1.0}
    answer = await over_http(tiny, settings, "/v1/chat/completions", {"messages": messages, **asked})
    (mine,) = llm.chat(messages, **asked)
    assert mine.text == answer["choices"][0]["message"]["content"]
    assert mine.usage.prompt_tokens == answer["usage"]["prompt_tokens"]
    assert mine.prompt == "<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n"
    both = llm.chat([messages, messages], **asked)
    assert [c.text for c in both] == [mine.text] * 2


async def test_scores_equal_echoed_logprobs_of_http(llm: LLM, tiny: Path, settings: dict[str, Any]) -> None:
    body = {"prompt": PROMPTS[2], "max_tokens": 0, "echo": True, "logprobs": 0}
    answer = await over_http(tiny, settings, "/v1/completions", body)
    expected = answer["choices"][0]["logprobs"]["token_logprobs"]
    (score,) = llm.score(PROMPTS[2])
    assert [None, *score.logprobs] == expected
    assert score.token_ids == llm.tokenize(PROMPTS[2])[1:]
    assert score.logprob == pytest.approx(sum(expected[1:]))
    assert score.perplexity == pytest.approx(math.exp(-score.logprob / len(score.logprobs)))


def test_a_continuation_is_scored_after_its_prompt(llm: LLM) -> None:
    (whole,) = llm.score("hello world and")
    (after,) = llm.score("hello world", " and")
    assert after.token_ids == llm.tokenize("hello world and")[-1:]
    assert after.logprobs == whole.logprobs[-1:]
    several = llm.score("hello world", [" and", " of the"])
    assert several[0] == after
    assert several[1].token_ids == llm.tokenize(" of the")
    assert llm.score([[7, 8, 9]], [[10, 11]])[0].token_ids == [10, 11]


def test_a_token_across_the_border_belongs_to_the_continuation(llm: LLM) -> None:
    assert len(llm.tokenize("hello")) < len(llm.tokenize("hel")) + len(llm.tokenize("lo"))
    (score,) = llm.score(". hel", "lo")
    assert llm.detokenize(score.token_ids) == "hello"


def test_greedy_answers_are_known_to_be_greedy(llm: LLM) -> None:
    prompt = llm.tokenize("hello world")
    (best,) = llm.generate(prompt, max_tokens=4, temperature=0, ignore_eos=True)
    other = [*best.token_ids[:3], (best.token_ids[3] + 1) % 200 + 3]
    scores = llm.score(prompt, [best.token_ids, other])
    assert [score.is_greedy for score in scores] == [True, False]


def test_prompt_logprobs_come_with_the_prompt(llm: LLM) -> None:
    (done,) = llm.generate("hello world", max_tokens=1, prompt_logprobs=2)
    assert done.prompt_logprobs is not None
    assert [t.token_id for t in done.prompt_logprobs] == llm.tokenize("hello world")
    assert done.prompt_logprobs[0].logprob is None
    assert len(done.prompt_logprobs[-1].top) == 2


@pytest.mark.parametrize(
    ("prompts", "fields", "message"),
    [
        (["fine", ""], {}, "prompts[1] has no tokens"),
        (["fine", [4, 99999]], {}, "prompts[1] holds token id 99999"),
        (["fine", []], {}, "prompts[1] must be a text or a list of token ids, not empty"),
        (["fine", 3.5], {}, "prompts[1] must be a text or a list of token ids"),
        (["half \ud800"], {}, "prompts[0] holds half a surrogate pair"),
        (["fine"], {"n": 9}, "n is 9; at most 8 answers are made at once: raise max_sequences"),
        (["fine"], {"logprobs": 21}, "logprobs is 21; at most 20 are given"),
        (["fine"], {"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9"),
        (["fine"], {"stop": ""}, "stop must not hold an empty string"),
    ],
)
def test_a_bad_prompt_is_named_before_anything_runs(llm: LLM, prompts: Any, fields: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(prompts, **fields)
    assert caught.value.message.startswith(message)


def test_a_prompt_beyond_the_context_is_refused(llm: LLM) -> None:
    with pytest.raises(ContextLengthExceeded, match=r"prompts\[1\] has 2048"):
        llm.generate([[5], [5] * 2048])
    assert llm.max_context == 2048
    assert len(llm.generate([[5] * 2046], max_tokens=100, ignore_eos=True)[0].token_ids) == 2


def test_bad_conversations_are_named(llm: LLM) -> None:
    good = [{"role": "user", "content": "hello"}]
    with pytest.raises(InvalidRequest, match=r"conversations\[1\]: messages must hold at least one message"):
        llm.chat([good, []])
    with pytest.raises(InvalidRequest, match=r"conversations\[0\]: messages\[0\]\.role should be 'system'"):
        llm.chat([{"role": "nobody", "content": "x"}])
    with pytest.raises(InvalidRequest, match=r"conversations\[0\] must be a list of messages"):
        llm.chat("hello")  # type: ignore[arg-type]


def test_templates_take_their_options(llm: LLM) -> None:
    started = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "the wor"}]
    (done,) = llm.chat(started, template={"continue_final_message": True}, max_tokens=1)
    assert done.prompt is not None
    assert done.prompt.endswith("assistant\nthe wor")


def test_scores_say_what_cannot_be_scored(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match=r"prompts\[0\] leaves nothing to score"):
        llm.score([[5]])
    with pytest.raises(InvalidRequest, match="continuations has 1 entries for 2 prompts"):
        llm.score(["a b", "c d"], [" e"])
    with pytest.raises(InvalidRequest, match="must both be texts or both be token ids"):
        llm.score(["a b"], [[4]])


def test_one_failing_prompt_fails_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailrace.engine.answer import Answer

    plain = Answer.event

    def event(self: Answer, update: Any, result: Any) -> Any:
        if len(self.group.request.prompt) == 7 and update.token is not None:
            raise RuntimeError("broken")
        return plain(self, update, result)

    monkeypatch.setattr(Answer, "event", event)
    good, bad = llm.generate([[5] * 6, [5] * 7], max_tokens=3, temperature=0, ignore_eos=True)
    assert (good.finish_reason, good.error) == ("length", None)
    assert bad.finish_reason == "error"
    assert isinstance(bad.error, InternalError)


def test_settings_are_checked(tiny: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"engine\.threads = -1"):
        LLM(tiny, **settings | {"threads": -1})
    with pytest.raises(ConfigError, match=r"unknown setting engine\.thread "):
        LLM(tiny, thread=1)
    with pytest.raises(StoreError, match="no model file at"):
        LLM(tiny.parent / "absent.gguf", **settings)


def test_a_refused_template_is_a_typed_error(tiny: Path, settings: dict[str, Any]) -> None:
    template = tiny.parent / "strict.jinja"
    template.write_text("{{ raise_exception('no ' + messages[0]['content']) }}")
    strict = LLM(tiny, progress=False, chat_template=str(template), **settings)
    with strict, pytest.raises(TemplateRefused, match=r"conversations\[0\]: .*no thanks"):
        strict.chat([{"role": "user", "content": "thanks"}])


def test_threads_share_the_batch_and_a_running_loop_is_no_hindrance(llm: LLM) -> None:
    expected = [llm.generate([[9 + i]], max_tokens=20, seed=i)[0].token_ids for i in range(4)]
    found: dict[int, list[int]] = {}

    def call(i: int) -> None:
        found[i] = llm.generate([[9 + i]], max_tokens=20, seed=i)[0].token_ids

    threads = [threading.Thread(target=call, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()

    async def inside() -> None:
        call(3)

    asyncio.run(inside())
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == expected


def test_ctrl_c_ends_the_work_and_the_object_can_be_used_again(llm: LLM) -> None:
    core = llm._running
    stream, calls, interrupted = core.stream, [], threading.Event()

    def interrupting(job: Any) -> Any:
        calls.append(job)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupted.wait(120)  # whoever is waited for here cannot end meanwhile
        return stream(job)

    def interrupt(*args: Any) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    core.stream = interrupting  # type: ignore[method-assign]
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[5]] * 100, max_tokens=2000, ignore_eos=True)
    finally:
        signal.signal(signal.SIGINT, before)
        core.stream = stream  # type: ignore[method-assign]
    assert len(calls) < 100
    (after,) = llm.generate([[5]], max_tokens=3, ignore_eos=True)
    assert len(after.token_ids) == 3
    assert core.model.backend.load().running == 0


def test_closing_ends_it(tiny: Path, settings: dict[str, Any]) -> None:
    llm = LLM(tiny, progress=False, **settings)
    assert llm.model == "tiny"
    llm.close()
    llm.close()
    with pytest.raises(Unavailable, match="closed"):
        llm.generate("hello")


def test_progress_is_silent_when_asked_and_without_a_terminal(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate([[5], [6]], max_tokens=2, progress=True)
    llm.generate([[5], [6]], max_tokens=2)
    assert capfd.readouterr() == ("", "")


def test_importing_tailrace_loads_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import tailrace; new = set(sys.modules) - before\n"
        "heavy = {m for m in new if m.split('.')[0] not in ('tailrace', 'importlib') and '.' not in m}\n"
        "print(sorted(heavy & {'numpy', 'pydantic', 'rich', 'asyncio', 'jinja2', 'fastapi'}),\n"
        "      sorted(m for m in new if m.startswith('tailrace.')))\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert found.stdout == "[] []\n"


def test_public_names_are_there_and_others_are_not() -> None:
    import tailrace

    assert {name: getattr(tailrace, name).__name__ for name in tailrace.__all__} == {n: n for n in tailrace.__all__}
    assert set(tailrace.__all__) <= set(dir(tailrace))
    with pytest.raises(AttributeError, match="no attribute 'LLm'"):
        tailrace.LLm  # noqa: B018
