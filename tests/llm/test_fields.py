"""What a chat and a prompt may ask for beside plain sampling: tools, thoughts, beams, the best of several, bounds on
tokens and prompts. The answers are those of HTTP, and a mistake names its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tailrace import LLM, AsyncEngine
from tailrace.errors import InvalidRequest, TailraceError, Unsupported
from tailrace.llm.output import ChatEvent
from tests.llm.over_http import all_over_http
from tests.tiny import CHATML

SCHEMA = {
    "type": "object",
    "properties": {
        "where": {"type": "string", "maxLength": 6, "pattern": "^[a-z]*$"},
        "days": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["where", "days"],
}
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
LAMP: dict[str, Any] = {"type": "function", "function": {"name": "lamp_on"}}
NAMED = {"type": "function", "function": {"name": "look"}}
MESSAGES = [{"role": "user", "content": "hello world"}]
CALLING: dict[str, Any] = {"tools": [LOOK, LAMP], "tool_choice": NAMED, "max_tokens": 120, "seed": 4}
PROMPT = "and other things of the world"
LONG = [5 + place % 200 for place in range(200)]

FIELDS: dict[str, dict[str, Any]] = {
    "best": {"best_of": 4, "n": 2, "seed": 3, "ignore_eos": True},
    "beams": {"use_beam_search": True, "best_of": 3, "n": 2, "length_penalty": 0.5, "early_stopping": "never"},
    "words": {"bad_words": ["the", "and", "o"], "temperature": 0},
    "allowed": {"allowed_token_ids": [20, 30, 40], "seed": 2},
    "cut": {"truncate_prompt_tokens": 3, "prompt_logprobs": 1, "temperature": 0},
}


def pairs(calls: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


async def test_the_answers_of_http(llm: LLM, tiny: Path, settings: dict[str, Any]) -> None:
    asked = [("/v1/completions", {"prompt": PROMPT, **fields}) for fields in FIELDS.values()]
    chats = [("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9, **fields}) for fields in FIELDS.values()]
    answers = await all_over_http(tiny, settings, [*asked, *chats])
    mine = [llm.generate(PROMPT, **fields)[0] for fields in FIELDS.values()]
    mine += [llm.chat(MESSAGES, max_tokens=9, **fields)[0] for fields in FIELDS.values()]
    for done, answer in zip(mine, answers, strict=True):
        said = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in answer["choices"]]
        assert [output.text for output in done.outputs] == said
        assert [output.index for output in done.outputs] == list(range(len(said)))
        assert [output.finish_reason for output in done.outputs] == [c["finish_reason"] for c in answer["choices"]]
        assert done.usage.total_tokens == answer["usage"]["total_tokens"]


def test_the_best_of_several_are_the_most_likely_ones(llm: LLM) -> None:
    fields: dict[str, Any] = {"seed": 3, "max_tokens": 8, "ignore_eos": True}
    (every,) = llm.generate(PROMPT, n=4, logprobs=0, **fields)
    (best,) = llm.generate(PROMPT, n=2, best_of=4, **fields)
    ranked = sorted(every.outputs, key=lambda output: -(output.cumulative_logprob or 0))
    assert [output.token_ids for output in best.outputs] == [output.token_ids for output in ranked[:2]]
    assert [output.logprobs for output in best.outputs] == [None, None]
    assert best.usage.completion_tokens == 32
    assert llm.generate(PROMPT, best_of=4, n=1, logprobs=0, **fields)[0].logprobs == ranked[0].logprobs


def test_beams_find_what_is_at_least_as_likely_as_greedy(llm: LLM) -> None:
    fields: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "logprobs": 0}
    (greedy,) = llm.generate(PROMPT, temperature=0, **fields)
    (one,) = llm.generate(PROMPT, use_beam_search=True, **fields)
    (done,) = llm.generate(PROMPT, use_beam_search=True, n=3, **fields)
    assert one.token_ids == greedy.token_ids
    sums = [output.cumulative_logprob or 0.0 for output in done.outputs]
    assert sums == sorted(sums, reverse=True)
    assert len({tuple(output.token_ids) for output in done.outputs}) == 3


def test_bounds_on_tokens_and_prompts(llm: LLM) -> None:
    (allowed,) = llm.generate(PROMPT, allowed_token_ids=(20, 30), max_tokens=30, seed=1)
    assert set(allowed.token_ids) == {20, 30}
    (plain,) = llm.generate(PROMPT, temperature=0, max_tokens=1, ignore_eos=True)
    (other,) = llm.generate(PROMPT, temperature=0, max_tokens=1, ignore_eos=True, bad_words=[plain.text])
    assert other.token_ids != plain.token_ids
    (cut,) = llm.generate(PROMPT, truncate_prompt_tokens=3, prompt_logprobs=0, max_tokens=0)
    assert (cut.prompt, cut.prompt_token_ids) == (PROMPT, llm.tokenize(PROMPT)[-3:])
    assert len(cut.prompt_logprobs or []) == 3
    (long,) = llm.generate([[5] * 3000], truncate_prompt_tokens=-1, max_tokens=4, ignore_eos=True)
    assert (len(long.prompt_token_ids), len(long.token_ids)) == (llm.max_context - 4, 4)
    (chat,) = llm.chat(MESSAGES, truncate_prompt_tokens=2, max_tokens=0, prompt_logprobs=0)
    assert (len(chat.prompt_token_ids), chat.token_ids) == (2, [])


def test_a_salt_keeps_a_prompts_cache_apart(llm: LLM) -> None:
    found = [llm.generate(LONG, cache_salt=salt, max_tokens=1)[0].usage.cached_tokens for salt in ("a", "b", "a")]
    assert found[:2] == [0, 0]
    assert found[2] >= 128


async def test_calls_are_those_of_http(llm: LLM, tiny: Path, settings: dict[str, Any]) -> None:
    bodies = [{**CALLING, "messages": MESSAGES}, {**CALLING, "messages": MESSAGES, "tool_choice": "none"}]
    asked = [("/v1/chat/completions", body) for body in bodies]
    called, free = [answer["choices"][0] for answer in await all_over_http(tiny, settings, asked)]
    (done,) = llm.chat(MESSAGES, **CALLING)
    ((name, arguments),) = pairs(done.tool_calls)
    jsonschema.validate(json.loads(arguments), SCHEMA)
    assert (name, done.text, done.finish_reason) == ("look", "", "tool_calls")
    assert pairs(called["message"]["tool_calls"]) == [(name, arguments)]
    assert (done.tool_calls[0]["type"], len(done.tool_calls[0]["id"])) == ("function", 29)
    (plain,) = llm.chat(MESSAGES, **{**CALLING, "tool_choice": "none"})
    assert (plain.text, plain.tool_calls) == (free["message"]["content"], [])


def test_calls_and_results_go_back_into_the_conversation(llm: LLM) -> None:
    first, second = llm.chat([MESSAGES, MESSAGES], **CALLING)
    assert pairs(first.tool_calls) == pairs(second.tool_calls)
    assert first.tool_calls[0]["id"] != second.tool_calls[0]["id"]
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": first.tool_calls},
        {"role": "tool", "tool_call_id": first.tool_calls[0]["id"], "content": "20 degrees"},
    ]
    (again,) = llm.chat(turns, tools=[LOOK], max_tokens=3, seed=1, ignore_eos=True)
    assert again.prompt is not None
    assert "20 degrees" in again.prompt
    assert json.dumps(json.loads(first.tool_calls[0]["function"]["arguments"])) in again.prompt


async def test_a_stream_of_calls_says_what_the_whole_answer_says(tiny: Path, settings: dict[str, Any]) -> None:
    async with AsyncEngine(tiny, **settings) as engine:
        events = [event async for event in engine.chat(MESSAGES, **CALLING)]
        whole = await engine.complete_chat(MESSAGES, **CALLING)
        with pytest.raises(InvalidRequest, match="not with stream") as beams:
            engine.generate("hello", use_beam_search=True)
        with pytest.raises(InvalidRequest, match="not with stream") as best:
            engine.chat(MESSAGES, best_of=2)
        assert (await engine.complete("hello", use_beam_search=True, max_tokens=2)).error is None
    pieces = [call for event in events for delta in event.deltas for call in delta.get("tool_calls", [])]
    assert [piece["index"] for piece in pieces] == [0] * len(pieces)
    assert [piece["function"]["name"] for piece in pieces if "id" in piece] == ["look"]
    joined = "".join(piece["function"]["arguments"] for piece in pieces)
    assert [("look", joined)] == pairs(whole.tool_calls)
    assert _ended(events) == ["tool_calls"]
    assert [token for event in events for token in event.token_ids] == whole.token_ids
    assert (beams.value.param, best.value.param) == ("stream", "best_of")


def _ended(events: list[ChatEvent]) -> list[str]:
    return [event.finish for event in events if event.finish is not None]


async def test_thoughts_are_no_text(tiny: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    template = tmp_path / "thinks.jinja"
    template.write_text(CHATML.replace("assistant\n' }}", "assistant\n<think>' }}") + "{# </think> #}")
    fields: dict[str, Any] = {"thinking_token_budget": 6, "max_tokens": 40, "seed": 7, "ignore_eos": True}
    async with AsyncEngine(tiny, chat_template=str(template), **settings) as engine:
        done = await engine.complete_chat(MESSAGES, **fields)
        events = [event async for event in engine.chat(MESSAGES, **fields)]
        raw = engine._running.model.tokenizer.decode(done.token_ids)
    assert done.prompt is not None
    assert done.prompt.endswith("<think>")
    thoughts, said = raw.split("</think>")
    assert done.reasoning_content == thoughts.strip()
    assert done.text == said.lstrip()
    assert "".join(event.text for event in events) == done.text
    told = [delta["reasoning_content"] for event in events for delta in event.deltas if "reasoning_content" in delta]
    assert "".join(told) == done.reasoning_content


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"best_of": 1, "n": 2}, "best_of", "best_of is 1, less than n (2)"),
        ({"best_of": 9}, "best_of", "best_of is 9; this server makes at most 8 choices"),
        ({"length_penalty": 2}, "length_penalty", "length_penalty needs use_beam_search: true"),
        ({"use_beam_search": True, "top_k": 4}, "top_k", "top_k is 4, but a beam search draws nothing"),
        ({"bad_words": [" "]}, "bad_words", "a word of bad_words has 1 to 128 characters"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "allowed_token_ids must hold at least one token id"),
        ({"allowed_token_ids": [99999]}, "allowed_token_ids", "allowed_token_ids holds token id 99999"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "truncate_prompt_tokens is 0; accepted is 1 to 2048"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "prompt_logprobs is 21; at most 20 are given"),
        ({"cache_salt": "\ud800"}, "cache_salt", "cache_salt should be a valid string"),
    ],
)
def test_a_mistake_names_its_field(llm: LLM, fields: dict[str, Any], param: str, message: str) -> None:
    for ask in (lambda: llm.generate("hello", **fields), lambda: llm.chat(MESSAGES, **fields)):
        with pytest.raises(InvalidRequest) as caught:
            ask()
        assert caught.value.param == param
        assert caught.value.message.removeprefix("conversations[0]: ").startswith(message)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice", "conversations[0]: tool_choice needs tools"),
        ({"tools": [LOOK, LOOK]}, "tools[1].function.name", "conversations[0]: tools[1].function.name is 'look'"),
        ({"tools": LOOK}, "tools", "conversations[0]: tools should be a valid list"),
        ({"tools": [LOOK], "tool_choice": "maybe"}, "tool_choice", "conversations[0]: tool_choice is 'maybe'"),
        ({"tools": [LOOK], "guided_regex": "a"}, "guided_regex", "conversations[0]: guided_regex and tools exclude"),
        ({"thinking_token_budget": 3}, "thinking_token_budget", "conversations[0]: thinking_token_budget is not supp"),
        ({"template": {"temperature": 0}}, "temperature", "temperature is no option of a chat; known are"),
        ({"tols": []}, "tols", "unknown sampling parameter tols"),
    ],
)
def test_a_mistake_in_what_a_chat_says(llm: LLM, fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(TailraceError) as caught:
        llm.chat(MESSAGES, **fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(message)
    assert isinstance(caught.value, InvalidRequest | Unsupported)
