"""Noise keys: fixed for ever, since a seed's answer must not change between versions."""

from __future__ import annotations

from tailrace.engine.sample.keys import mix64, sampling_key


def test_the_mix_is_splitmix64() -> None:
    """The first outputs of the reference generator seeded with 0."""
    golden = 0x9E3779B97F4A7C15
    outputs = [mix64(golden * step % 2**64) for step in (1, 2, 3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_keys_differ_by_seed_and_choice() -> None:
    keys = {sampling_key(seed, index) for seed in range(-50, 50) for index in range(16)}
    assert len(keys) == 1600
    assert all(0 <= key < 2**64 for key in keys)


def test_a_key_is_what_it_was() -> None:
    assert sampling_key(42, 0) == 0x57E1FABA65107204
    assert sampling_key(42, 1) == 0xF4ABD143FEB24055
