"""Where every millisecond of a step goes, with what the machine would need at the least beside it.

    python -m benchmarks.engine.profile MODEL.gguf [--threads 2] [--rounds 5] [--decode 1 8 32] [--prefill 512 2048]

Each case runs on the engine loop, without HTTP: decode steps of so many sequences behind `--context` tokens, and one
prompt in one chunk. Steps are timed part by part (Model.timed), which keeps forward from running beside the loop's own
work; so the Python lines are what they cost, not what they delay. Shown is the round with the shortest step.

The floor of a matrix is the longer of reading its packed weights once at the bandwidth measured beside, and its
products at the vpmaddwd peak of the cores (FMA for bf16 weights); attention reads the keys and values of its rows, and
multiplies two matrices. What has no figure there is work that a perfect step would hide.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tailrace import _native
from tailrace.clock import SystemClock
from tailrace.config import EngineConfig
from tailrace.engine.build import build_engine
from tailrace.engine.loop import EngineLoop, _Abort, _Submit
from tailrace.engine.parts import EngineParts
from tailrace.engine.runner import NativeRunner
from tailrace.engine.sequence import Group
from tailrace.engine.weights.load import LoadedModel
from tailrace.engine.weights.source import WeightSource
from tailrace.types import GenerateRequest, SamplingParams, StopConditions

testing: Any = _native.testing  # type: ignore[attr-defined]
COLD_BYTES = 96 << 20
BITS = {"nib4": 5.0, "int8": 8.0, "bf16": 16.0}  # a packed weight, factors of a group included
NATIVE = ("embed", "norm", "qkv", "rope", "attention", "merge", "o", "gate_up", "activation", "down", "head", "sample")
PYTHON = ("plan", "arguments", "commit", "texts", "hand over")


@dataclass(frozen=True)
class Machine:
    """Of the team: bytes read and operations done in a second."""

    read: float
    madd: float
    fma: float

    @classmethod
    def measured(cls, team: _native.Team) -> Machine:
        cores = team.threads
        return cls(
            max(testing.read_bandwidth(team, COLD_BYTES, 3) for _ in range(2)),
            cores * testing.madd_peak(0.1), cores * testing.fma_peak(0.1),
        )  # fmt: skip

    def seconds(self, fmt: str, moved: float, operations: float) -> float:
        return max(moved / self.read, operations / (self.fma if fmt == "bf16" else self.madd))


@dataclass(frozen=True)
class Case:
    """A step: rows of each sequence, what they read, and how many rows get logits."""

    name: str
    rows: int
    keys: int  # read from the cache, over all sequences
    products: int  # (row, key) pairs
    logits: int


@dataclass(frozen=True)
class Times:
    """Seconds by line of one step, and the whole step."""

    whole: float
    lines: dict[str, float]
    waiting: float  # of the native parts


class Stopwatch:
    """Adds up what calls of a bound method take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PYTHON, 0.0)

    def watch(self, owner: Any, method: str, line: str) -> None:
        call: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds[line] += time.perf_counter() - started

        setattr(owner, method, timed)


class Engine:
    """An engine loop whose parts are timed."""

    def __init__(self, parts: EngineParts) -> None:
        assert parts.loaded is not None
        self.loaded, self._parts = parts.loaded, parts
        assert isinstance(parts.runner, NativeRunner)
        self.kv = parts.runner._kv
        self.loop = EngineLoop(
            parts.scheduler, parts.runner, tokenizer=parts.tokenizer, cost=parts.cost, clock=SystemClock(),
            deliver=lambda delivery: None,
        )  # fmt: skip
        self._watch = Stopwatch()
        for owner, method, line in (
            (self.loop, "_plan", "plan"), (self.loop, "_commit", "commit"), (self.loop, "_publish", "texts"),
            (self.loop, "_hand_over", "hand over"), (parts.runner, "forward", "arguments"),
            (parts.runner, "sample", "arguments"),
        ):  # fmt: skip
            self._watch.watch(owner, method, line)
        self.loaded.model.timed = True

    def submit(self, count: int, prompt: int, output: int) -> None:
        rng = np.random.default_rng(prompt)
        stop, sampling = StopConditions(max_tokens=output, ignore_eos=True), SamplingParams(temperature=0.0)
        tokens = [rng.integers(1000, 20_000, prompt).astype(np.int32) for _ in range(count)]
        requests = [GenerateRequest(str(i), "", ids, sampling, stop) for i, ids in enumerate(tokens)]
        self.loop.turn([_Submit(Group(request, i, 0)) for i, request in enumerate(requests)])

    def timed(self, turn: Callable[[], None]) -> Times:
        """One step, by lines."""
        self.loaded.model.counters()
        self._watch.seconds = python = dict.fromkeys(PYTHON, 0.0)
        started = time.perf_counter()
        turn()
        whole = time.perf_counter() - started
        native = self.loaded.model.counters()
        python["arguments"] -= sum(native[part] for part in NATIVE)
        python["commit"] -= min(python["texts"], python["commit"])
        return Times(whole, {part: native[part] for part in NATIVE} | python, native["wait"])

    def finish(self) -> None:
        while self._parts.scheduler.has_work:
            self.loop.turn()


def decode(engine: Engine, count: int, context: int, rounds: int) -> tuple[Case, Times]:
    engine.submit(count, context, rounds + 64)
    while any(sequence.todo != 1 for sequence in engine.loop.scheduler.running):
        engine.loop.turn()
    steps = [engine.timed(engine.loop.turn) for _ in range(rounds)]
    engine.loop.turn([_Abort(None, 0.0)])
    keys = count * (context + rounds // 2)
    return Case(f"decode, {count} rows behind {context} tokens", count, keys, keys, count), _shortest(steps)


def prefill(engine: Engine, tokens: int, rounds: int) -> tuple[Case, Times]:
    steps = []
    for _ in range(rounds):
        steps.append(engine.timed(lambda: engine.submit(1, tokens, 1)))
        engine.finish()
    return Case(f"prefill of {tokens}", tokens, tokens, tokens * (tokens + 1) // 2, 1), _shortest(steps)


def _shortest(steps: list[Times]) -> Times:
    return min(steps, key=lambda step: step.whole)


def matrix_floors(loaded: LoadedModel, machine: Machine, case: Case) -> dict[str, float]:
    """Seconds by kind of matrix; the last layer's behind its keys and values runs for the rows with logits only."""
    source, layers = WeightSource(loaded.checkpoint, loaded.spec), loaded.spec.layers
    floors: dict[str, float] = {}
    for linear in source.linears():
        kind, _, layer = linear.name.partition(".")
        fmt = loaded.weights if loaded.weights != "nib4" or source.is_affine4(linear) else "int8"
        whole = kind == "qkv" or (layer and int(layer) < layers - 1)
        rows, size = case.rows if whole else case.logits, linear.n * linear.k
        seconds = machine.seconds(fmt, size * BITS[fmt] / 8, 2.0 * rows * size)
        floors[kind] = floors.get(kind, 0.0) + seconds
    return floors


def attention_floor(engine: Engine, machine: Machine, case: Case) -> float:
    """Layers with a window read less; this counts them as if they saw everything."""
    spec = engine.loaded.spec
    bytes_per_token = engine.kv.block_bytes / _native.BLOCK_TOKENS
    operations = 4.0 * case.products * spec.heads * spec.head_dim * spec.layers
    return machine.seconds(engine.kv.kv, case.keys * bytes_per_token, operations)


def show(engine: Engine, machine: Machine, case: Case, times: Times) -> None:
    floors = matrix_floors(engine.loaded, machine, case)
    floors["attention"] = attention_floor(engine, machine, case)
    print(f"\n{case.name}: {times.whole * 1e3:.2f} ms, {times.whole / case.rows * 1e6:.0f} us a row")
    print(f"| part | ms | of the step | floor ms | floor / part |\n|{'---|' * 5}")
    for line, seconds in times.lines.items():
        _row(line, seconds, times.whole, floors.get(line))
    _row("the rest", times.whole - sum(times.lines.values()), times.whole)
    _row("all", times.whole, times.whole, sum(floors.values()))
    weights = sum(matrix_floors(engine.loaded, replace(machine, madd=1e30, fma=1e30), case).values())
    moved = weights + case.keys * engine.kv.block_bytes / _native.BLOCK_TOKENS / machine.read
    print(f"reading weights and keys once: {moved * 1e3:.2f} ms, {100 * moved / times.whole:.0f} % of the step; "
          f"waiting for the other threads is {times.waiting * 1e3:.2f} ms of the native parts")  # fmt: skip


def _row(line: str, seconds: float, whole: float, floor: float | None = None) -> None:
    beside = "| |" if floor is None else f"{floor * 1e3:.3f} | {100 * floor / max(seconds, 1e-9):.0f} % |"
    print(f"| {line} | {seconds * 1e3:.3f} | {100 * seconds / whole:.1f} % | {beside}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--decode", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--cache", type=Path, help="folder for packed weights and step costs")
    options = parser.parse_args()
    config = EngineConfig(
        weights=options.weights, kv=options.kv, threads=options.threads, prefix_cache=False, speculate="off",
        chunk_tokens=max([512, *options.prefill]), max_sequences=max([1, *options.decode]),
    )  # fmt: skip
    parts = build_engine(options.model, config, SystemClock(), cache_dir=options.cache, say=lambda line: None)
    engine = Engine(parts)
    machine = Machine.measured(engine.loaded.team)
    print(f"{engine.loaded.variant}, {engine.loaded.weights} weights, {engine.kv.kv} KV, {engine.loaded.team.threads} "
          f"threads; together {machine.read / 1e9:.1f} GB/s, {machine.madd / 1e9:.0f} GOPS vpmaddwd, "
          f"{machine.fma / 1e9:.0f} GFLOPS FMA")  # fmt: skip
    for count in options.decode:
        show(engine, machine, *decode(engine, count, options.context, options.rounds))
    for tokens in options.prefill:
        show(engine, machine, *prefill(engine, tokens, max(1, options.rounds * 512 // tokens // 2)))


if __name__ == "__main__":
    main()
