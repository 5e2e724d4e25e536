"""The packed cache gives back what was stored, or nothing: never something else."""

from __future__ import annotations

import multiprocessing
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.engine.weights.packed_cache import CacheKey, Packed, PackedCache

KEY = CacheKey(file_sha256="ab" * 32, weights="int8", variant="portable", recipe="cd" * 32)


def sample(seed: int = 0) -> Packed:
    rng = np.random.default_rng(seed)
    arrays = {
        "head.packed": rng.integers(0, 256, 1000, np.uint8),
        "head.scale": rng.standard_normal(33).astype(np.float32),
        "head.wide": np.empty(0, np.int32),
        "embedding": rng.integers(0, 1 << 16, (7, 5), np.uint16),
    }
    return Packed(arrays, {"formats": {"head": "int8"}})


def same(found: Packed | None, stored: Packed) -> bool:
    assert found is not None
    for name, array in stored.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    return found.facts == stored.facts and list(found.arrays) == list(stored.arrays)


def test_round_trip(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path / "new" / "folder")
    assert cache.load(KEY) is None
    cache.store(KEY, sample())
    found = cache.load(KEY)
    assert same(found, sample())
    assert found is not None
    for name, array in found.arrays.items():
        assert array.ctypes.data % 64 == 0 or not array.size, name
        assert not array.flags.writeable
    assert [path.name for path in cache.folder.iterdir()] == [KEY.file_name]


@pytest.mark.parametrize("field", ["file_sha256", "weights", "variant", "recipe"])
def test_every_part_of_the_key_counts(tmp_path: Path, field: str) -> None:
    cache = PackedCache(tmp_path)
    cache.store(KEY, sample())
    values = {"file_sha256": KEY.file_sha256[:16] + "0" * 48, "weights": "bf16", "variant": "amx", "recipe": "ef" * 32}
    other = CacheKey(**{name: values[name] if name == field else getattr(KEY, name) for name in values})
    assert cache.load(other) is None  # the shortened digest in the name is not what is compared
    assert same(cache.load(KEY), sample())


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[PackedCache, bytes]:
    cache = PackedCache(tmp_path_factory.mktemp("cache"))
    cache.store(KEY, sample())
    return cache, (cache.folder / KEY.file_name).read_bytes()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_noticed(stored: tuple[PackedCache, bytes], data: st.DataObject) -> None:
    """A flipped byte, a cut, a tail: what still loads (padding was hit) equals what was stored."""
    cache, content = stored
    damaged = bytearray(content)
    kind = data.draw(st.sampled_from(["flip", "cut", "append"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        damaged[at] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del damaged[at:]
    else:
        damaged += data.draw(st.binary(min_size=1, max_size=40))
    (cache.folder / KEY.file_name).write_bytes(damaged)
    found = cache.load(KEY)
    if found is None:
        return
    assert kind == "flip" and content[at] == 0
    assert same(found, sample())


def test_damage_is_logged_and_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = PackedCache(tmp_path)
    cache.store(KEY, sample())
    path = tmp_path / KEY.file_name
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert cache.load(KEY) is None
    assert re.search(r"cannot be used \(section 'head.packed' has a wrong checksum\); packing again", caplog.text)
    cache.store(KEY, sample())
    assert same(cache.load(KEY), sample())


def test_an_unwritable_folder_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    PackedCache(tmp_path / "file" / "cache").store(KEY, sample())
    assert "were not saved" in caplog.text


def test_caches_of_older_programs_are_pruned_least_recently_used_first(tmp_path: Path) -> None:
    cache = PackedCache(tmp_path)
    keys = [CacheKey(KEY.file_sha256, KEY.weights, KEY.variant, f"{version:064x}"[::-1]) for version in range(4)]
    stranger = CacheKey("ef" * 32, KEY.weights, KEY.variant, KEY.recipe)
    for age, key in enumerate([stranger, *keys[:3]]):
        cache.store(key, sample())
        os.utime(tmp_path / key.file_name, ns=(age, age))
    cache.store(keys[3], sample())
    assert [key for key in keys if cache.load(key) is not None] == keys[1:]
    assert cache.load(stranger) is not None


def test_leftovers_of_a_crashed_writer_are_swept(tmp_path: Path) -> None:
    (tmp_path / "x.pack.0123.partial").write_bytes(b"half")
    PackedCache(tmp_path).store(KEY, sample())
    assert [path.name for path in tmp_path.iterdir()] == [KEY.file_name]


def store_many(folder: str, start: multiprocessing.synchronize.Barrier) -> None:
    cache = PackedCache(Path(folder))
    start.wait()
    for _ in range(20):
        cache.store(KEY, sample())
        assert same(cache.load(KEY), sample())


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    processes = [context.Process(target=store_many, args=(str(tmp_path), start)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == [KEY.file_name]
