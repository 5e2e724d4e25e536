"""What a scrape shows of each backend: KV memory, steps, device time, speculation, and its devices.

Read from what backends report of themselves; nothing is kept here. `model` is the name that the backend serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tailrace.backends.base import Backend
from tailrace.figures.buckets import Buckets
from tailrace.frozen import frozen
from tailrace.observe.families import Labels, counter, gauge, histogram
from tailrace.types import Inspection, LoadReport

_MODEL = ("model",)


@frozen
class _Seen:
    model: str
    block_tokens: int
    load: LoadReport
    inside: Inspection


class BackendMetrics(Collector):
    def __init__(self, backends: Callable[[], Iterable[tuple[str, Backend]]]) -> None:
        """`backends`: those that serve now, by model."""
        self._backends = backends

    def collect(self) -> Iterator[Metric]:
        seen = [_Seen(name, each.caps.block_tokens, each.load(), each.inspect()) for name, each in self._backends()]
        yield from _sequences(seen)
        yield from _memory(seen)
        yield from _steps(seen)
        yield from _device_time(seen)
        yield from _guesses(seen)
        yield from _accelerators(seen)


def _each(seen: list[_Seen], value: Callable[[_Seen], float]) -> dict[Labels, float]:
    return {(one.model,): value(one) for one in seen}


def _sequences(seen: list[_Seen]) -> Iterator[Metric]:
    running = _each(seen, lambda one: one.load.running)
    yield gauge("sequences_running", "Sequences in prefill or decode", _MODEL, running)
    waiting = _each(seen, lambda one: one.load.waiting)
    yield gauge("sequences_waiting", "Sequences waiting in the backend, preempted ones too", _MODEL, waiting)


def _memory(seen: list[_Seen]) -> Iterator[Metric]:
    """`cached` can be had when it is needed; the three are all there is."""
    tokens: dict[Labels, float] = {}
    for one in seen:
        inside, size = one.inside, one.block_tokens
        tokens[one.model, "used"] = inside.kv_referenced * size
        tokens[one.model, "cached"] = inside.kv_cached * size
        tokens[one.model, "free"] = inside.kv_free * size
    yield gauge("kv_tokens", "Tokens that KV memory has room for", ("model", "state"), tokens)
    evicted = _each(seen, lambda one: one.inside.kv_evicted * one.block_tokens)
    yield counter("kv_evicted_tokens", "Cached tokens given up for others", _MODEL, evicted)


def _steps(seen: list[_Seen]) -> Iterator[Metric]:
    def tallied(value: Callable[[_Seen], Buckets]) -> dict[Labels, Buckets]:
        return {(one.model,): value(one) for one in seen}

    seconds = tallied(lambda one: one.inside.tally.seconds)
    yield histogram("step_seconds", "Time of the engine's steps", _MODEL, seconds)
    error = tallied(lambda one: one.inside.tally.error)
    yield histogram("step_error_ratio", "By what part of it their predicted time was off", _MODEL, error)
    rows = tallied(lambda one: one.inside.tally.decode_rows)
    yield histogram("step_decode_rows", "Rows of a step that decode, guesses too", _MODEL, rows)
    prefill = tallied(lambda one: one.inside.tally.prefill_tokens)
    yield histogram("step_prefill_tokens", "Prompt tokens of a step", _MODEL, prefill)
    cancel = tallied(lambda one: one.inside.tally.cancel)
    yield histogram("cancel_seconds", "From a client's leaving to its slots and blocks being free", _MODEL, cancel)
    failed = _each(seen, lambda one: one.inside.failed_steps)
    yield counter("failed_steps", "Steps that came to nothing", _MODEL, failed)
    computed = _each(seen, lambda one: one.load.computed_tokens)
    yield counter("computed_tokens", "Tokens that went through the model, again after preemption too", _MODEL, computed)


def _device_time(seen: list[_Seen]) -> Iterator[Metric]:
    busy = _each(seen, lambda one: one.load.busy_seconds)
    yield counter("device_busy_seconds", "Measured time in steps", _MODEL, busy)
    overhead = _each(seen, lambda one: one.load.overhead_seconds)
    yield counter("device_overhead_seconds", "Of it, what no request pays", _MODEL, overhead)
    standard = _each(seen, lambda one: one.inside.standard_seconds)
    yield counter("device_standard_seconds", "The same steps by frozen costs", _MODEL, standard)


def _guesses(seen: list[_Seen]) -> Iterator[Metric]:
    drafted = _each(seen, lambda one: one.load.drafted_tokens)
    yield counter("drafted_tokens", "Tokens guessed and computed ahead", _MODEL, drafted)
    accepted = _each(seen, lambda one: one.load.accepted_tokens)
    yield counter("accepted_tokens", "Drafted tokens that were right", _MODEL, accepted)


def _accelerators(seen: list[_Seen]) -> Iterator[Metric]:
    busy: dict[Labels, float] = {}
    memory: dict[Labels, float] = {}
    for one in seen:
        for device in one.inside.accelerators:
            at = (one.model, device.name)
            busy[at] = device.busy
            memory[*at, "used"] = device.memory_used
            memory[*at, "free"] = device.memory_total - device.memory_used
    yield gauge("accelerator_busy_ratio", "Part of the time in which a device works", ("model", "device"), busy)
    yield gauge("accelerator_memory_bytes", "Memory of a device", ("model", "device", "state"), memory)
