"""What a reader of the numbers must know to believe them: said in words beside them."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.bench.options import Options
from tailrace.bench.probe import Server
from tailrace.bench.summary import Summary

LATE_MS = 50.0  # dispatch lag at p99 that is worth a word
CACHED = 0.05  # part of fresh prompts found in a cache that is worth a word


def remarks(summary: Summary, options: Options, server: Server) -> Iterator[str]:
    tokens = summary["tokens"]
    yield from _cached(tokens, options)
    lag = summary["dispatch_lag_ms"]
    if options.open_loop and lag and lag["p99"] > LATE_MS:
        yield f"the load generator itself was late (p99 {lag['p99']:.0f} ms); latencies include that"
    estimated = tokens["counted_by"].get("chunks", 0)
    if estimated:
        yield f"answer tokens of {estimated} requests are estimates: pieces of text were counted"
    off = tokens["prompts_off_by"]
    if off and off["max"]:
        yield f"prompts differ from the asked length by {off['mean']:g} tokens on average, {off['max']} at most"
    if tokens["outputs_short"] and server.shape.fixed:
        short = tokens["outputs_short"]
        yield f"{short} answers are shorter than asked, though the server takes ignore_eos and min_tokens"
    if options.trace and (options.length_scale != 1 or options.speedup != 1):
        yield (
            f"the trace was scaled (lengths x{options.length_scale:g}, time x{1 / options.speedup:g}): "
            "ratios between servers hold, absolute times do not"
        )


def _cached(tokens: Summary, options: Options) -> Iterator[str]:
    """Random prompts share nothing: what is found of them was left by an earlier benchmark."""
    fresh = options.workload in ("random", "mixed") and not options.trace
    if fresh and tokens["prompt"] and tokens["cached"] / tokens["prompt"] > CACHED:
        yield (
            f"{tokens['cached'] / tokens['prompt']:.0%} of the prompt tokens came from the server's prefix cache: "
            "these prompts were sent to it before. Use another --seed, or restart the server"
        )
