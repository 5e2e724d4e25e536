"""Grammars on the real kernels: the same bits alone, in company, drafted or not, with any number of threads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from tailrace.clock import ManualClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.grammar.drafter import GrammarDrafter
from tailrace.engine.parts import EngineParts
from tailrace.engine.runner import NativeRunner
from tailrace.engine.step import StepPlan
from tailrace.types import FinishReason, GenerateRequest
from tests.engine.grammar.test_answers import FORCED, PERSON, asks, regex, schema
from tests.engine.support import Rig
from tests.tiny import write_tiny_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grammar")
    write_tiny_gguf(folder / "tiny.gguf")
    return folder


def engine(folder: Path, **settings: object) -> EngineParts:
    config = replace(EngineConfig(threads=1, max_sequences=8, max_context=512, kv_memory=2**21), **settings)  # type: ignore[arg-type]
    return build_engine(folder / "tiny.gguf", config, ManualClock(), cache_dir=folder)


def wanted() -> list[GenerateRequest]:
    return [
        asks(schema(PERSON), "person", 20, n=2),
        asks(schema(FORCED), "forced", 70, seed=None),
        asks(schema(PERSON), "scored", 33, seed=5, logprobs=2),
        asks(regex("[a-z ]{10,40}"), "letters", 9, seed=2, frequency_penalty=0.5),
        asks(None, "free", 15, most=60, ignore_eos=True),
    ]


def said(rig: Rig) -> dict[tuple[str, int], tuple[list[int], str, list[float | None]]]:
    return {key: (one.tokens, one.text, one.logprobs) for key, one in rig.choices.items()}


@pytest.fixture(scope="module")
def plain(folder: Path) -> Rig:
    """One after another, nothing drafted."""
    parts = engine(folder)
    parts.scheduler.drafter = None
    rig = Rig(parts)
    for one in wanted():
        rig.run(one)
    return rig


def test_answers_are_valid(plain: Rig) -> None:
    for key in (("person", 0), ("person", 1), ("scored", 0)):
        assert plain.choices[key].finish is FinishReason.STOP
        jsonschema.validate(json.loads(plain.choices[key].text), PERSON)
    assert plain.choices["forced", 0].text == '{"fixed": "always the same"}'
    assert len(plain.choices["scored", 0].logprobs) == len(plain.choices["scored", 0].tokens)


@pytest.mark.parametrize("settings", [{}, {"speculate": "off"}, {"threads": 2, "chunk_tokens": 16}])
def test_the_same_bits_together_and_drafted(folder: Path, plain: Rig, settings: dict[str, object]) -> None:
    rig = Rig(engine(folder, **settings))
    assert isinstance(rig.scheduler.drafter, GrammarDrafter)
    rig.run(*wanted())
    assert said(rig) == said(plain)
    assert rig.loop.stats.steps < plain.loop.stats.steps


def test_what_is_certain_needs_no_logits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who asks for log-probabilities has them of every token."""
    rows: list[int] = []
    found = NativeRunner._logit_rows

    def counted(runner: NativeRunner, plan: StepPlan, starts: list[int]) -> list[int]:
        wanted = found(runner, plan, starts)
        rows.append(len(wanted))
        return wanted

    monkeypatch.setattr(NativeRunner, "_logit_rows", counted)
    counts, answers = [], []
    for logprobs in (None, 1):
        parts = engine(folder, speculate="off")
        rows.clear()
        rig = Rig(parts).run(asks(schema(FORCED), "x", seed=None, logprobs=logprobs))
        counts.append(sum(rows))
        answers.append(rig.tokens("x"))
    assert answers[0] == answers[1]
    assert counts == [2, len(answers[0])]  # the first, which the prompt's row gives, and the end
