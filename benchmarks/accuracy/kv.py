"""What the KV cache's type costs at short and long context, on the engine's own kernels.

The reference is bf16 weights with a bf16 cache, which differs from float32 by a KL of 0.0002. Compared are positions
with (nearly) the whole context before them: the last 512 of each window of 512, 2,048 and 8,192 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from benchmarks.accuracy.native import texts
from tests.model.numbers import F32, Difference, Ids, difference, together
from tests.reference.compare import log_softmax

from tailrace import _native
from tailrace.engine.kv.stored import Kv
from tailrace.engine.weights.load import LoadedModel, load_model

CONTEXTS = {512: 4, 2048: 2, 8192: 1}  # windows of each
COMPARED = 512  # positions at the end of a window
CHUNK = 512
Cache = tuple[str, Kv]  # weights, keys and values
REFERENCE: Cache = ("bf16", "bf16")
OTHERS: tuple[Cache, ...] = (("bf16", "int8"), ("auto", "bf16"), ("auto", "int8"))


def compare_kv(path: str, prompts: Path | None) -> None:
    """Print a table row for each context, weights and cache."""
    models = {weights: load_model(path, weights=weights) for weights in ("bf16", "auto")}
    tokenizer = models["auto"].checkpoint.tokenizer()
    text = "\n\n".join(texts(prompts).values())
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    begin = np.array([tokenizer.bos_id] if tokenizer.wants_bos else [], dtype=np.int32)  # of every window
    print("| context | weights | KV | mean KL | top-1 | perplexity of the reference, change, standard error |")
    print("|---|---|---|---|---|---|", flush=True)
    for context, count in CONTEXTS.items():
        if context > min(len(ids), models["auto"].max_context):
            print(f"(no {context}: the text has {len(ids)} tokens, the model {models['auto'].max_context})")
            continue
        starts = range(0, min(count, len(ids) // context) * context, context)
        windows = [np.concatenate((begin, ids[start:][: context - len(begin)])) for start in starts]
        for cache, found in differences(models, windows):
            print(row(context, cache, found), flush=True)


def differences(models: dict[str, LoadedModel], windows: list[Ids]) -> Iterator[tuple[Cache, Difference]]:
    expected = [last_log_probs(models, REFERENCE, ids) for ids in windows]
    ends = [ids[-COMPARED:] for ids in windows]
    for cache in OTHERS:
        pairs = zip(expected, windows, ends, strict=True)
        parts = [difference([one], [last_log_probs(models, cache, ids)], [end]) for one, ids, end in pairs]
        yield cache, together(parts)


def last_log_probs(models: dict[str, LoadedModel], cache: Cache, ids: Ids) -> F32:
    """[COMPARED, vocab] of the last positions."""
    weights, kv = cache
    model, blocks = models[weights].model, -(-len(ids) // _native.BLOCK_TOKENS)
    memory, table = _native.KvCache(model, blocks, kv), np.arange(blocks, dtype=np.int32)[None]
    for first in range(0, len(ids), CHUNK):
        part = ids[first : first + CHUNK]
        wanted = np.arange(max(0, len(ids) - COMPARED - first), len(part), dtype=np.int32)
        model.forward(memory, part, np.array([0, len(part)], np.int32), np.array([first], np.int32), table, wanted)
    return log_softmax(model.logits())


def row(context: int, cache: Cache, found: Difference) -> str:
    perplexity = np.exp(found.reference_loss.mean())
    change = f"{100 * found.perplexity_change:+.2f} % +- {100 * found.standard_error:.2f} %"
    weights = "default" if cache[0] == "auto" else cache[0]
    return (
        f"| {context} | {weights} | {cache[1]} | {found.kl.mean():.5f} | {found.top1.mean():.3f} | "
        f"{perplexity:.2f}, {change} |"
    )
