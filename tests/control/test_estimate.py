"""What a request is expected to cost."""

from __future__ import annotations

import pytest

from tailrace.control.estimate import kv_blocks


@pytest.mark.parametrize(
    ("prompt", "output", "sequences", "blocks"),
    [(64, 0, 1, 1), (64, 1, 1, 2), (65, 63, 1, 2), (65, 63, 3, 4), (128, 64, 2, 4), (10, 10.9, 4, 4)],
)
def test_choices_share_the_whole_blocks_of_their_prompt(
    prompt: int, output: float, sequences: int, blocks: int
) -> None:
    assert kv_blocks(prompt, output, sequences, 64) == blocks
