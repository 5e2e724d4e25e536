"""What following a grammar costs a token, and what it saves: the same prompts answered with and without, in turn.

    python -m benchmarks.engine.grammar [--model smollm2:135m] [--together 1 8] [--tokens 64] [--rounds 5] [--json FILE]

`any` allows every text, so that the answers are the same tokens (until one without a grammar says a special token) and
all of the difference is overhead: of the masks, as far as they are not hidden behind the model, of applying them, and
of following along. `schema` writes JSON of a schema; what is certain in it is drafted, so that it takes fewer steps
than tokens. The order alternates from round to round. Printed are medians over the rounds; the masks' own time
is that of one thread, beside the model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailrace import LLM
from tailrace.engine.grammar.masks import MaskMaker, Masks
from tailrace.engine.step import StepPlan

PROMPT = "Describe a person of the city {}, with name, age, occupation and hobbies."
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "occupation": {"type": "string", "maxLength": 40},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 2, "maxItems": 4},
        "status": {"enum": ["single", "married", "unknown"]},
    },
    "required": ["name", "age", "occupation", "hobbies", "status"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "none": {"ignore_eos": True},
    "any": {"guided_regex": r"(?s:.*)", "ignore_eos": True},
    "schema": {"guided_json": SCHEMA},
}


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    tokens: int
    steps: int
    masks: float  # seconds
    answers: list[list[int]]


@dataclass(frozen=True, slots=True)
class Line:
    """Milliseconds and tokens are of one step with all its sequences, but `per_token`."""

    together: int
    kind: str
    step_ms: float
    mask_ms: float
    per_token_ms: float
    tokens_per_step: float
    overhead: float  # of a token, against no grammar


class Watch:
    """Counts the time that masks take, wherever they are made."""

    def __init__(self) -> None:
        self.seconds = 0.0
        make = MaskMaker.make

        def timed(maker: MaskMaker, plan: StepPlan) -> Masks | None:
            started = time.perf_counter()
            try:
                return make(maker, plan)
            finally:
                self.seconds += time.perf_counter() - started

        MaskMaker.make = timed  # type: ignore[method-assign]


def run(llm: LLM, watch: Watch, prompts: Sequence[str], kind: str, tokens: int) -> Run:
    stats = llm._running.model.backend.stats
    steps, masks, started = stats.steps, watch.seconds, time.perf_counter()
    done = llm.generate(prompts, temperature=0, max_tokens=tokens, progress=False, **KINDS[kind])
    seconds = time.perf_counter() - started
    answers = [each.token_ids for each in done]
    return Run(seconds, sum(map(len, answers)), stats.steps - steps, watch.seconds - masks, answers)


def measure(llm: LLM, watch: Watch, together: int, tokens: int, rounds: int) -> list[Line]:
    prompts = [PROMPT.format(number) for number in range(together)]
    runs: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    for kind in KINDS:
        run(llm, watch, prompts, kind, tokens)  # warms up, and fills the prefix cache
    for number in range(rounds):
        for kind in list(KINDS)[:: 1 if number % 2 else -1]:
            runs[kind].append(run(llm, watch, prompts, kind, tokens))
    special = llm._running.model.tokenizer.special_ids
    for free, bound in zip(runs["none"][0].answers, runs["any"][0].answers, strict=True):
        text = next((i for i, token in enumerate(free) if token in special), len(free))
        assert free[:text] == bound[:text], "a grammar of all texts changed an answer"
    return [line(together, kind, runs[kind], runs["none"]) for kind in KINDS]


def line(together: int, kind: str, runs: list[Run], without: list[Run]) -> Line:
    ratios = [(a.seconds / a.tokens) / (b.seconds / b.tokens) for a, b in zip(runs, without, strict=True)]
    return Line(
        together,
        kind,
        step_ms=statistics.median(each.seconds / each.steps for each in runs) * 1e3,
        mask_ms=statistics.median(each.masks / each.steps for each in runs) * 1e3,
        per_token_ms=statistics.median(each.seconds / each.tokens for each in runs) * 1e3,
        tokens_per_step=statistics.median(each.tokens / each.steps for each in runs),
        overhead=statistics.median(ratios) - 1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--together", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    watch, lines = Watch(), []
    with LLM(options.model, speculate="off", progress=False) as llm:
        print(f"{'':9}{'grammar':8} {'step ms':>8} {'masks ms':>9} {'token ms':>9} {'tokens/step':>12} {'overhead':>9}")
        for together in options.together:
            for each in measure(llm, watch, together, options.tokens, options.rounds):
                lines.append(each)
                print(
                    f"{together:3} seq.  {each.kind:8} {each.step_ms:8.2f} {each.mask_ms:9.3f} "
                    f"{each.per_token_ms:9.2f} {each.tokens_per_step:12.2f} {each.overhead:9.1%}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in lines], indent=1) + "\n")


if __name__ == "__main__":
    main()
