"""The engine's own kernels: what the default weights change against bf16 weights, over more text than NumPy can read.

bf16 stands in for float32, from which it differs by a KL of 0.0002 and by 0.02 % of perplexity.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.model.numbers import EVALUATION, WINDOW, difference, native_log_probs, together, windows

from tailrace.engine.weights.load import load_model
from tailrace.text.tokenizer import Tokenizer

MOST_TOKENS = 3072  # of one text
ROWS = 60  # of one file
TEXT_FIELDS = {
    "spec_bench_125": ("turns",),
    "humaneval": ("prompt", "canonical_solution"),
    "gsm8k_test_first300": ("question", "answer"),
    "ifeval_first300": ("prompt",),
    "mt_bench": ("turns",),
}


def compare_native(path: str, prompts: Path | None) -> None:
    """Print a line for each text and one for all of them."""
    default, bf16 = (load_model(path, weights=weights, max_context=WINDOW) for weights in ("auto", "bf16"))
    tokenizer = Tokenizer.from_gguf(default.metadata)
    found = []
    for name, text in texts(prompts).items():
        parts = windows(tokenizer.encode(text, add_special=False, parse_special=False)[:MOST_TOKENS])
        expected, ours = ([native_log_probs(model, ids) for ids in parts] for model in (bf16, default))
        found.append(difference(expected, ours, parts))
        print(f"{name}: {found[-1]}", flush=True)
    print(f"all: {together(found)}")


def texts(prompts: Path | None) -> dict[str, str]:
    """The evaluation text, and the beginning of each known file in the folder."""
    files = {} if prompts is None else {name: prompts / f"{name}.jsonl" for name in TEXT_FIELDS}
    rows = {name: file.read_text().splitlines()[:ROWS] for name, file in files.items()}
    return {"evaluation": EVALUATION.read_text()} | {
        name: "\n\n".join(row_text(json.loads(line), TEXT_FIELDS[name]) for line in lines)
        for name, lines in rows.items()
    }


def row_text(row: dict, fields: tuple[str, ...]) -> str:
    values = [row[field] for field in fields]
    return "\n".join("\n".join(value) if isinstance(value, list) else value for value in values)
