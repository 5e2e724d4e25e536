"""What speculation gains on real prompts, by category: each prompt answered without and with it, in turn.

    python -m benchmarks.engine.speculation PROMPTS.jsonl ... [--model smollm2:135m] [--count 5] [--together 1]
        [--tokens 128] [--temperature 0] [--draft-model PATH | --cpu-time] [--json FILE]

A prompt file has a JSON object a line with `turns` (the first is asked, through the chat template) and `category`; the
categories of a file named mt_bench are counted together as "chat". `--together` answers as many prompts of a category
at once. The order of off and on alternates, the prefix cache is off, and both must say the same tokens. Printed are,
for each category: tokens a sequence makes per decode step, the accepted part of the drafted tokens, and the speed-up of
decoding (first token to last) and of the whole request, as medians over the prompts and for all of them in sum.

`--cpu-time` counts the processor time of one thread instead of the time on the wall, step costs included, which a busy
neighbour changes little. It leaves out what two threads wait for each other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.calibrate import calibrate
from tailrace.engine.cost import CostModel
from tailrace.engine.loop import Delivery, EngineLoop, _Submit
from tailrace.engine.sequence import Group
from tailrace.engine.spec.lookup import LookupDrafter
from tailrace.llm.asker import Asker
from tailrace.llm.params import SamplingParams
from tailrace.llm.ready import Model, ready_model
from tailrace.types import GenerateRequest


class ThreadClock(SystemClock):
    """The processor time of this thread, which is the whole engine when it has one thread."""

    def now(self) -> float:
        return time.thread_time()


@dataclass(frozen=True, slots=True)
class Run:
    """Some prompts answered at once. Seconds of decoding count from when all have their first token."""

    answers: list[list[int]]
    decode: float
    whole: float
    decode_tokens: int
    decode_steps: int
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Line:
    """A category's results; `tokens_per_step` of one sequence. Speed-ups are off / on."""

    category: str
    prompts: int
    tokens_per_step: float
    acceptance: float
    drafted_per_step: float
    decode_median: float
    decode_sum: float
    whole_median: float
    whole_sum: float


def answer(model: Model, requests: Sequence[GenerateRequest], speculate: bool) -> Run:
    """On this thread, with the engine's own drafter or none."""
    scheduler, answers = model.parts.scheduler, [[] for _ in requests]  # type: list[list[int]]
    drafter = scheduler.drafter
    places = {request.id: place for place, request in enumerate(requests)}
    all_began = 0.0
    steps_before = tokens_before = 0

    def deliver(delivery: Delivery) -> None:
        nonlocal all_began, steps_before, tokens_before
        for request_id, events in delivery.items():
            for event in events:
                answers[places[request_id]] += event.token_ids
        if not all_began and all(answers):
            all_began, steps_before = model.clock.now(), loop.stats.steps
            tokens_before = sum(map(len, answers))

    loop = EngineLoop(
        scheduler, model.parts.runner, tokenizer=model.tokenizer, cost=model.parts.cost, clock=model.clock,
        deliver=deliver,
    )  # fmt: skip
    scheduler.drafter = drafter if speculate else None
    try:
        started = model.clock.now()
        loop.turn([_Submit(Group(request, place, 0)) for place, request in enumerate(requests)])
        while scheduler.has_work:
            loop.turn()
        ended = model.clock.now()
    finally:
        scheduler.drafter = drafter
    stats = loop.stats
    return Run(
        answers, ended - all_began, ended - started, sum(map(len, answers)) - tokens_before,
        stats.steps - steps_before, stats.drafted_tokens, stats.accepted_tokens,
    )  # fmt: skip


def on_thread_time(model: Model) -> Model:
    """The same model with another clock, and step costs by that clock."""
    parts, clock = model.parts, ThreadClock()
    scheduler = parts.scheduler
    limits = scheduler.limits
    found = calibrate(
        parts.runner, scheduler.kv, clock, slots=limits.max_sequences, max_context=limits.max_context, budget=4.0
    )
    cost = CostModel(coefficients=found)
    scheduler.budget = cost
    scheduler.drafter = LookupDrafter(cost)
    return replace(model, clock=clock, parts=replace(parts, cost=cost))


def summary(category: str, pairs: list[tuple[Run, Run]], together: int) -> Line:
    """Of (off, on) pairs."""
    on = [pair[1] for pair in pairs]
    steps, drafted = sum(run.decode_steps for run in on), sum(run.drafted for run in on)
    return Line(
        category,
        sum(len(run.answers) for run in on),
        sum(run.decode_tokens for run in on) / max(1, steps) / together,
        sum(run.accepted for run in on) / max(1, drafted),
        drafted / max(1, steps) / together,
        statistics.median(off.decode / on.decode for off, on in pairs),
        sum(off.decode for off, _ in pairs) / sum(on.decode for _, on in pairs),
        statistics.median(off.whole / on.whole for off, on in pairs),
        sum(off.whole for off, _ in pairs) / sum(on.whole for _, on in pairs),
    )


def prompts(files: list[Path], count: int) -> dict[str, list[str]]:
    """Evenly spread over each category, `count` of them, or all where that is 0."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found["chat" if file.stem == "mt_bench" else row["category"]].append(row["turns"][0])
    return {name: texts[:: max(1, len(texts) // count)][:count] if count else texts for name, texts in found.items()}


def requests_of(model: Model, texts: Sequence[str], options: argparse.Namespace) -> list[GenerateRequest]:
    asker = Asker(model)
    params = SamplingParams(max_tokens=options.tokens, temperature=options.temperature, seed=1)
    jobs = [
        asker.chat([{"role": "user", "content": text}], params, f"prompts[{i}]", {}) for i, text in enumerate(texts)
    ]
    return [replace(job.request, id=f"{place}") for place, job in enumerate(jobs)]


def measure(model: Model, texts: list[str], options: argparse.Namespace) -> list[tuple[Run, Run]]:
    pairs = []
    for turn, first in enumerate(range(0, len(texts), options.together)):
        requests = requests_of(model, texts[first : first + options.together], options)
        runs = {speculate: answer(model, requests, speculate) for speculate in ((False, True), (True, False))[turn % 2]}
        assert runs[False].answers == runs[True].answers, "speculation changed an answer"
        if runs[False].decode_steps:
            pairs.append((runs[False], runs[True]))
    return pairs


def show(line: Line) -> None:
    print(
        f"| {line.category} | {line.prompts} | {line.tokens_per_step:.2f} | {line.acceptance:.0%} "
        f"| {line.decode_median:.2f}x | {line.decode_sum:.2f}x | {line.whole_sum:.2f}x |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, nargs="+")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--count", type=int, default=0, help="prompts of each category; 0: all")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=0)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--draft-model", default="")
    how.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = EngineConfig(
        model=options.model, draft_model=options.draft_model, prefix_cache=False,
        threads=1 if options.cpu_time else options.threads,
    )  # fmt: skip
    model = ready_model(config)
    if options.cpu_time:
        model = on_thread_time(model)
    print(f"{model.name}: {model.loaded.variant}, {model.loaded.team.threads} threads; "
          f"{options.together} at once, {options.tokens} tokens, temperature {options.temperature}\n")  # fmt: skip
    print("| category | prompts | tokens/step | accepted | decode, median | decode, sum | request, sum |")
    print("|---|---|---|---|---|---|---|")
    results: dict[str, list[tuple[Run, Run]]] = {}
    lines: list[Line] = []
    for name, texts in prompts(options.prompts, options.count).items():
        results[name] = measure(model, texts, options)
        lines.append(summary(name, results[name], options.together))
        show(lines[-1])
    lines.append(summary("all", list(chain(*results.values())), options.together))
    show(lines[-1])
    print("\nstep costs a + bP + cD + dK + eA:", " ".join(f"{value:.3g}" for value in model.parts.cost.coefficients))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")


if __name__ == "__main__":
    main()
