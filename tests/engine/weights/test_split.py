"""A model cut into several GGUF files is the model, whichever part is named, and says what is wrong with its parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tailrace.engine.models.registry import describe
from tailrace.engine.weights.file_names import part_paths
from tailrace.engine.weights.gguf import GgufFile
from tailrace.engine.weights.load import load_model
from tailrace.engine.weights.open import open_checkpoint
from tailrace.engine.weights.split import SplitGguf, open_gguf
from tailrace.errors import ModelFileError
from tests.tiny import write_tiny_gguf
from tests.tiny_hf import split_tiny_gguf


def parts_of(folder: Path, parts: int = 3, **claim: object) -> list[Path]:
    return split_tiny_gguf(write_tiny_gguf(folder / "tiny.gguf"), parts, **claim)


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    return caught.value.message


def test_any_part_opens_the_whole(tmp_path: Path) -> None:
    whole = GgufFile(write_tiny_gguf(tmp_path / "whole.gguf"))
    parts = parts_of(tmp_path)
    for path in parts:
        model = open_gguf(path)
        assert isinstance(model, SplitGguf)
        assert (model.path, model.files) == (parts[0], tuple(parts))
        assert set(model.tensors) == set(whole.tensors)
        assert describe(model) == describe(whole)
        for name in whole.tensors:
            np.testing.assert_array_equal(model.raw(name), whole.raw(name))
    assert len({model._home[name].path for name in model.tensors}) == 2


def test_it_loads_as_the_whole_does(tmp_path: Path) -> None:
    whole = load_model(write_tiny_gguf(tmp_path / "whole.gguf"), threads=1)
    parts = parts_of(tmp_path)
    loaded = load_model(parts[1], threads=1, cache_dir=tmp_path)
    assert loaded.bytes_by_format == whole.bytes_by_format
    assert loaded.file_sha256 != whole.file_sha256
    again = load_model(parts[2], threads=1, cache_dir=tmp_path)
    assert again.from_cache and again.file_sha256 == loaded.file_sha256
    assert loaded.checkpoint.tokenizer().vocab_size == whole.checkpoint.tokenizer().vocab_size


def test_missing_parts_are_named(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    parts[1].unlink()
    assert f"1 of the 3 parts of this model are missing beside {parts[2]}: {parts[1].name}. Fetch" in refusal(parts[2])


def test_a_renamed_part_says_what_its_name_should_be(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    other = parts[0].rename(tmp_path / "model.gguf")
    assert "one of 3 parts, so its name should end in -0000K-of-00003.gguf" in refusal(other)
    wrong = parts[1].rename(tmp_path / "tiny-00002-of-00004.gguf")
    assert "should end in -0000K-of-00003.gguf" in refusal(wrong)


def test_parts_in_each_others_places(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    shutil.copy(parts[1], parts[2])
    assert f"{parts[2]} is part 1 of 3 by its metadata (counted from 0); by its name it is part 2" in refusal(parts[0])


def test_parts_of_different_models(tmp_path: Path) -> None:
    parts = parts_of(tmp_path, claim={0: {"split.tensors.count": 33}})
    assert "the parts hold 20 tensors together; the first says 33" in refusal(parts[0])


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    again = parts_of(tmp_path, claim={1: {"split.no": 2}})
    shutil.copy(again[1], tmp_path / "copy")
    parts = parts_of(tmp_path)
    shutil.copy(tmp_path / "copy", parts[2])
    assert "is in an earlier part of the model too" in refusal(parts[0])


def test_one_damaged_part_is_named(tmp_path: Path) -> None:
    parts = parts_of(tmp_path)
    parts[2].write_bytes(parts[2].read_bytes()[:-500])
    assert f"{parts[2]} is truncated" in refusal(parts[0])


@pytest.mark.parametrize("claim", [{"split.count": 60000}, {"split.count": 2}])
def test_a_count_that_the_names_contradict(tmp_path: Path, claim: dict[str, int]) -> None:
    parts = parts_of(tmp_path, claim={0: claim})
    assert f"one of {claim['split.count']} parts" in refusal(parts[0])
    assert f"{parts[0]} is part 0 of {claim['split.count']}" in refusal(parts[1])


def test_a_single_file_is_itself(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", extra={"split.count": 1, "split.no": 0})
    assert isinstance(open_gguf(path), GgufFile)
    assert open_checkpoint(path).files == (path,)
    bad = write_tiny_gguf(tmp_path / "tiny.gguf", extra={"split.count": "two"})
    assert "metadata 'split.count' is 'two'" in refusal(bad)


def test_part_names() -> None:
    assert part_paths(Path("a/m-00002-of-00003.gguf")) == [Path(f"a/m-0000{k}-of-00003.gguf") for k in (1, 2, 3)]
    assert part_paths(Path("a/m.gguf")) == [Path("a/m.gguf")]
