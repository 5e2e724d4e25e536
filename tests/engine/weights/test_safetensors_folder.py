"""A folder as on the Hugging Face hub is the same model as the GGUF file made from it, or says why it cannot be one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.clock import ManualClock
from tailrace.engine.models.hf import FAMILIES, FolderConfig
from tailrace.engine.models.registry import describe
from tailrace.engine.weights.dequant import dequantize
from tailrace.engine.weights.gguf import GgufFile
from tailrace.engine.weights.load import load_model
from tailrace.engine.weights.open import open_checkpoint
from tailrace.engine.weights.safetensors_folder import SafetensorsFolder
from tailrace.engine.weights.source import WeightSource
from tailrace.errors import ModelFileError
from tailrace.text.template import ChatTemplate
from tests.engine.models.test_hf import GEMMA, LLAMA3
from tests.engine.weights.test_load import logits
from tests.tiny import IM_END, IM_START, write_tiny_gguf
from tests.tiny_hf import safetensors_bytes, write_tiny_folder

SIZES: dict[str, Any] = dict(hidden=192, heads=6, kv_heads=2, ffn=256)


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        describe(open_checkpoint(path))
    return caught.value.message


@pytest.mark.parametrize("options", [dict(), dict(shards=3), dict(tied=False)], ids=["one", "shards", "untied"])
def test_it_computes_what_the_gguf_file_does(tmp_path: Path, options: dict[str, Any]) -> None:
    """To the last bit: rows of q and k stand in the same order once loaded, and the calibration reads the same ids."""
    shards = options.pop("shards", 1)
    folder = write_tiny_folder(tmp_path / "tiny", shards=shards, **SIZES, **options)
    file = write_tiny_gguf(tmp_path / "tiny.gguf", wtype="f32", **SIZES, **options)
    ours, theirs = load_model(folder, threads=1), load_model(file, threads=1)
    np.testing.assert_array_equal(logits(ours), logits(theirs))
    assert ours.spec.tied == theirs.spec.tied


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_smaller_floats(tmp_path: Path, dtype: str) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", dtype=dtype)
    source = WeightSource(open_checkpoint(folder), describe(open_checkpoint(folder)))
    file = GgufFile(write_tiny_gguf(tmp_path / "tiny.gguf", wtype=dtype))
    for linear, other in zip(source.linears(), WeightSource(file, describe(file)).linears(), strict=True):
        expected = WeightSource(file, describe(file)).floats(other)
        np.testing.assert_array_equal(source.floats(linear), expected, err_msg=linear.name)
    loaded = load_model(folder, threads=1, cache_dir=tmp_path)
    assert f"embedding {dtype}" in loaded.bytes_by_format
    assert load_model(folder, threads=1, cache_dir=tmp_path).from_cache


def test_every_file_that_decides_is_part_of_the_digest(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", shards=2)
    names = [path.name for path in open_checkpoint(folder).files]
    assert names[:3] == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert names[3:] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    first = load_model(folder, threads=1).file_sha256
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-6}))
    assert load_model(folder, threads=1).file_sha256 != first


def test_tokenizer_and_template_come_from_the_folder(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    file = GgufFile(write_tiny_gguf(tmp_path / "tiny.gguf"))
    checkpoint = open_checkpoint(folder)
    ours, theirs = checkpoint.tokenizer(), file.tokenizer()
    for text in ("the hello world of 2024", "<|im_start|>user\nhé<|im_end|>"):
        for parse in (True, False):
            ids = [tok.encode(text, add_special=True, parse_special=parse).tolist() for tok in (ours, theirs)]
            assert ids[0] == ids[1]
    assert (ours.bos_id, IM_END in ours.end_ids) == (IM_START, True)
    template = ChatTemplate.from_metadata(checkpoint.metadata, clock=ManualClock())
    assert template is not None
    assert checkpoint.metadata["general.name"] == "tiny"


def test_where_the_template_is_found(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")

    def found(**changes: Any) -> str | None:
        settings = {"eos_token": {"content": "</s>"}} | changes
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        metadata = open_checkpoint(folder).metadata
        assert (metadata["tokenizer.eos_token"], metadata.get("tokenizer.bos_token")) == ("</s>", None)
        return metadata.get("tokenizer.chat_template")

    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert found() is None
    assert found(chat_template="A") == "A"
    assert found(chat_template=several) == "D"
    assert open_checkpoint(folder).metadata["tokenizer.chat_template.tool_use"] == "T"
    assert found(chat_template=several[:1]) is None
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "older"}))
    assert found() == "older"
    assert found(chat_template="A") == "A"
    (folder / "chat_template.jinja").write_text("file")
    assert found(chat_template="A") == "file"
    more = folder / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("for tools")
    (more / "rag.jinja").write_text("not asked for")
    assert found(chat_template=several) == "file"
    assert open_checkpoint(folder).metadata["tokenizer.chat_template.tool_use"] == "for tools"
    (folder / "chat_template.json").write_text("[")
    with pytest.raises(ModelFileError, match=r"chat_template\.json"):
        open_checkpoint(folder)


def test_llama3_scaling_becomes_factors(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", config={"rope_scaling": LLAMA3, "rope_theta": 500000.0})
    checkpoint = open_checkpoint(folder)
    spec = describe(checkpoint)
    assert spec.ropes[0].factors == "rope_freqs.weight"
    config = FolderConfig(json.loads((folder / "config.json").read_text()), "")
    expected = spec.ropes[0].tables(9, config.rope_factors())
    for found, table in zip(WeightSource(checkpoint, spec).rope_tables(9)[0], expected, strict=True):
        np.testing.assert_array_equal(found, table)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_norms_stored_less_one_are_read_as_they_are_used(tmp_path: Path, dtype: str) -> None:
    norm = np.array([0.0, 0.5, -1.0], np.float32)
    tensors = {"model.norm.weight": norm, "model.layers.0.self_attn.q_proj.weight": norm[None]}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors, dtype))
    (tmp_path / "config.json").write_text(json.dumps(GEMMA))
    folder = SafetensorsFolder(tmp_path)
    found = dequantize(folder.raw("output_norm.weight"), folder.tensors["output_norm.weight"].type.name)
    assert found.tolist() == [[1.0, 1.5, 0.0]]
    info = folder.tensors["blk.0.attn_q.weight"]
    assert dequantize(folder.raw("blk.0.attn_q.weight"), info.type.name).tolist() == [[0.0, 0.5, -1.0]]


def change_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | changes))

    return change


def rewrite(name: str, content: str) -> Callable[[Path], int]:
    return lambda folder: (folder / name).write_text(content)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00002.safetensors"
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (remove("config.json"), "is a folder without config.json, so it is not a model"),
    "no JSON": (rewrite("config.json", "{"), "config.json is damaged: it is not valid JSON"),
    "a list": (rewrite("config.json", "[]"), "config.json is damaged: it is a JSON list, not an object"),
    "a huge config": (rewrite("config.json", " " * (1 << 21)), "config.json has 2097152 bytes; at most 1048576"),
    "other architecture": (change_config(architectures=["T5"]), "architectures is ['T5']; those that run here are"),
    "more layers": (change_config(num_hidden_layers=3), "tensor 'blk.2.attn_norm.weight' is missing"),
    "fewer layers": (
        change_config(num_hidden_layers=1),
        "tensor(s) that a plain llama model does not, such as 'blk.1.",
    ),
    "another width": (
        change_config(intermediate_size=192),
        "'model.layers.0.mlp.gate_proj.weight' has shape (128, 64)",
    ),
    "no index": (remove(INDEX), f"has neither model.safetensors nor {INDEX}; it has several: model-00001"),
    "no map": (rewrite(INDEX, '{"weight_map": {"a": 1}}'), "its weight_map is not a table of file names"),
    "an empty map": (rewrite(INDEX, '{"weight_map": {}}'), "names no files"),
    "a way out": (rewrite(INDEX, '{"weight_map": {"a": "../b.safetensors"}}'), "names '../b.safetensors' as a file"),
    "another kind": (rewrite(INDEX, '{"weight_map": {"a": "b.bin"}}'), "names 'b.bin' as a file"),
    "no shard": (remove(SECOND), f"1 of the 2 files of this model are missing in {{folder}}: {SECOND}. Fetch"),
    "a tensor elsewhere": (rewrite(INDEX, json.dumps({"weight_map": {"a": SECOND}})), "tensor 'a' is missing; model"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_what_is_wrong_is_said(tmp_path: Path, case: str) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", shards=2)
    damage, said = DAMAGES[case]
    damage(folder)
    message = refusal(folder)
    assert said.format(folder=folder) in message
    assert str(folder) in message


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny", shards=2)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    table = json.loads((folder / INDEX).read_text())["weight_map"]
    (folder / names[1]).write_bytes((folder / names[0]).read_bytes())
    keep = {tensor: file for tensor, file in table.items() if file == names[0]}
    keep["model.norm.weight" if "model.norm.weight" in keep else next(iter(keep))] = names[1]
    (folder / INDEX).write_text(json.dumps({"weight_map": keep}))
    assert "is in another file of the folder too" in refusal(folder)


def test_an_unreadable_type_is_named_with_the_files_own_name(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    path = folder / "model.safetensors"
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    header["model.layers.0.mlp.up_proj.weight"]["dtype"] = "I32"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + path.read_bytes()[8 + length :])
    assert "tensor 'model.layers.0.mlp.up_proj.weight' has type I32; readable types are F32, F16, BF16" in refusal(
        folder
    )


def test_weights_that_could_run_code_are_not_read(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "it has no safetensors file. Its weights are in pickle files, which are not read" in refusal(folder)


def test_a_file_of_weights_alone_names_its_folder(tmp_path: Path) -> None:
    path = write_tiny_folder(tmp_path / "tiny") / "model.safetensors"
    assert f"{path} has weights only; give the folder that also has its config.json: {path.parent}" in refusal(path)


numbers = st.one_of(st.integers(-1, 70), st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
scalings = st.dictionaries(
    st.sampled_from([*LLAMA3, "type", "beta_fast", "full_attention"]),
    st.one_of(numbers, st.sampled_from(["llama3", "yarn", "linear"])),
)
keys = sorted({*GEMMA, "rope_scaling", "rope_parameters", "num_key_value_heads", "partial_rotary_factor", "hidden_act"})


@settings(max_examples=300, deadline=None)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    changes=st.dictionaries(st.sampled_from(keys), st.one_of(numbers, scalings, st.lists(numbers, max_size=3))),
)
def test_any_settings_are_understood_or_refused(family: str, changes: dict[str, Any]) -> None:
    changes.pop("architectures", None)
    try:
        config = FolderConfig({**GEMMA, "architectures": [family], "hidden_act": None, **changes}, "config.json")
        metadata, factors = config.metadata(), config.rope_factors()
    except ModelFileError as error:
        assert error.message.startswith("config.json: ")
    else:
        assert metadata["general.architecture"] == FAMILIES[family].architecture
        assert factors is None or factors.size <= 1 << 13
