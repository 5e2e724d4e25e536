"""Mean KL, top-1 agreement and perplexity of candidate arithmetics on a model file.

    python -m benchmarks.accuracy MODEL.gguf [--prompts FOLDER] [--tokens 256] [--only TEXT]
    python -m benchmarks.accuracy MODEL.gguf --native [--prompts FOLDER]
    python -m benchmarks.accuracy MODEL.gguf --kv --prompts FOLDER

The held-out texts are the evaluation text of the tests and, with --prompts, the first rows of gsm8k, humaneval and
spec_bench files found in that folder. Minutes on a laptop; set OPENBLAS_NUM_THREADS=1 when the machine is shared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks.accuracy.kv import compare_kv
from benchmarks.accuracy.native import compare_native
from benchmarks.accuracy.pieces import SentencePieces
from benchmarks.accuracy.schemes import Recorder, Runner, Scheme, convert
from tests.reference.compare import kl, log_softmax, mean_loss
from tests.reference.gemma3 import Gemma3Reference
from tests.reference.gguf_file import GgufFile
from tests.reference.llama import LlamaReference

from tailrace.engine.weights.calibrate import wide_count
from tailrace.engine.weights.calibration_text import CALIBRATION_TEXT

EVALUATION = Path(__file__).parents[2] / "tests" / "reference" / "evaluation.txt"
CALIBRATION_TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, help="folder of JSON-lines prompt files (optional)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each text")
    parser.add_argument("--only", default="", help="run the schemes whose name contains this")
    parser.add_argument("--native", action="store_true", help="the engine's default against its bf16, on more text")
    parser.add_argument("--kv", action="store_true", help="bf16 and int8 caches at 512, 2,048 and 8,192 tokens")
    arguments = parser.parse_args()
    if arguments.kv:
        compare_kv(arguments.model, arguments.prompts)
        return
    if arguments.native:
        compare_native(arguments.model, arguments.prompts)
        return
    model, encode = open_model(arguments.model)
    recorder = Recorder()
    model.logits(encode(CALIBRATION_TEXT)[:CALIBRATION_TOKENS], recorder)
    ids = [encode(text)[: arguments.tokens] for text in held_out(arguments.prompts)]
    references = [log_softmax(model.logits(one)) for one in ids]
    loss = np.mean([mean_loss(log_probs, one) for log_probs, one in zip(references, ids, strict=True)])
    print(f"{sum(map(len, ids))} tokens in {len(ids)} texts; reference perplexity {np.exp(loss):.3f}\n")
    print("| scheme | mean KL | top-1 | perplexity |\n|---|---|---|---|", flush=True)
    weights: tuple[str, dict] = ("exact", {})
    for name, scheme in schemes(model).items():
        if arguments.only not in name:
            continue
        if weights[0] != scheme.weights:
            weights = (scheme.weights, convert(model, scheme.weights))
        print(row(name, Runner(model, scheme, weights[1], recorder.rankings), model, ids, references), flush=True)


def schemes(model) -> dict[str, Scheme]:
    """What is compared, grouped by weights so that each conversion is made once."""
    usual = wide_channels(model, 1)
    half, double, everything = wide_channels(model, 0.5), wide_channels(model, 2), wide_channels(model, 1000)
    mixed = Scheme(activations="mixed", wide=usual)
    default = mixed.but(weights="nib4", cache="bf16")
    result = {
        "bf16 cache alone": Scheme(cache="bf16"),
        "int8 cache alone": Scheme(cache="int8"),
        "activations: one 8-bit step a row": Scheme(activations="row"),
        "activations: 8-bit groups of 32": Scheme(activations="group32"),
        "activations: mixed width": mixed,
        "weights: int8 a row": Scheme(weights="int8"),
        "weights: clipped int8 a row": Scheme(weights="int8-ls"),
        "weights: nib4": Scheme(weights="nib4"),
        "default": default,
        "default, wide by soft maximum a row": default.but(ranking="row"),
        "default, half the wide channels": default.but(wide=half),
        "default, twice the wide channels": default.but(wide=double),
        "default, int8 cache": default.but(cache="int8"),
        "default, all channels wide": default.but(wide=everything),
    }
    for kind in usual:
        result[f"default, all channels wide but {kind}"] = default.but(wide=everything | {kind: usual[kind]})
    result["bf16 everywhere"] = Scheme(weights="bf16", activations="bf16", cache="bf16")
    return result


def wide_channels(model, factor: float) -> dict[str, int]:
    """Wide channels by kind of linear: `factor` times the engine's count, within the channels there are."""
    counts = {}
    for name, w in model.linears.items():
        channels = w.shape[1]
        counts[name.partition(".")[0]] = min(channels, int(wide_count(channels) * factor))
    return counts


def row(name: str, runner: Runner, model, ids, references) -> str:
    divergences, agreements, losses = [], [], []
    for one, expected in zip(ids, references, strict=True):
        found = log_softmax(model.logits(one, runner))
        divergences.append(kl(expected, found))
        agreements.append(expected.argmax(axis=1) == found.argmax(axis=1))
        losses.append(mean_loss(found, one))
    mean_kl, top1 = np.concatenate(divergences).mean(), np.concatenate(agreements).mean()
    return f"| {name} | {mean_kl:.5f} | {top1:.4f} | {np.exp(np.mean(losses)):.3f} |"


def open_model(path: str) -> tuple[object, Callable[[str], list[int]]]:
    if GgufFile(path).architecture == "gemma3":
        gemma = Gemma3Reference(path)
        pieces = SentencePieces(gemma.file)
        start = gemma.file.value("tokenizer.ggml.bos_token_id")
        return gemma, lambda text: [start, *pieces.encode(text)]
    llama = LlamaReference(path)
    tokenizer = llama.file.byte_bpe()
    return llama, lambda text: tokenizer.encode(text).ids


def held_out(prompts: Path | None) -> list[str]:
    texts = [EVALUATION.read_text()]
    if prompts is not None:
        maths, code, talk = (
            rows_of(prompts / f"{name}.jsonl") for name in ("gsm8k_test_first300", "humaneval", "spec_bench_125")
        )
        texts.append("\n\n".join(f"Question: {item['question']}\nAnswer: {item['answer']}" for item in maths[:8]))
        texts.append("\n".join(item["prompt"] + item["canonical_solution"] for item in code[:6]))
        texts.append(talk[30]["turns"][0])
    return [text[:1600] for text in texts]


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
