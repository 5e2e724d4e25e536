"""What is sent is a function of seed, run and number alone, and has the shape that the workload is named for."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tailrace.bench.options import Options
from tailrace.bench.pieces import Pieces
from tailrace.bench.workload import Talk, Workload, read_prompts
from tailrace.errors import ConfigError
from tailrace.traces import TraceRow

IDS = Pieces(ids=tuple(range(100, 400)), how="ids")
WORDS = Pieces(overhead=3, how="tokenize")


def talks(count: int, pieces: Pieces = IDS, salt: str = "0/0", rows: Any = None, **fields: Any) -> list[Talk]:
    return list(islice(Workload(Options(**fields), pieces, salt, rows).talks(), count))


def test_the_same_seed_is_the_same_load_and_another_run_is_another() -> None:
    fields = {"input": "uniform:5-50", "output": "uniform:1-9"}
    assert talks(20, **fields) == talks(20, **fields)
    assert talks(20, **fields) != talks(20, salt="0/1", **fields)


def test_random_prompts_share_nothing() -> None:
    prompts = [talk.turns[0].prompt for talk in talks(50, input="fixed:16")]
    assert {len(prompt) for prompt in prompts} == {16}
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 50


def test_shared_prefixes() -> None:
    made = talks(60, workload="shared-prefix", prefixes=3, prefix_tokens=40, input="fixed:10")
    prompts = [talk.turns[0].prompt for talk in made]
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 3
    assert len({tuple(prompt[40:]) for prompt in prompts}) == 60
    assert {talk.turns[0].asked_prompt for talk in made} == {50}


def test_conversations_have_turns_of_new_text() -> None:
    made = talks(5, WORDS, workload="multi-turn", turns="fixed:4", input="fixed:12")
    assert {len(talk.turns) for talk in made} == {4}
    assert len({turn.prompt for talk in made for turn in talk.turns}) == 20
    assert [turn.asked_prompt for turn in made[0].turns] == [12, None, None, None]


def test_a_mix_has_its_weights() -> None:
    made = talks(2000, workload="mixed", mix=("3 fixed:5 fixed:1", "1 fixed:50 fixed:2"))
    short = [talk for talk in made if talk.turns[0].asked_prompt == 5]
    assert len(short) / 2000 == pytest.approx(0.75, abs=0.03)
    assert {talk.turns[0].output_tokens for talk in short} == {1}


@pytest.mark.parametrize("mix", ["fixed:5 fixed:1", "x fixed:5 fixed:1", "0 fixed:5 fixed:1", "1 fixed:5 oops:1"])
def test_a_wrong_mix_is_refused(mix: str) -> None:
    with pytest.raises(ConfigError, match="--mix"):
        talks(1, workload="mixed", mix=(mix,))


def test_a_trace_is_replayed_with_its_prefixes() -> None:
    rows = [
        TraceRow(0.0, 1100, 7, (1, 2, 3)),
        TraceRow(1.0, 1030, 8, (1, 2, 4)),
        TraceRow(2.0, 600, 9, (5, 6)),
        TraceRow(3.0, 40, 9),
    ]
    made = talks(10, IDS, "0/0", rows, trace="given")
    prompts = [talk.turns[0].prompt for talk in made]
    assert [len(prompt) for prompt in prompts] == [1100, 1030, 600, 40]
    assert prompts[0][:1024] == prompts[1][:1024]
    assert prompts[0][1024:1030] != prompts[1][1024:]
    assert prompts[2][:512] != prompts[0][:512]
    assert [talk.turns[0].output_tokens for talk in made] == [7, 8, 9, 9]


def test_a_trace_can_be_made_smaller() -> None:
    rows = [TraceRow(0.0, 8192, 1600, tuple(range(16)))]
    (talk,) = talks(2, IDS, "0/0", rows, trace="given", length_scale=1 / 16, max_input=500, max_output=90)
    assert (len(talk.turns[0].prompt), talk.turns[0].output_tokens) == (500, 90)


# --- prompt files


def test_forms_of_prompts_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"q": "one", "n": 5}\n\n{"q": ["first", "second"], "n": 6}\n'
        '{"q": [{"role": "user", "content": "hi"}], "n": 7}\n'
        '{"q": [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]], "n": 8}\n'
    )
    message = {"role": "user", "content": "hi"}
    assert read_prompts(path, "q", "n") == [
        (["one"], 5),
        (["first", "second"], 6),
        ([[message]], 7),
        ([[message | {"content": "a"}], [message | {"content": "b"}]], 8),
    ]
    made = talks(6, WORDS, workload="file", prompts=str(path), prompt_field="q", output_field="n")
    assert [talk.turns[0].output_tokens for talk in made] == [5, 6, 7, 8, 5, 6]
    assert made[4].turns[0].prompt == "one"


@pytest.mark.parametrize("line", ['{"other": 1}', "[]", "{", '{"prompt": 5}', '{"prompt": []}', ""])
def test_a_file_without_prompts_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError, match="--prompts"):
        read_prompts(path, "prompt", "")
