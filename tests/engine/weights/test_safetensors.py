"""The reader agrees with the `safetensors` package on good files and names what is wrong with bad ones."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from tailrace.engine.weights.dequant import dequantize
from tailrace.engine.weights.safetensors import MAX_HEADER, SafetensorsFile
from tailrace.errors import ModelFileError
from tests.tiny_hf import join_safetensors, safetensors_bytes

GOOD = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def file_of(header: Any, data: bytes = bytes(24)) -> bytes:
    return join_safetensors(header if isinstance(header, bytes) else json.dumps(header).encode(), data)


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        SafetensorsFile(path)
    assert str(path) in caught.value.message
    return caught.value.message


def test_it_reads_what_the_package_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "matrix": rng.standard_normal((5, 7)).astype(np.float32),
        "half": rng.standard_normal((3, 4)).astype(np.float16),
        "vector": rng.standard_normal(9).astype(np.float32),
        "scalar": np.array(2.5, np.float32),
        "ids": np.arange(6),
    }
    path = tmp_path / "a.safetensors"
    save_file(arrays, path, metadata={"format": "np"})
    file = SafetensorsFile(path)
    assert {name: (info.shape, info.nbytes) for name, info in file.tensors.items()} == {
        name: (array.shape, array.nbytes) for name, array in arrays.items()
    }
    for name, array in arrays.items():
        assert file.raw(name).tobytes() == array.tobytes()
        assert file.raw(name).shape[0] == (array.shape[0] if array.ndim > 1 else 1)
    assert file.tensors["ids"].type.name == "I64"
    with pytest.raises(ValueError, match="read-only"):
        file.raw("matrix")[0, 0] = 1


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_float_types_give_their_numbers(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    file = SafetensorsFile(write(tmp_path / "a.safetensors", safetensors_bytes({"w": values}, dtype)))
    found = dequantize(file.raw("w"), file.tensors["w"].type.name)
    tolerance = {"f32": 0, "f16": 2**-11, "bf16": 2**-8}[dtype]
    np.testing.assert_allclose(found, values, rtol=tolerance, atol=1e-7)
    assert found.dtype == np.float32


def test_missing_short_and_foreign_files(tmp_path: Path) -> None:
    assert "There is no model file at" in refusal(tmp_path / "nothing.safetensors")
    assert "it has fewer than 8 bytes" in refusal(write(tmp_path / "a", b""))
    assert "it has fewer than 8 bytes" in refusal(write(tmp_path / "a", b"1234567"))
    assert "cannot be read" in refusal(tmp_path)
    assert "claim a header of 8367815003643135815 bytes" in refusal(write(tmp_path / "a", b"GGUFis t" + bytes(100)))
    assert "does not start with '{'" in refusal(write(tmp_path / "a", bytes(100)))


@pytest.mark.parametrize("cut", [1, 10, 24])
def test_a_truncated_file_names_both_sizes(tmp_path: Path, cut: int) -> None:
    whole = file_of(GOOD)
    message = refusal(write(tmp_path / "a", whole[:-cut]))
    assert f"describes {len(whole)} bytes, the file has {len(whole) - cut} ({cut} missing)" in message


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": GOOD["a"] | changes}


BOGUS = {
    "a header beyond the file": ((10_000_000).to_bytes(8, "little") + b"{" * 50, "the file has 58"),
    "a header beyond all bounds": ((1 << 40).to_bytes(8, "little") + b"{" * 50, f"at most {MAX_HEADER} are read"),
    "no JSON": (file_of(b"{nonsense"), "its header is damaged: it is not valid JSON"),
    "deep nesting": (file_of(b'{"a":' + b"[" * 200_000), "not valid JSON"),
    "a huge number": (file_of(b'{"a":' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "twice": (file_of(b'{"a":1,"a":1}'), "key 'a' occurs twice"),
    "no object": (file_of({"a": 7}), "tensor 'a' is described by int"),
    "unknown type": (file_of(entry(dtype="F4")), "has the unknown type 'F4'; known are F64, F32"),
    "a type that is no text": (file_of(entry(dtype=["F32"])), "has the unknown type ['F32']"),
    "a negative size": (file_of(entry(shape=[-2, -3])), "the shape of tensor 'a' is [-2, -3]"),
    "sizes that are no numbers": (file_of(entry(shape=[2.0, True])), "the shape of tensor 'a' is [2.0, True]"),
    "many dimensions": (file_of(entry(shape=[1] * 5000)), "the shape of tensor 'a' is [1, 1"),
    "a huge shape": (file_of(entry(shape=[1 << 62] * 8)), "its range has 24"),
    "no shape": (file_of({"a": {"dtype": "F32", "data_offsets": [0, 24]}}), "the shape of tensor 'a' is None"),
    "a reversed range": (file_of(entry(data_offsets=[24, 0])), "the range of tensor 'a' is [24, 0]"),
    "a range of one": (file_of(entry(data_offsets=[24])), "the range of tensor 'a' is [24]"),
    "a range that does not fit": (file_of(entry(data_offsets=[0, 20])), "takes 24 bytes; its range has 20"),
    "a gap": (file_of(entry(data_offsets=[8, 32]), bytes(32)), "do not start where those before it end"),
    "an overlap": (file_of({"a": GOOD["a"], "b": GOOD["a"]}), "do not start where those before it end"),
    "left over": (file_of(GOOD, bytes(30)), "6 bytes at its end belong to no tensor"),
    "far away": (file_of(entry(shape=[1 << 40], data_offsets=[0, 1 << 42])), "is truncated: its header describes"),
}


@pytest.mark.parametrize("case", BOGUS)
def test_bogus_headers_are_refused_without_believing_them(tmp_path: Path, case: str) -> None:
    data, said = BOGUS[case]
    path = write(tmp_path / "a.safetensors", data)
    tracemalloc.start()
    message = refusal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said in message
    assert peak < 1 << 21


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "a.safetensors"


def opened(path: Path) -> SafetensorsFile | None:
    """The file if it is good: then every tensor lies inside it. Nothing but ModelFileError says that it is not."""
    try:
        file = SafetensorsFile(path)
    except ModelFileError as error:
        assert str(path) in error.message
        return None
    for name, info in file.tensors.items():
        assert 0 <= info.offset <= info.offset + info.nbytes <= file.size
        if info.nbytes:
            assert file.raw(name).nbytes == info.nbytes
    return file


ARRAYS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "v": np.ones(5, np.float32)}


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_files_open_or_are_refused(place: Path, data: st.DataObject) -> None:
    content = bytearray(safetensors_bytes(ARRAYS, "f32"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(0, 8), st.integers(0, len(content))))
        patch = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"9", b"-", b"[", b"}", b'"'])))
        content[at : at + len(patch)] = patch
    size = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    opened(write(place, bytes(content[:size])))


numbers = st.one_of(st.integers(-2, 100), st.integers(), st.floats(), st.booleans(), st.none())
parts = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from(["F32", "BF16", "U8", "F9"]), numbers),
        "shape": st.one_of(st.lists(numbers, max_size=10), numbers),
        "data_offsets": st.one_of(st.lists(numbers, max_size=3), numbers),
        "more": numbers,
    },
)
headers = st.dictionaries(st.sampled_from(["a", "b", "__metadata__", ""]), st.one_of(parts, numbers), max_size=3)


@settings(max_examples=300, deadline=None)
@given(header=headers, data=st.binary(max_size=64))
def test_any_header_opens_or_is_refused_as_the_package_does(place: Path, header: dict[str, Any], data: bytes) -> None:
    """Whatever we open, the package opens, with the same tensors."""
    file = opened(write(place, file_of(header, data)))
    if file is None or "__metadata__" in header:
        return
    with safetensors.safe_open(place, framework="numpy") as theirs:
        assert set(theirs.keys()) == set(file.tensors)
