"""A model file: what it is, what it needs in memory, whether that fits here, and how fast it should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from tailrace import _native
from tailrace.clock import SystemClock, WorkClock
from tailrace.config import EngineConfig, store_root
from tailrace.doctor.finding import Finding, Level
from tailrace.doctor.machine import Machine
from tailrace.doctor.speed import Speed
from tailrace.engine.capacity import available_memory, kv_capacity
from tailrace.engine.kv.stored import Kv, kv_token_bytes, stored_kv
from tailrace.engine.models.base import ModelSpec
from tailrace.engine.models.registry import describe
from tailrace.engine.store.store import Store
from tailrace.engine.weights.checkpoint import Checkpoint
from tailrace.engine.weights.encoder import source_of
from tailrace.engine.weights.open import open_checkpoint
from tailrace.engine.weights.pack import STORED_EMBEDDINGS
from tailrace.engine.weights.source import Linear, WeightSource
from tailrace.errors import ConfigError, StoreError, TailraceError
from tailrace.frozen import frozen
from tailrace.text.template import ChatTemplate
from tailrace.units import human_bytes

_NIB4_BYTES = 20 / 32  # of a weight: 16 bytes of nibbles and two int16 for each 32


@frozen
class Needs:
    """Bytes. `weights` by storage mode, embedding included; `kv` for each token of context, by how it is stored."""

    weights: Mapping[str, int]
    kv: Mapping[Kv, int]


def model_findings(machine: Machine, config: EngineConfig, speed: Speed | None) -> Iterator[Finding]:
    """`speed` None: nothing is said about it (the kernels of this machine are not the real ones)."""
    try:
        path = Store(store_root(config)).resolve(config.model)
        checkpoint = open_checkpoint(path)
        spec = describe(checkpoint)
    except StoreError as error:
        waits = error.code == "not_pulled"
        text = f"{config.model} is not in the store yet; serve fetches it on first use" if waits else error.message
        advice = f"tailrace pull {config.model}" if waits else "see `tailrace models`, or give the path of a file"
        yield Finding("model", Level.WARN if waits else Level.FAIL, text, advice)
        return
    except TailraceError as error:
        yield Finding("model", Level.FAIL, error.message, "choose another file, or fetch this one again")
        return
    yield _identity(checkpoint, spec)
    yield _chat(checkpoint)
    needs = model_needs(source_of(checkpoint, spec))
    mode = _chosen(machine, config)
    kv = stored_kv(config.kv, spec, mode)
    yield _weights(needs, mode, kv)
    yield _fit(machine, config, spec, needs.weights[mode], kv)
    if speed is not None:
        yield speed.finding(path)


def model_needs(source: WeightSource) -> Needs:
    """From the tensors' shapes and types alone."""
    spec, linears = source.spec, source.linears()
    embedding = source.type_of(spec.embedding) in STORED_EMBEDDINGS
    rows = source.file.tensors[spec.embedding].nbytes if embedding else spec.vocab * spec.hidden * 2
    weights = {mode: rows + sum(_packed(source, linear, mode) for linear in linears) for mode in _MODES}
    return Needs(weights, {kv: kv_token_bytes(spec, kv) for kv in _KV})


_MODES = ("nib4", "int8", "bf16")
_KV: tuple[Kv, ...] = ("int8", "bf16")


def _packed(source: WeightSource, linear: Linear, mode: str) -> int:
    if mode == "bf16":
        return 2 * linear.n * linear.k
    part = _NIB4_BYTES if mode == "nib4" and source.is_affine4(linear) else 1
    return int(part * linear.n * linear.k) + 4 * linear.n


def _chosen(machine: Machine, config: EngineConfig) -> str:
    variant = config.isa if config.isa in machine.variants() else machine.variants()[0]
    return machine.preferred(variant, "affine4") if config.weights == "auto" else config.weights


def _identity(checkpoint: Checkpoint, spec: ModelSpec) -> Finding:
    count, types = 0, Counter[str]()
    for tensor in checkpoint.tensors.values():
        count += prod(tensor.shape)
        types[tensor.type.name] += tensor.nbytes
    total = sum(types.values())
    shares = ", ".join(f"{name} {100 * part / total:.0f} %" for name, part in types.most_common(4))
    name = spec.name or checkpoint.path.name
    text = (
        f"{name}: {spec.architecture}, {spec.layers} layers, {count / 1e6:,.1f} M weights, context {spec.context:,}; "
        f"{human_bytes(total)}: {shares}"
    )
    facts = {
        "path": str(checkpoint.path), "architecture": spec.architecture, "layers": spec.layers, "weights": count,
        "context": spec.context, "bytes_by_type": dict(types),
    }  # fmt: skip
    return Finding("model", Level.OK, text, "", facts)


def _chat(checkpoint: Checkpoint) -> Finding:
    """Tokenizer and template, as serve would set them up."""
    try:
        vocabulary = checkpoint.tokenizer().vocab_size
        template = ChatTemplate.from_metadata(checkpoint.metadata, clock=WorkClock(SystemClock()))
    except TailraceError as error:
        return Finding("text", Level.FAIL, error.message, "choose another file, or give --chat-template FILE")
    text, facts = f"{vocabulary:,} tokens", {"vocabulary": vocabulary, "template": template is not None}
    if template is None:
        advice = "chats need --chat-template FILE; completions work"
        return Finding("text", Level.WARN, f"{text}, no chat template", advice, facts)
    return Finding("text", Level.OK, f"{text}, with a chat template", "", facts)


def _weights(needs: Needs, mode: str, kv: Kv) -> Finding:
    facts = {
        "bytes": dict(needs.weights), "chosen": mode, "kv_chosen": kv, "kv_bytes_per_token": needs.kv[kv],
        "kv_bytes_per_token_by_type": dict(needs.kv),
    }  # fmt: skip
    text = f"in memory about {_choices(needs.weights, mode)}; KV cache a token {_choices(needs.kv, kv)}"
    return Finding("needs", Level.OK, text, "", facts)


def _choices(sizes: Mapping[Any, int], chosen: str) -> str:
    return ", ".join(f"{name} {human_bytes(size)}{' (chosen)' * (name == chosen)}" for name, size in sizes.items())


def _fit(machine: Machine, config: EngineConfig, spec: ModelSpec, weights: int, kv: Kv) -> Finding:
    free = available_memory(machine.root)
    context, size_of_block = config.max_context or spec.context, _native.BLOCK_TOKENS
    facts: dict[str, object] = {"available": free, "weights": weights}
    if weights >= free:
        advice = "free memory, or take a smaller model or quantization"
        return Finding(
            "fits", Level.FAIL, f"{human_bytes(weights)} of weights, {human_bytes(free)} available", advice, facts
        )
    try:
        token_bytes = kv_token_bytes(spec, kv, len(machine.ranks(config)))
        capacity = kv_capacity(
            config.kv_memory, token_bytes * size_of_block, max_blocks=-(-context // size_of_block),
            max_sequences=config.max_sequences, block_tokens=size_of_block, free=free - weights, kv=kv,
        )  # fmt: skip
    except ConfigError as error:
        return Finding("fits", Level.FAIL, error.message, "free memory, or set kv_memory", facts)
    facts |= {"kv_tokens": capacity.tokens, "kv_bytes": capacity.blocks * capacity.block_bytes}
    if config.kv_memory > free - weights:
        advice = f"set kv_memory to {human_bytes(free - weights)} or less, or to 0"
        return Finding(
            "fits", Level.FAIL, f"{capacity}, more than the {human_bytes(free - weights)} left", advice, facts
        )
    if capacity.tokens < context:
        advice = "prompts are bounded by the KV cache: free memory, raise kv_memory, or lower max_context"
        return Finding("fits", Level.WARN, f"{capacity}, less than one context of {context:,}", advice, facts)
    return Finding("fits", Level.OK, f"{capacity}: {capacity.tokens / context:,.1f} full contexts", "", facts)
