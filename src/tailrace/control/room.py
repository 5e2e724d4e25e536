"""What a backend can start now: sequences, and KV memory for their prompts."""

from __future__ import annotations

from tailrace.frozen import frozen
from tailrace.types import Capabilities, LoadReport


@frozen
class Given:
    """What control has given the backend and does not show in its report yet: sequences, and KV blocks for them."""

    sequences: int
    pledged: int


@frozen
class Room:
    """`blocks` None: nothing but the sequences is counted. An idle backend takes any prompt: one that cannot even run
    there gets its error there, and waiting would not help it."""

    sequences: int
    blocks: int | None
    block_tokens: int
    idle: bool

    def fits(self, sequences: int, prompt_tokens: int) -> bool:
        if sequences > self.sequences:
            return False
        if self.blocks is None or self.idle:
            return True
        return prompt_blocks(prompt_tokens, self.block_tokens) + sequences - 1 <= self.blocks

    @property
    def starts(self) -> int:
        """Sequences that could start now if their prompts were short."""
        bound = self.sequences if self.blocks is None or self.idle else min(self.sequences, self.blocks)
        return max(bound, 0)


def prompt_blocks(prompt_tokens: int, block_tokens: int) -> int:
    return -(-prompt_tokens // block_tokens)


def room(load: LoadReport, caps: Capabilities, given: Given) -> Room:
    """From a backend's report, less what was given to it since. Answers that have ended there hold nothing, also when
    nobody has read them yet."""
    return Room(
        sequences=load.free_slots - given.sequences,
        blocks=None if load.free_blocks is None else load.free_blocks - given.pledged,
        block_tokens=caps.block_tokens,
        idle=given.sequences == 0 and load.running + load.waiting == 0,
    )
