"""How fast a simulation is: seconds of one core for a million decisions about rows.

    python -m benchmarks.serving.row_decisions [--rows 1000000] [--profile]

A row of a step is one decision: whether a running request gets its next token, or so many tokens of its prompt, now.
The load is a server's with 32 slots, always full: chats of 60 to 240 tokens in and 64 to 192 out, from four tenants.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import time

from benchmarks.serving.scenarios import UNBOUNDED, plane

from tailrace.plan.simulator import Outcome, simulate
from tailrace.traces import TraceRow

OUTPUT = (64, 192)


def load(rows: int) -> list[TraceRow]:
    """Requests that take about so many decisions: one for each token of their answers. All are there from the start
    of a second on in which they would be served, so that some wait and the queue stays short."""
    rng, found = random.Random(1), []
    while rows > 0:
        output = rng.randrange(*OUTPUT)
        found.append(TraceRow(0.25 * len(found), rng.randrange(60, 240), output, client=rng.choice("abcd")))
        rows -= output
    return found


def run(rows: int) -> tuple[Outcome, float]:
    asked, made = load(rows), plane(UNBOUNDED)
    begun = time.process_time()
    outcome = simulate(asked, made)
    return outcome, time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    profile = cProfile.Profile()
    if options.profile:
        profile.enable()
    outcome, seconds = run(options.rows)
    profile.disable()
    rows, steps = outcome.steps.rows, outcome.steps.steps
    print(f"{rows} decisions in {steps} steps ({rows / steps:.1f} a step), {outcome.seconds:.0f} simulated seconds")
    print(f"{seconds:.1f} s of one core, {seconds / rows * 1e6:.1f} us a decision")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
