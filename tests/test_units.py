"""Numbers as people read them."""

from __future__ import annotations

import pytest

from tailrace.units import LENGTH_BUCKETS, human_bytes, length_bucket


@pytest.mark.parametrize(
    ("tokens", "name"), [(0, "<256"), (255, "<256"), (256, "<1k"), (4095, "<4k"), (4096, "<16k"), (65_536, ">=64k")]
)
def test_length_buckets(tokens: int, name: str) -> None:
    assert length_bucket(tokens) == name
    assert name in LENGTH_BUCKETS


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")])
def test_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text
