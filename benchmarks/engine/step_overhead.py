"""Python time per engine step: planning, arguments, commit with text, hand-off; the executor costs nothing here.

    python -m benchmarks.engine.step_overhead [--sequences 32] [--steps 2000] [--contend]

The target is 0.3 ms a step with 32 running sequences. What is done while the executor's threads compute is a column of
its own ("behind forward"): it costs the step nothing where a core is free for it. The clock is the thread's CPU time;
neighbours on a busy machine still slow it down, so the best and the median of batches of 50 steps are printed.
`--contend` instead measures what a busy Python thread beside the engine does to a step of 5 ms, with the interpreter's
default switch interval and with the engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from typing import Any

import numpy as np
from tests.engine.support import tokenizer

from tailrace.clock import SystemClock
from tailrace.engine.budget import FixedBudget
from tailrace.engine.cost import CostModel
from tailrace.engine.kv.manager import KvManager
from tailrace.engine.limits import Limits
from tailrace.engine.loop import SWITCH_INTERVAL, EngineLoop, _Submit
from tailrace.engine.runner import NativeRunner
from tailrace.engine.scheduler import Scheduler
from tailrace.engine.sequence import Group
from tailrace.types import GenerateRequest, SamplingParams, StopConditions

BATCH = 50


class Idle:
    """An executor that takes `seconds` without the interpreter and always says the same token."""

    def __init__(self, sequences: int, seconds: float = 0.0) -> None:
        self._tokens = np.full(sequences, 70, np.int32)
        self._none = np.zeros(sequences, np.float32), np.zeros((sequences, 0), np.int32), np.zeros((sequences, 0), "f4")
        self._seconds = seconds
        self.hidden = 0.0  # CPU seconds of this thread between begin and settle

    def begin(self, *arguments: Any, **named: Any) -> None:
        self._ends = time.monotonic() + self._seconds
        self.hidden -= time.thread_time()

    def settle(self) -> None:
        self.hidden += time.thread_time()
        if self._seconds:
            time.sleep(max(0.0, self._ends - time.monotonic()))

    def sample(self, rows: Any, *arguments: Any) -> tuple[Any, ...]:
        return (self._tokens[: len(rows)], *self._none)


class ThreadClock(SystemClock):
    """The CPU time of this thread: what the engine's own counters then show."""

    def now(self) -> float:
        return time.thread_time()


def engine(
    sequences: int,
    steps: int,
    clock: SystemClock,
    model: Any,
    strings: tuple[str, ...] = ("\n\nUser:",),
    **sampling: Any,
) -> EngineLoop:
    """A loop that decodes `sequences` sequences for `steps` steps, handing over to an asyncio loop."""
    kv = KvManager(sequences * 128, max_blocks=128)
    scheduler = Scheduler(kv, Limits(max_sequences=sequences), FixedBudget(100_000))
    runner = NativeRunner(model, model, slots=sequences, max_blocks=128, end_ids=frozenset({2}))
    target = asyncio.new_event_loop()
    loop = EngineLoop(
        scheduler, runner, tokenizer=tokenizer(), cost=CostModel(), clock=clock,
        deliver=lambda delivery: (target.call_soon_threadsafe(len, delivery), None)[1],
    )  # fmt: skip
    rng = np.random.default_rng(0)
    stop = StopConditions(max_tokens=steps + 10, strings=strings, ignore_eos=True)
    requests = [
        GenerateRequest(str(i), "", rng.integers(3, 259, 256).astype(np.int32), SamplingParams(**sampling), stop)
        for i in range(sequences)
    ]
    loop.turn([_Submit(Group(request, i, i)) for i, request in enumerate(requests)])
    return loop


def measure(name: str, sequences: int, steps: int, **options: Any) -> None:
    model = Idle(sequences)
    loop = engine(sequences, steps, ThreadClock(), model, **options)
    stats, whole, arguments, hidden = loop.stats, [], [], []
    for _ in range(steps // BATCH):
        before = stats.overhead_seconds, stats.step_seconds, model.hidden
        for _ in range(BATCH):
            loop.turn()
        behind = model.hidden - before[2]
        whole.append((stats.overhead_seconds - before[0]) / BATCH * 1e3)
        arguments.append((stats.step_seconds - before[1] - behind) / BATCH * 1e3)
        hidden.append(behind / BATCH * 1e3)
    columns = {"plan, commit, hand-off": whole, "native arguments": arguments, "behind forward": hidden}
    print(f"{name:<20}", "   ".join(f"{column} {_spread(found)}" for column, found in columns.items()))


def _spread(milliseconds: list[float]) -> str:
    return f"{min(milliseconds):.3f} ms (median {statistics.median(milliseconds):.3f})"


def contend(sequences: int, steps: int) -> None:
    for interval in (0.005, SWITCH_INTERVAL):
        sys.setswitchinterval(interval)
        loop = engine(sequences, steps, SystemClock(), Idle(sequences, 0.005))
        stop = threading.Event()
        thread = threading.Thread(target=_spin, args=(stop,))
        thread.start()
        started = time.monotonic()
        for _ in range(steps):
            loop.turn()
        seconds = (time.monotonic() - started) / steps
        stop.set()
        thread.join()
        print(f"switch interval {interval * 1e3:.1f} ms: a step of 5 ms takes {seconds * 1e3:.2f} ms")


def _spin(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(100))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--contend", action="store_true")
    options = parser.parse_args()
    if options.contend:
        contend(options.sequences, min(options.steps, 300))
        return
    print(f"{options.sequences} running sequences; CPU time")
    measure("temperature", options.sequences, options.steps, strings=())
    measure("a stop string each", options.sequences, options.steps)
    measure("penalties and bias", options.sequences, options.steps, frequency_penalty=0.5, logit_bias=((5, 1.0),))


if __name__ == "__main__":
    main()
