"""Both models answer alike however they are asked: HTTP (plain, streamed), AsyncEngine, LLM; and near the independent
engine's own answers, whose numbers tests/data has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tailrace import LLM, AsyncEngine
from tailrace.api.state import AppState, one_model
from tailrace.config import Config, load, store_root
from tailrace.control.pipeline import Pipeline
from tailrace.engine.store.store import Store
from tailrace.errors import InvalidRequest
from tailrace.llm.ready import Model
from tailrace.observe.metrics import Metrics
from tailrace.text.template import ChatTemplate
from tests.serving import Streamed, in_process, parse_stream

GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
SETTINGS: dict[str, Any] = {"max_context": 512, "kv_memory": "64MiB", "max_sequences": 16}
PROMPTS = 6  # of ten: what takes long is checked by test_golden and test_gemma3
MESSAGES = [{"role": "user", "content": "Name three primary colors."}]
PLAIN_CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True)
class Case:
    """`apart`: bound of the mean difference of log-probabilities, nats, of golden tokens that are likely. `alike`: at
    least so many tokens of the golden answers, of 144, come before ours part from them for good (measured: 49, 81; a
    near tie decides). `chats`: the model has a template."""

    name: str
    golden: str
    apart: float
    alike: int
    chats: bool


CASES = (
    Case("smollm2:135m", "smollm2-135m-instruct.q4_1.json", apart=0.07, alike=30, chats=True),
    Case("gemma3:270m", "gemma-3-270m.q4_k_m.json", apart=0.06, alike=50, chats=False),
)


@dataclass(frozen=True)
class Answers:
    """What one model gave over HTTP and as AsyncEngine, by path."""

    plain: dict[str, Any]
    streamed: Streamed
    echoed: dict[str, Any]
    chat: httpx.Response
    chat_streamed: httpx.Response
    own_chat: dict[str, Any]
    engine_chat: str
    complete: list[list[int]]
    events: list[str]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture(scope="module")
def golden(case: Case) -> list[dict[str, Any]]:
    path = Path(__file__).parents[1] / "data" / case.golden
    answers: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["greedy"]
    return answers[:PROMPTS]


@pytest.fixture(scope="module")
def own_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("paths") / "plain.jinja"
    path.write_text(PLAIN_CHAT)
    return path


@pytest.fixture(scope="module")
def model_path(case: Case) -> Path:
    """Where `tailrace pull` puts it. A test that cannot have it fails with the store's own error."""
    return Store(store_root(load().config.engine)).pull(case.name)


@pytest.fixture(scope="module")
def llm(model_path: Path, own_template: Path) -> Iterator[LLM]:
    with LLM(model_path, progress=False, chat_template=str(own_template), **SETTINGS) as llm:
        yield llm


@pytest.fixture(scope="module")
def answers(model_path: Path, own_template: Path, golden: list[dict[str, Any]]) -> Answers:
    return asyncio.run(ask(model_path, own_template, golden))


async def ask(path: Path, own_template: Path, golden: list[dict[str, Any]]) -> Answers:
    prompts = [answer["prompt"] for answer in golden]
    async with AsyncEngine(path, **SETTINGS) as engine:
        model = engine._running.model
        mine = ChatTemplate.from_file(own_template, model.loaded.metadata, clock=model.clock)
        async with in_process(state_of(model, model.template)) as http, in_process(state_of(model, mine)) as own:
            talk = {"messages": MESSAGES, **GREEDY}
            continued = [prompt + answer["text"] for prompt, answer in zip(prompts, golden, strict=True)]
            stream = {"stream": True, "stream_options": {"include_usage": True}}
            return Answers(
                plain=(await http.post(COMPLETIONS, json={"prompt": prompts, **GREEDY})).json(),
                streamed=parse_stream(
                    (await http.post(COMPLETIONS, json={"prompt": prompts, **GREEDY, **stream})).text
                ),
                echoed=(
                    await http.post(
                        COMPLETIONS, json={"prompt": continued, "max_tokens": 0, "echo": True, "logprobs": 0}
                    )
                ).json(),
                chat=await http.post(CHAT, json=talk),
                chat_streamed=await http.post(CHAT, json={**talk, **stream}),
                own_chat=(await own.post(CHAT, json=talk)).json(),
                engine_chat=await chat_of(engine),
                complete=[c.token_ids for c in await asyncio.gather(*[engine.complete(p, **GREEDY) for p in prompts])],
                events=["".join([event.text async for event in engine.generate(p, **GREEDY)]) for p in prompts],
            )


async def chat_of(engine: AsyncEngine) -> str:
    """The answer, or why there is none."""
    try:
        return (await engine.complete_chat(MESSAGES, **GREEDY)).text
    except InvalidRequest as refusal:
        return refusal.message


def state_of(model: Model, template: ChatTemplate | None) -> AppState:
    metrics = Metrics()
    pipeline = Pipeline(model.backend, Config().control, model.clock, metrics)
    models = one_model(pipeline, model.tokenizer, template, Config(), model.clock)
    return AppState(Config(), pipeline, models, metrics, model.clock)


def test_all_paths_give_the_same_answers(llm: LLM, answers: Answers, golden: list[dict[str, Any]], case: Case) -> None:
    done = llm.generate([answer["prompt"] for answer in golden], **GREEDY)
    texts = [completion.text for completion in done]
    assert [choice["text"] for choice in answers.plain["choices"]] == texts
    assert [answers.streamed.text(index) for index in range(len(golden))] == texts
    assert answers.events == texts
    assert answers.complete == [completion.token_ids for completion in done]
    assert [choice["finish_reason"] for choice in answers.plain["choices"]] == [c.finish_reason for c in done]
    steps = [[step["id"] for step in answer["steps"]] for answer in golden]
    alike = sum(shared(mine.token_ids, theirs) for mine, theirs in zip(done, steps, strict=True))
    print(f"{case.name}: the same for {alike} of {sum(map(len, steps))} tokens")
    assert alike >= case.alike


def shared(ours: list[int], theirs: list[int]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))


def test_usage_adds_up(llm: LLM, answers: Answers, golden: list[dict[str, Any]]) -> None:
    usage = answers.plain["usage"]
    assert usage["prompt_tokens"] == sum(len(llm.tokenize(answer["prompt"])) for answer in golden)
    assert usage["completion_tokens"] == sum(map(len, answers.complete))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    last = answers.streamed.events[-1]["usage"]
    assert {key: last[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
        key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    }


def test_scores_are_near_the_independent_engines(
    llm: LLM, answers: Answers, golden: list[dict[str, Any]], case: Case
) -> None:
    """The bounds of test_golden and test_gemma3, of the numbers that people get."""
    theirs, ours = [], []
    for answer in golden:
        steps = [step["id"] for step in answer["steps"]]
        (score,) = llm.score([llm.tokenize(answer["prompt"])], [steps])
        theirs += [dict(step["top"])[step["id"]] for step in answer["steps"]]
        ours += score.logprobs
    likely = np.array(theirs) > -1
    assert likely.sum() > 80
    assert np.abs(np.array(ours) - np.array(theirs))[likely].mean() < case.apart


def test_echoed_log_probabilities_are_the_scores(llm: LLM, answers: Answers, golden: list[dict[str, Any]]) -> None:
    scores = llm.score([answer["prompt"] + answer["text"] for answer in golden])
    echoed = [choice["logprobs"]["token_logprobs"] for choice in answers.echoed["choices"]]
    assert echoed == [[None, *score.logprobs] for score in scores]


def test_chat(answers: Answers, case: Case) -> None:
    if not case.chats:
        assert answers.chat.status_code == answers.chat_streamed.status_code == 400
        refusals = [answer.json()["error"]["message"] for answer in (answers.chat, answers.chat_streamed)]
        assert all("--chat-template FILE" in refusal for refusal in [*refusals, answers.engine_chat])
        return
    plain, streamed = answers.chat.json(), parse_stream(answers.chat_streamed.text)
    text = plain["choices"][0]["message"]["content"]
    assert "red" in text.lower()
    assert streamed.text() == answers.engine_chat == text
    assert streamed.events[-1]["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


def test_chat_with_a_template_of_ones_own(llm: LLM, answers: Answers) -> None:
    (mine,) = llm.chat(MESSAGES, **GREEDY)
    assert mine.prompt == f"user: {MESSAGES[0]['content']}\nassistant:"
    assert answers.own_chat["choices"][0]["message"]["content"] == mine.text
    assert answers.own_chat["usage"]["completion_tokens"] == len(mine.token_ids) > 0
