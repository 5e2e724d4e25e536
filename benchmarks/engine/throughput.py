"""Speed of the engine on a model file, through its scheduler and without HTTP.

    python -m benchmarks.engine.throughput MODEL.gguf [--threads 2] [--ranks 1] [--rounds 3] [--batches 1 8 32]

One prompt of 512 tokens; then batches of requests with 256 tokens in and 64 out (end tokens ignored, greedy, prefix
cache off). Prints the best and the median round: tokens per second, time to the first token of the last request,
time per token, and the part of the time that is not the executor's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.loop import Delivery, EngineLoop, _Submit
from tailrace.engine.parts import EngineParts
from tailrace.engine.sequence import Group
from tailrace.types import GenerateRequest, SamplingParams, StopConditions


@dataclass(frozen=True, slots=True)
class Round:
    seconds: float
    first_tokens: float  # until every request has its first
    overhead: float  # seconds outside forward and sample


def run(parts: EngineParts, requests: int, prompt: int, output: int, seed: int) -> Round:
    """One batch, all requests at once, on this thread."""
    seen: set[str] = set()
    first = 0.0
    started = time.perf_counter()

    def deliver(delivery: Delivery) -> None:
        nonlocal first
        seen.update(delivery)
        if len(seen) == requests and not first:
            first = time.perf_counter() - started

    loop = EngineLoop(
        parts.scheduler, parts.runner, tokenizer=parts.tokenizer, cost=parts.cost, clock=SystemClock(), deliver=deliver
    )
    rng = np.random.default_rng(seed)
    stop, sampling = StopConditions(max_tokens=output, ignore_eos=True), SamplingParams(temperature=0.0)
    groups = [
        Group(GenerateRequest(str(i), "", rng.integers(1000, 20_000, prompt).astype(np.int32), sampling, stop), i, 0)
        for i in range(requests)
    ]
    loop.turn([_Submit(group) for group in groups])
    while parts.scheduler.has_work:
        loop.turn()
    return Round(time.perf_counter() - started, first, loop.stats.overhead_seconds)


def show(name: str, rounds: list[Round], prompt_tokens: int, output_tokens: int) -> None:
    best = min(rounds, key=lambda one: one.seconds)
    median = statistics.median(one.seconds for one in rounds)
    text = f"{name:<22} {best.seconds:7.3f} s (median {median:.3f})   first tokens {best.first_tokens:.3f} s"
    text += f"   {(prompt_tokens + output_tokens) / best.seconds:7.0f} tok/s in and out"
    if output_tokens > 1:
        text += f"   {output_tokens / best.seconds:6.0f} tok/s out"
    print(text + f"   outside the executor {100 * best.overhead / best.seconds:.1f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--speculate", default="off", help="random prompts say little about it: see speculation.py")
    parser.add_argument("--cache", type=Path, help="folder for packed weights and step costs")
    options = parser.parse_args()
    config = EngineConfig(
        weights=options.weights, isa=options.isa, threads=options.threads, ranks=options.ranks,
        chunk_tokens=options.chunk, prefix_cache=False, speculate=options.speculate,
        max_sequences=max(32, *options.batches),
    )  # fmt: skip
    started = time.perf_counter()
    parts = build_engine(options.model, config, SystemClock(), cache_dir=options.cache, say=print)
    assert parts.loaded is not None
    loaded = parts.loaded
    print(f"ready in {time.perf_counter() - started:.2f} s: {loaded.variant}, {loaded.weights}, "
          f"threads of each rank: {loaded.team.ranks}")  # fmt: skip
    print("step costs a + bP + cD + dK + eA:", " ".join(f"{value:.3g}" for value in parts.cost.coefficients))
    show("prefill 512", [run(parts, 1, 512, 1, seed) for seed in range(options.rounds)], 512, 1)
    for batch in options.batches:
        rounds = [run(parts, batch, 256, 64, seed) for seed in range(options.rounds)]
        show(f"{batch} x (256 in, 64 out)", rounds, batch * 256, batch * 64)


if __name__ == "__main__":
    main()
