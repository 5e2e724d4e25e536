"""PEFT folders: what is read, how strongly it is added, and what is refused in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace import _native
from tailrace.engine.lora.config import read_config
from tailrace.engine.lora.read import read_adapter
from tailrace.engine.weights.load import LoadedModel, load_model
from tailrace.errors import ModelFileError
from tests.engine.support import prompt
from tests.peft import PROJECTIONS, TINY, adapter_tensors, tensor_name, write_adapter
from tests.reference.llama import LlamaReference
from tests.tiny import write_tiny_gguf
from tests.tiny_hf import folder_tensors, write_tiny_folder

IDS = prompt(100)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("base") / "tiny.gguf", wtype="f32")


@pytest.fixture(scope="module")
def loaded(base: Path) -> LoadedModel:
    return load_model(base, weights="bf16", threads=1)


def logits(loaded: LoadedModel, folder: Path | None) -> Any:
    adapter = None if folder is None else read_adapter(folder, loaded.spec, loaded.model)
    cache, every = _native.KvCache(loaded.model, 2), np.arange(len(IDS), dtype=np.int32)
    ends, table = np.array([0, len(IDS)], np.int32), np.array([[0, 1]], np.int32)
    loaded.model.forward(cache, IDS, ends, np.zeros(1, np.int32), table, every, adapters=[adapter])
    return loaded.model.logits()


def similar(a: Any, b: Any) -> float:
    return float(np.sqrt(((a - b) ** 2).mean() / (b**2).mean()))


def merged(base: Path, folder: Path, scale: float, tensors: Any) -> Path:
    """The base with scale * B A added to its weights: rows of q and k lie in pairs in a GGUF, in PEFT in halves."""
    source = folder_tensors(base)
    found = {}
    for layer in range(TINY["layers"]):
        for target, part in zip(
            PROJECTIONS, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"), strict=True
        ):
            group = "self_attn" if target[0] in "qkvo" else "mlp"
            rows = source[f"model.layers.{layer}.{group}.{target}.weight"].copy()
            if (name := tensor_name(layer, target, "A")) in tensors:
                rows += scale * tensors[tensor_name(layer, target, "B")] @ tensors[name]
            if part in ("attn_q", "attn_k"):
                heads = 2 if part == "attn_q" else 1
                rows = rows.reshape(heads, 2, -1, rows.shape[1]).transpose(0, 2, 1, 3).reshape(rows.shape)
            found[f"blk.{layer}.{part}.weight"] = rows
    return write_tiny_gguf(folder / "merged.gguf", wtype="f32", tensors=found)


@pytest.mark.parametrize(("dtype", "rslora"), [("f32", False), ("bf16", True), ("f16", False)])
def test_it_is_the_base_with_its_product_merged(
    base: Path, loaded: LoadedModel, tmp_path: Path, dtype: str, rslora: bool
) -> None:
    """Against a float32 NumPy forward of the merged file: as near as the base is to that of its own."""
    folder = write_adapter(tmp_path / "a", rank=4, dtype=dtype, use_rslora=rslora, lora_alpha=6)
    scale = 6 / 2 if rslora else 6 / 4
    reference = LlamaReference(merged(base, folder, scale, adapter_tensors(TINY, 4))).logits(IDS.tolist())
    plain = LlamaReference(base).logits(IDS.tolist())
    rounding = similar(logits(loaded, None), plain)
    assert similar(reference, plain) > 20 * rounding
    assert similar(logits(loaded, folder), reference) < 2 * rounding


def test_a_folder_model_takes_the_same_adapter(loaded: LoadedModel, tmp_path: Path) -> None:
    """Whose rows of q and k lie in halves as the adapter's do."""
    other = load_model(write_tiny_folder(tmp_path / "tiny"), weights="bf16", threads=1)
    folder = write_adapter(tmp_path / "a")
    assert (logits(other, folder) == logits(loaded, folder)).all()


def test_ranks_and_alphas_by_module(loaded: LoadedModel, tmp_path: Path) -> None:
    wide = {
        name: values
        for name, values in adapter_tensors(TINY, 6, seed=1).items()
        if "layers.1" in name and "up_proj" in name
    }
    folder = write_adapter(
        tmp_path / "a", rank=2, tensors=wide, lora_alpha=4, rank_pattern={"layers.1.mlp.up_proj": 6},
        alpha_pattern={"up_proj": 3},
    )  # fmt: skip
    config = read_config(folder)
    assert config.scale_of("model.layers.0.mlp.up_proj") == 1.5
    assert config.scale_of("model.layers.1.mlp.up_proj") == 0.5
    assert config.scale_of("model.layers.1.mlp.gate_proj") == 2.0
    assert np.isfinite(logits(loaded, folder)).all()


def test_some_layers_and_projections_are_enough(loaded: LoadedModel, tmp_path: Path) -> None:
    left_out = {name: None for name in adapter_tensors(TINY, 8, targets=("v_proj",)) if "layers.0" in name}
    folder = write_adapter(tmp_path / "a", targets=("v_proj",), tensors=left_out, layers_to_transform=[1])
    assert similar(logits(loaded, folder), logits(loaded, None)) > 0
    pattern = write_adapter(tmp_path / "b", targets=("v_proj",), tensors=left_out, target_modules=r".*\.v_proj")
    assert (logits(loaded, pattern) == logits(loaded, folder)).all()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; LORA is what runs here"),
        ({"use_dora": True}, "use_dora is True: it is a DoRA adapter"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]: it replaces whole modules"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules has 'lm_head'; those that run here are q_proj"),
        ({"target_modules": [*PROJECTIONS, "model.embed_tokens"]}, "'model.embed_tokens'"),
        ({"r": 65}, "r is 65; ranks from 1 to 64"),
        ({"r": 0}, "r is 0"),
        ({"r": "8"}, "r is '8'"),
        ({"rank_pattern": {"v_proj": 128}}, "rank_pattern is 128; ranks from 1 to 64"),
        ({"rank_pattern": {"(a+)+$": 4}}, r"rank_pattern has the expression '\(a\+\)\+\$'"),
        ({"alpha_pattern": [1]}, "alpha_pattern is"),
        ({"lora_alpha": None}, "lora_alpha is None; a number above 0"),
        ({"lora_alpha": -1}, "lora_alpha is -1"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'; true or false"),
        ({"init_lora_weights": "pissa_niter_4"}, "it needs a base with other weights"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"a_new_idea": {"depth": 3}}, "a_new_idea is not known here"),
    ],
)
def test_settings_that_would_change_the_meaning(
    loaded: LoadedModel, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    folder = write_adapter(tmp_path / "a", **settings)
    with pytest.raises(ModelFileError, match=says):
        read_adapter(folder, loaded.spec, loaded.model)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({tensor_name(0, "q_proj", "A"): zeros(8, 96)}, r"of model.layers.0.self_attn.q_proj has shape \[8, 96\]"),
        ({tensor_name(1, "k_proj", "B"): zeros(64, 8)}, r"has shape \[64, 8\]; with rank 8 Tiny Test needs \[32, 8\]"),
        ({tensor_name(0, "up_proj", "B"): zeros(128, 4)}, r"shape \[128, 4\]; with rank 8 .* needs \[128, 8\]"),
        ({tensor_name(0, "v_proj", "B"): zeros(256)}, r"has shape \[256\]"),
        ({tensor_name(2, "q_proj", "A"): zeros(8, 64)}, "beyond the model's 2 layers"),
        ({tensor_name(1, "o_proj", "B"): None}, "model.layers.1.self_attn.o_proj has no lora_B"),
        ({tensor_name(1, "o_proj", "A"): None}, "model.layers.1.self_attn.o_proj has no lora_A"),
        ({"base_model.model.lm_head.lora_A.weight": zeros(8, 64)}, "it adapts the module 'lm_head'; those that run"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": zeros(8, 64)}, "the module 'model.embed_tokens'"),
        ({"base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector": zeros(128)}, "DoRA"),
        ({"base_model.model.lm_head.weight": zeros(8, 64)}, "is no matrix of an adapter"),
        ({tensor_name(0, "q_proj", "A"): np.full((8, 64), np.nan, np.float32)}, "holds NaN or infinity"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(loaded: LoadedModel, tmp_path: Path, tensors: Any, says: str) -> None:
    folder = write_adapter(tmp_path / "a", tensors=tensors)
    with pytest.raises(ModelFileError, match=says):
        read_adapter(folder, loaded.spec, loaded.model)


def test_folders_that_lack_something(loaded: LoadedModel, tmp_path: Path) -> None:
    def refused(folder: Path) -> str:
        with pytest.raises(ModelFileError) as caught:
            read_adapter(folder, loaded.spec, loaded.model)
        return caught.value.message

    (tmp_path / "empty").mkdir()
    assert "There is no adapter_config.json" in refused(tmp_path / "empty")
    folder = write_adapter(tmp_path / "a")
    weights = folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert "is truncated" in refused(folder)
    weights.rename(folder / "adapter_model.bin")
    assert "reading that can run code" in refused(folder)
    assert "There is no model file" in refused(write_adapter_config_only(tmp_path / "b"))
    none = dict.fromkeys(adapter_tensors(TINY, 8))
    assert "has no tensors" in refused(write_adapter(tmp_path / "c", tensors=none))
    fewer = dict.fromkeys(name for name in none if "v_proj" in name)
    assert "has no weights of v_proj" in refused(write_adapter(tmp_path / "d", tensors=fewer))


def write_adapter_config_only(folder: Path) -> Path:
    write_adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    return folder


def test_the_file_is_what_the_safetensors_package_reads(tmp_path: Path) -> None:
    """The fixtures are real: PEFT's own format, by its own library."""
    from safetensors.numpy import load_file

    folder = write_adapter(tmp_path / "a", rank=3)
    found = load_file(folder / "adapter_model.safetensors")
    wanted = adapter_tensors(TINY, 3)
    assert found.keys() == wanted.keys()
    assert all((found[name] == values).all() for name, values in wanted.items())
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 3
