"""A simulation beside live runs of the same small trace: do users see what was foretold?

    python -m benchmarks.serving.simulated [--model smollm2:135m] [--rate 0.5] [--requests 60] [--trace FILE]

A live server is measured twice with the same arrivals and lengths (and other text, so that its cache helps neither).
The step-time formula and its residuals are taken from the steps of the first run; the simulation then plays the
trace, and its P50 and P99 are compared with both runs. The bound is 5 % for P50 and 10 % for P99, or the spread of the
two live runs where that is larger. Choose a rate that the machine can bear: at its limit, queues amplify every
difference.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tailrace.config import Config, EngineConfig
from tailrace.engine.cost import fit
from tailrace.engine.step import Work
from tailrace.figures.numbers import quantile
from tailrace.plan.simulator import Setup, simulate
from tailrace.plan.steps import Machine, StepTimes
from tailrace.traces import TraceRow

METRICS = ("ttft", "tpot", "e2e")
POINTS = (("P50", 0.5, 0.05), ("P99", 0.99, 0.10))
Times = dict[str, list[float]]


def made_up(requests: int, rate: float, seed: int) -> str:
    """Poisson arrivals, lognormal lengths: a small trace when none is given."""
    rng, now, lines = random.Random(seed), 0.0, ["arrival_s,input_tokens,output_tokens"]
    for _ in range(requests):
        prompt = min(max(round(rng.lognormvariate(4.1, 0.8)), 16), 600)
        output = min(max(round(rng.lognormvariate(2.5, 0.6)), 2), 60)
        lines.append(f"{now:.3f},{prompt},{output}")
        now += rng.expovariate(rate)
    return "\n".join(lines) + "\n"


def live(model: str, trace: Path, folder: Path, number: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the server's steps took, and the load generator's records."""
    steps, result = folder / f"steps{number}.json", folder / f"bench{number}.json"
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.serving.recorded_server", str(steps), model],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        command = [
            sys.executable,
            "-m",
            "tailrace",
            "bench",
            "--url",
            url,
            "--trace",
            str(trace),
            "--json",
            str(result),
        ]
        subprocess.run([*command, "--endpoint", "completions", "--seed", str(number)], check=True)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    return json.loads(steps.read_text()), json.loads(result.read_text())["runs"][-1]["requests"]


def times(requests: list[dict[str, Any]]) -> Times:
    """Seconds, of answered requests."""
    found: Times = {name: [] for name in METRICS}
    for r in requests:
        if r["error"] is None:
            found["ttft"].append((r["first_ms"] - r["scheduled_ms"]) / 1000)
            found["e2e"].append((r["end_ms"] - r["scheduled_ms"]) / 1000)
            if r["output_tokens"] > 1:
                found["tpot"].append((r["end_ms"] - r["first_ms"]) / 1000 / (r["output_tokens"] - 1))
    return found


def machine(found: dict[str, Any]) -> Machine:
    """The formula that fits the recorded steps, and by what they missed it."""
    samples = [(Work(*map(int, step[:4])), step[4]) for step in found["steps"]]
    coefficients = unbiased(samples)
    exact = Machine(coefficients, noise=0.0)
    clock = StepTimes(exact, seed=0)
    ratios = [(work.prefill > 0, seconds / clock.seconds(work)) for work, seconds in samples]
    return replace(
        exact,
        prefill_ratios=tuple(ratio for with_prefill, ratio in ratios if with_prefill),
        decode_ratios=tuple(ratio for with_prefill, ratio in ratios if not with_prefill),
        overhead=found["overhead"],
    )


def unbiased(samples: list[tuple[Work, float]]) -> tuple[float, ...]:
    """Non-negative least squares of the error over the predicted time, which slow outliers do not bend downwards."""
    x = np.array([(1.0, *work) for work, _ in samples])
    seconds = np.array([t for _, t in samples])
    theta = fit(samples)
    for _ in range(20):
        weight = 1.0 / np.maximum(x @ theta, 1e-6)
        keep = [i for i in range(5) if x[:, i].any()]
        while keep:
            scale = np.abs(x[:, keep]).max(axis=0)
            solution = np.linalg.lstsq(x[:, keep] / scale * weight[:, None], seconds * weight, rcond=None)[0] / scale
            if solution.min() >= 0:
                break
            keep.pop(int((solution * scale).argmin()))
        theta = np.zeros(5)
        theta[keep] = solution
    return tuple(theta.tolist())


def simulated(found: dict[str, Any], requests: list[dict[str, Any]], seed: int) -> Times:
    answered = sorted(
        (r for r in requests if r["error"] is None), key=lambda r: r["scheduled_ms"]
    )  # they came as ended
    rows = [TraceRow(r["scheduled_ms"] / 1000, r["prompt_tokens"], r["output_tokens"]) for r in answered]
    engine = EngineConfig(max_context=found["max_context"], max_sequences=found["max_sequences"])
    setup = Setup(Config(engine=engine), machine(found), kv_tokens=found["kv_tokens"], seed=seed)
    records = simulate(rows, setup).records
    return {name: [value for record in records if (value := getattr(record, name)) is not None] for name in METRICS}  # type: ignore[return-value]


def compare(first: Times, second: Times, draws: list[Times]) -> bool:
    """Print the table; True when everything is within its bound."""
    print(f"\n{'':10} {'live 1':>9} {'live 2':>9} {'simulated':>9} {'off by':>8} {'bound':>8}")
    good = True
    for name in METRICS:
        for label, part, bound in POINTS:
            a, b = (quantile(sorted(run[name]), part) for run in (first, second))
            s = float(np.mean([quantile(sorted(draw[name]), part) for draw in draws]))
            middle = (a + b) / 2
            off, allowed = abs(s - middle) / middle, max(bound, abs(a - b) / middle)
            good &= off <= allowed
            cells = f"{a * 1000:9.1f} {b * 1000:9.1f} {s * 1000:9.1f} {off:8.1%} {allowed:8.1%}"
            print(f"{name + ' ' + label:10} {cells} {'' if off <= allowed else '  beyond'}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--trace", default="")
    parser.add_argument("--keep", default="", help="folder that keeps what was measured")
    parser.add_argument("--draws", type=int, default=5, help="simulations that are averaged, one for each seed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = Path(options.trace) if options.trace else folder / "trace.csv"
        if not options.trace:
            trace.write_text(made_up(options.requests, options.rate, seed=1))
        folder = Path(options.keep or folder)
        found, first = live(options.model, trace, folder, 1)
        _, second = live(options.model, trace, folder, 2)
        draws = [simulated(found, first, seed) for seed in range(options.draws)]
    fitted = machine(found)
    ratios = sorted(fitted.prefill_ratios + fitted.decode_ratios)
    print("\nstep times (a, b, c, d, e): " + ", ".join(f"{value:.3g}" for value in fitted.coefficients))
    print(f"measured / predicted: P10 {quantile(ratios, 0.1):.2f}, P50 {quantile(ratios, 0.5):.2f}, "
          f"P90 {quantile(ratios, 0.9):.2f}, P99 {quantile(ratios, 0.99):.2f}; {len(ratios)} steps, "
          f"{fitted.overhead * 1000:.2f} ms between them")  # fmt: skip
    print("within the bounds" if compare(times(first), times(second), draws) else "NOT within the bounds")


if __name__ == "__main__":
    main()
