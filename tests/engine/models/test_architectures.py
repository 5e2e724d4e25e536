"""Every architecture against its own reference, and its promise of the same bits however the work is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tailrace import _native
from tailrace.engine.models.registry import ARCHITECTURES
from tailrace.engine.weights.gguf import GgufFile
from tailrace.engine.weights.load import LoadedModel, load_model
from tests.architectures import REFERENCES, write_tiny
from tests.native.tiny import Session, i32, run_chunked
from tests.reference.canonical import engine_integers
from tests.reference.compare import compare
from tests.tiny import tiny_vocab_size

F32 = npt.NDArray[np.float32]
TOKENS = 330  # past a segment of keys
IDS = np.random.default_rng(3).integers(3, tiny_vocab_size(), TOKENS).tolist()

VARIATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen2 untied": ("qwen2", dict(tied=False, wtype="q8_0")),
    "qwen2 base": ("qwen2", dict(wtype="f16", extra={"qwen2.rope.freq_base": 1e6})),
    "qwen3": ("qwen3", {}),
    "qwen3 untied": ("qwen3", dict(tied=False, wtype="bf16")),
    "qwen3 wide heads": ("qwen3", dict(hidden=64, heads=2, kv_heads=2, head_dim=128, wtype="q8_0")),
    "gemma3": ("gemma3", {}),
    "gemma3 default pattern": ("gemma3", dict(layers=7, extra={"gemma3.attention.sliding_window_pattern": 6})),
    "gemma3 windows end at blocks": ("gemma3", dict(extra={"gemma3.attention.sliding_window": 64})),
    "gemma3 windows end at segments": ("gemma3", dict(extra={"gemma3.attention.sliding_window": 256})),
    "gemma3 one key": ("gemma3", dict(extra={"gemma3.attention.sliding_window": 1})),
    "gemma3 no full layer": ("gemma3", dict(extra={"gemma3.attention.sliding_window_pattern": 9})),
    "gemma3 scores": (
        "gemma3",
        dict(
            wtype="q8_0",
            extra={
                "gemma3.attention.scale": 0.3,
                "gemma3.attn_logit_softcapping": 3.0,
                "gemma3.final_logit_softcapping": 2.0,
                "gemma3.rope.freq_base": 1e6,
            },
        ),
    ),
}


@pytest.fixture(params=VARIATIONS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    architecture, arguments = VARIATIONS[request.param]
    return write_tiny(architecture, tmp_path / "tiny.gguf", **arguments)


def load(path: Path, **options: Any) -> LoadedModel:
    return load_model(path, **{"threads": 1, "max_context": 512} | options)


def reference_of(path: Path) -> Any:
    return REFERENCES[GgufFile(path).metadata["general.architecture"]](path)


def test_each_has_a_reference() -> None:
    assert set(ARCHITECTURES) == set(REFERENCES) == {architecture for architecture, _ in VARIATIONS.values()}


def check(path: Path, bound: float, isa: str = "auto") -> None:
    found = run_chunked(load(path, isa=isa).model, IDS, TOKENS)
    reference = reference_of(path)
    exact = reference.logits(IDS)
    assert exact.std(axis=1).min() > 0.2  # the model says something at every position
    assert compare(exact, found, IDS).mean_kl < 0.01
    expected = reference.logits(IDS, engine_integers(path))
    assert compare(expected, found, IDS).mean_kl < bound
    np.testing.assert_allclose(found[0], expected[0], atol=2e-5)  # attends to itself alone: only linears count


def test_logits_are_those_of_the_reference(path: Path) -> None:
    check(path, bound=0.001 if _native.variants()[0] != "amx" else 0.003)


@pytest.mark.parametrize("isa", _native.test_variants()[1:])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_variant_gives_them(tmp_path: Path, architecture: str, isa: str) -> None:
    check(write_tiny(architecture, tmp_path / "tiny.gguf"), bound=0.003, isa=isa)  # tiles round queries to bf16


def test_bf16_is_closer(path: Path) -> None:
    found = run_chunked(load(path, weights="bf16").model, IDS, TOKENS)
    assert compare(reference_of(path).logits(IDS), found, IDS).mean_kl < 0.0005


def test_any_chunking_and_any_team_give_the_same_bits(path: Path) -> None:
    model = load(path).model
    whole = run_chunked(model, IDS, TOKENS)
    for chunk in (64, 77):
        np.testing.assert_array_equal(run_chunked(model, IDS, chunk), whole)
    np.testing.assert_array_equal(run_chunked(load(path, threads=3).model, IDS, 100), whole)
    session = Session(model, _native.KvCache(model, 6), [2, 5, 1, 0, 4, 3])
    session.feed(IDS[:250])
    alone = [session.feed([token]) for token in IDS[250:]]
    np.testing.assert_array_equal(np.concatenate(alone), whole[250:])


def test_company_does_not_matter(path: Path) -> None:
    """Sequences at different places of their windows in one batch, against each alone."""
    model = load(path, threads=2).model
    lengths = [(0, 5), (64, 1), (270, 1), (100, 33), (69, 2), (255, 2)]  # (cached, new)
    texts = [IDS[seed : seed + cached + new] for seed, (cached, new) in enumerate(lengths)]
    alone = [run_chunked(model, text, len(text))[cached:] for text, (cached, _) in zip(texts, lengths, strict=True)]
    kv = _native.KvCache(model, 6 * len(lengths))
    tables = np.random.default_rng(0).permutation(6 * len(lengths)).reshape(len(lengths), 6).astype(np.int32)
    for row, (text, (cached, _)) in enumerate(zip(texts, lengths, strict=True)):
        if cached:
            Session(model, kv, tables[row].tolist()).feed(text[:cached])
    fed = [text[cached:] for text, (cached, _) in zip(texts, lengths, strict=True)]
    starts = np.cumsum([0, *map(len, fed)]).astype(np.int32)
    first = i32([cached for cached, _ in lengths])
    model.forward(kv, i32([token for part in fed for token in part]), starts, first, tables, i32(range(starts[-1])))
    np.testing.assert_array_equal(model.logits(), np.concatenate(alone))
