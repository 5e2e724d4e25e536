"""The waiting line against a plain list."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tailrace.control.queue import FifoQueue


@dataclass(frozen=True)
class Entry:
    id: str
    sequences: int
    prompt_tokens: int


programs = st.lists(
    st.tuples(st.sampled_from(["push", "pop", "remove"]), st.integers(0, 5), st.integers(1, 4)), max_size=60
)


@given(programs)
def test_like_a_list(program: list[tuple[str, int, int]]) -> None:
    queue: FifoQueue[Entry] = FifoQueue()
    shadow: list[Entry] = []
    gone: list[Entry] = []
    for serial, (what, number, sequences) in enumerate(program):
        if what == "push":
            entry = Entry(str(serial), sequences, number * 10)
            queue.push(entry)
            shadow.append(entry)
        elif what == "pop":
            expected = shadow[0] if shadow and shadow[0].sequences <= number else None
            assert queue.pop_ready(lambda entry, room=number: entry.sequences <= room) is expected
            gone += shadow[:1] if expected else []
            shadow = shadow[1:] if expected else shadow
        elif shadow:
            entry = shadow.pop(number % len(shadow))
            gone.append(entry)
            assert queue.remove(entry)
        assert list(queue) == shadow
        assert len(queue) == len(shadow)
        assert queue.tokens == sum(entry.prompt_tokens for entry in shadow)
    assert not any(queue.remove(entry) for entry in gone)


def test_a_large_request_at_the_head_is_not_overtaken() -> None:
    queue: FifoQueue[Entry] = FifoQueue()
    large, small = Entry("large", 4, 1), Entry("small", 1, 1)
    queue.push(large)
    queue.push(small)
    assert queue.pop_ready(lambda entry: entry.sequences <= 3) is None
    assert queue.pop_ready(lambda entry: entry.sequences <= 4) is large
    assert queue.pop_ready(lambda entry: entry.sequences <= 1) is small
    assert queue.pop_ready(lambda entry: True) is None
