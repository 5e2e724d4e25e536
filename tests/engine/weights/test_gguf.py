"""The reader agrees with the `gguf` package on good files and names what is wrong with bad ones."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.engine.models.registry import describe
from tailrace.engine.weights.gguf import GgufFile
from tailrace.errors import ModelFileError
from tests.tiny import tiny_tokenizer, write_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def entry(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    head = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


def header(tensors: list[bytes] = [], entries: list[bytes] = [], version: int = 3) -> bytes:  # noqa: B006
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        GgufFile(path)
    return caught.value.message


def test_metadata_equals_the_reference_reader(tiny: Path) -> None:
    ours = GgufFile(tiny)
    reference = gguf.GGUFReader(tiny)
    names = {name for name in reference.fields if not name.startswith("GGUF.")}
    assert set(ours.metadata) == names
    for name in names:
        assert ours.metadata[name] == reference.fields[name].contents(), name
    tokens, merges = tiny_tokenizer()
    assert ours.metadata["tokenizer.ggml.tokens"] == tokens
    assert ours.metadata["tokenizer.ggml.merges"] == merges


@pytest.mark.parametrize("wtype", ["q4_1", "q4_0", "q8_0", "f16", "bf16", "f32"])
def test_tensors_equal_the_reference_reader(tmp_path: Path, wtype: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", wtype=wtype)
    ours = GgufFile(path)
    for reference in gguf.GGUFReader(path).tensors:
        info = ours.tensors[reference.name]
        assert info.shape == tuple(reversed(reference.shape.tolist()))
        assert info.type.name == reference.tensor_type.name
        assert info.nbytes == reference.n_bytes
        assert ours.raw(reference.name).tobytes() == reference.data.tobytes()


def test_every_known_type_has_the_reference_size() -> None:
    from tailrace.engine.weights.gguf import _TENSOR_TYPES

    for number, known in _TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (known.name, known.block, known.size) == (kind.name, *gguf.GGML_QUANT_SIZES[kind])


def test_every_scalar_type(tmp_path: Path) -> None:
    values = {
        0: ("<B", 200), 1: ("<b", -3), 2: ("<H", 60000), 3: ("<h", -300), 4: ("<I", 1 << 31), 5: ("<i", -70000),
        6: ("<f", 1.5), 7: ("<?", True), 10: ("<Q", 1 << 40), 11: ("<q", -(1 << 40)), 12: ("<d", 0.1),
    }  # fmt: skip
    entries = [entry(f"key{kind}", kind, struct.pack(code, value)) for kind, (code, value) in values.items()]
    pairs = struct.pack("<IQ", 5, 2) + struct.pack("<ii", -1, 7)
    texts = struct.pack("<IQ", 8, 2) + struct.pack("<Q", 0) + struct.pack("<Q", 4) + "né".encode() + b"\xff"
    entries += [entry("numbers", 9, pairs), entry("texts", 9, texts)]
    file = GgufFile(write(tmp_path / "a.gguf", header([], entries, version=2)))
    assert file.version == 2
    for kind, (_, value) in values.items():
        assert file.metadata[f"key{kind}"] == value
    assert file.metadata["numbers"] == [-1, 7]
    assert file.metadata["texts"] == ["", "né\ufffd"]


def test_views_are_read_only_and_outlive_the_file(tiny: Path) -> None:
    raw = GgufFile(tiny).raw("output_norm.weight")
    assert raw.shape == (1, 256)
    with pytest.raises(ValueError, match="read-only"):
        raw[0, 0] = 1


def test_missing_empty_and_foreign_files(tmp_path: Path) -> None:
    assert "There is no model file at" in refusal(tmp_path / "nothing.gguf")
    assert "it is empty" in refusal(write(tmp_path / "empty.gguf", b""))
    assert "starts with b'PK\\x03\\x04' instead of b'GGUF'" in refusal(write(tmp_path / "zip", b"PK\x03\x04rest"))
    assert "cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("version", "said"),
    [(1, "GGUF version 1;"), (4, "GGUF version 4;"), (3 << 24, "big-endian GGUF version 3;")],
)
def test_other_versions(tmp_path: Path, version: int, said: str) -> None:
    message = refusal(write(tmp_path / "a.gguf", header(version=version)))
    assert said in message and "versions 2 and 3 can be read" in message


def test_a_truncated_file_names_both_sizes(tmp_path: Path, tiny: Path) -> None:
    data = tiny.read_bytes()
    message = refusal(write(tmp_path / "a.gguf", data[: len(data) - 5000]))
    last = max(info.offset + info.nbytes for info in GgufFile(tiny).tensors.values())
    assert f"describes {last} bytes, the file has {len(data) - 5000}" in message


def test_every_cut_of_the_header_is_refused(tmp_path: Path, tiny: Path) -> None:
    data = tiny.read_bytes()
    start = min(info.offset for info in GgufFile(tiny).tensors.values())
    for size in range(4, start, 37):
        assert f"the file has {size} bytes" in refusal(write(tmp_path / "a.gguf", data[:size]))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "claims 1152921504606846976 metadata entries"),
        (header([], [struct.pack("<Q", 1 << 62)]), "4611686018427387904 bytes are needed"),
        (header([], [entry("a", 8, struct.pack("<Q", 1 << 50))]), "metadata 'a': 1125899906842624 bytes are needed"),
        (header([], [entry("a", 9, struct.pack("<IQ", 4, 1 << 50))]), "an array of 1125899906842624 items"),
        (header([], [entry("a", 9, struct.pack("<IQ", 8, 1 << 22))]), "33554432 bytes are needed"),
        (header([], [entry("a", 9, struct.pack("<IQQ", 8, 1, 1 << 40))]), "string 1 of 1 reaches beyond the end"),
        (header([], [entry("a", 9, struct.pack("<IQQQ", 8, 2, 1 << 63, 0))]), "string 1 of 2 reaches beyond the end"),
        (header([], [entry("a", 9, struct.pack("<IQ", 9, 1))]), "array of arrays"),
        (header([], [entry("a", 77, b"")]), "unknown metadata value type 77"),
        (header([], [entry("a", 0, b"\1"), entry("a", 0, b"\1")]), "key occurs twice"),
        (header([], [entry("general.alignment", 4, struct.pack("<I", 3))]), "general.alignment is 3"),
        (header([], [struct.pack("<Q", 1) + b"\xff" + struct.pack("<IB", 0, 1)]), "a name is not UTF-8"),
        (header([tensor("w", (32,), 99, 0)]), "tensor 'w' has the unknown type number 99; known are BF16, F16"),
        (header([tensor("w", (32,), 0, 7)]), "offset 7 is not a multiple of the alignment 32"),
        (header([tensor("w", (33,), 3, 0)]), "shape (33,) does not fit type Q4_1 (blocks of 32)"),
        (header([tensor("w", (32, 0), 3, 0)]), "shape (0, 32) does not fit"),
        (header([tensor("w", (2,) * 5, 0, 0)]), "it has 5 dimensions"),
        (header([tensor("w", (2,), 0, 0)] * 2), "tensor 'w' occurs twice"),
        (header([tensor("w", (1 << 40, 1 << 40), 0, 0)]), "is truncated: its header describes"),
    ],
)  # fmt: skip
def test_bogus_headers_are_refused_without_believing_them(tmp_path: Path, data: bytes, said: str) -> None:
    path = write(tmp_path / "a.gguf", data)
    tracemalloc.start()
    message = refusal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said in message
    assert peak < 1 << 20


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_headers_load_or_are_refused(tiny: Path, data: st.DataObject) -> None:
    """Any change of any bytes gives a model or a ModelFileError, never another exception."""
    content = bytearray(tiny.read_bytes())
    # Mutations land anywhere in the header; its small fields at both ends matter most.
    start = min(info.offset for info in GgufFile(tiny).tensors.values())
    places = st.one_of(st.integers(0, 1200), st.integers(start - 1500, start), st.integers(0, start))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(places)
        patch = data.draw(st.binary(min_size=1, max_size=8))
        content[at : at + len(patch)] = patch
    size = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = write(tiny.with_name("mutated.gguf"), bytes(content[:size]))
    try:
        file = GgufFile(path)
        spec = describe(file)
    except ModelFileError as error:
        assert str(path) in error.message
    else:
        shapes = spec.tensor_shapes()
        assert {name: file.tensors[name].shape for name in shapes} == shapes
        assert all(file.raw(name).nbytes == file.tensors[name].nbytes for name in shapes)


def test_numbers_come_as_plain_python(tiny: Path) -> None:
    types = GgufFile(tiny).metadata["tokenizer.ggml.token_type"]
    assert types[:4] == [3, 3, 3, 1]
    assert all(type(value) is int for value in types)
    assert not isinstance(types, np.ndarray)
