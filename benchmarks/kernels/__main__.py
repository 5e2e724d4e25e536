"""Times single kernels beside what the machine can do at that moment, and beside the same kernel without vectors.

    python -m benchmarks.kernels [--variant avx2] [--threads 1] [--rounds 3] [--only gate_up] [--reference]

The floor of a kernel is the longer of two times: reading its weights or keys once at the team's bandwidth, and its
operations at the cores' peak (int8 products at that of vpmaddwd, bfloat16 at that of FMA). Up to COLD_ROWS rows the
caches hold nothing of the weights when a product begins, as between the layers of a step; above, products bind.
`--reference` also times the portable variant, which is the same arithmetic in plain C++, on one thread.

Shared machines have fast and slow minutes, so rounds are interleaved: every round measures the peaks and each kernel
once, and each column shows its best round. With one thread, times are CPU time, which a busy neighbour disturbs least.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Any

import numpy as np

from tailrace import _native

testing: Any = _native.testing  # type: ignore[attr-defined]
SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "head": (49152, 576)}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
HEAD_ROWS = (1, 2, 4, 8, 32)  # its weights do not fit the caches: the memory-bound case
COLD_BYTES = 96 << 20  # weights larger than any cache we count on
COLD_ROWS = 8
COLD_TRIES = 3
PORTABLE = "portable"
HEADER = f"{'':38}{'us':>10}{'GOPS':>8}{'GB/s':>8}{'of floor':>10}{'x portable':>12}"


@dataclass
class Case:
    """One measured thing: `run` returns seconds for `operations` operations over `moved` bytes of weights or keys;
    `reference` those of one run of the portable variant on one thread. `floats`: its peak is that of FMA."""

    name: str
    operations: float
    moved: float
    floats: bool
    run: Callable[[], float]
    reference: Callable[[], float]
    threads: int = 1
    best: float = float("inf")
    plain: float = float("nan")

    def measure(self) -> None:
        self.best = min(self.best, self.run())

    def floor(self, peaks: Peaks) -> float:
        """Seconds."""
        peak = (peaks.fma if self.floats else peaks.madd) * self.threads
        return max(self.moved / peaks.read, self.operations / peak if peak else 0.0)

    def line(self, peaks: Peaks) -> str:
        rates = f"{self.operations / self.best / 1e9:8.1f}{self.moved / self.best / 1e9:8.1f}"
        part, times = self.floor(peaks) / self.best, self.plain / self.best
        compared = "" if isnan(times) else f"{times:12.1f}"
        return f"{self.name:38}{1e6 * self.best:10.1f}{rates}{100 * part:8.0f} %{compared}"


@dataclass
class Peaks:
    """Best seen: vpmaddwd and FMA operations per second and core, bytes read per second by the team."""

    madd: float = 0
    fma: float = 0
    read: float = 0

    def measure(self, team: _native.Team) -> None:
        self.madd = max(self.madd, testing.madd_peak(0.1))
        self.fma = max(self.fma, testing.fma_peak(0.1))
        self.read = max(self.read, testing.read_bandwidth(team, COLD_BYTES, 3))

    def line(self) -> str:
        return (
            f"a core: {self.madd / 1e9:.0f} GOPS vpmaddwd, {self.fma / 1e9:.0f} GFLOPS FMA; "
            f"the team reads {self.read / 1e9:.1f} GB/s"
        )


@dataclass(frozen=True)
class Matrix:
    """Random weights of one shape in one packed form."""

    fmt: str
    n: int
    packed: Any
    scale: Any
    wide: Any


def random_matrix(variant: str, fmt: str, n: int, k: int) -> Matrix:
    rng = np.random.default_rng(n + k)
    wide = np.arange(0 if fmt == "bf16" else 64, dtype=np.int32)
    scale = None if fmt == "bf16" else np.full(n, 1e-3, np.float32)
    if fmt == "bf16":
        packed = _native.pack_bf16(variant, rng.integers(0x3C00, 0x3F80, (n, k), dtype=np.uint16))
    elif fmt == "nib4":
        a = rng.integers(100, 900, (n, k // 32), dtype=np.int16)
        q = rng.integers(0, 16, (n, k), dtype=np.uint8)
        packed = _native.pack_nib4(variant, q, a, (-8 * a).astype(np.int16), wide)
    else:
        packed = _native.pack_int8(variant, rng.integers(-127, 128, (n, k), dtype=np.int8), wide)
    return Matrix(fmt, n, packed, scale, wide)


def product(variant: str, team: _native.Team, w: Matrix, x: Any, repeats: int) -> float:
    """Seconds of the best."""
    return float(testing.gemm(variant, w.fmt, w.packed, w.n, w.scale, w.wide, x, "", team, repeats)[1])


def cold_product(variant: str, team: _native.Team, w: Matrix, x: Any) -> float:
    """Each behind as much reading as pushes the weights out of the caches."""
    best = float("inf")
    for _ in range(COLD_TRIES):
        testing.read_bandwidth(team, COLD_BYTES, 1)
        best = min(best, product(variant, team, w, x, 1))
    return best


def gemm_case(name: str, variant: str, team: _native.Team, matrices: tuple[Matrix, Matrix], x: Any) -> Case:
    """`matrices`: packed for the variant, and for the portable one."""
    w, plain = matrices
    if len(x) <= COLD_ROWS:
        run = partial(cold_product, variant, team, w, x)
    else:
        run = partial(product, variant, team, w, x, max(2, 256 // len(x)) if w.n < 10000 else 3)
    reference = partial(product, PORTABLE, _native.Team(1), plain, x, 1)
    return Case(name, 2.0 * x.size * w.n, w.packed.nbytes, w.fmt == "bf16", run, reference, team.threads)


def gemm_cases(variant: str, team: _native.Team) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for shape, (n, k) in SHAPES.items():
        for fmt in ("nib4", "int8", "bf16"):
            matrices = random_matrix(variant, fmt, n, k), random_matrix(PORTABLE, fmt, n, k)
            for m in ROWS if shape != "head" else HEAD_ROWS:
                x = rng.normal(size=(m, k)).astype(np.float32)
                yield gemm_case(f"gemm {shape} {fmt} M={m}", variant, team, matrices, x)


def random_cache(rng: np.random.Generator, kv: str, shape: tuple[int, int, int]) -> tuple[Any, Any, Any, int]:
    """Keys, values, steps of an int8 cache, and bytes of all."""
    if kv == "bf16":
        keys, values = rng.integers(0x3C00, 0x3F80, (2, *shape), dtype=np.uint16)
        return keys, values, None, 2 * keys.nbytes
    keys, values = rng.integers(-127, 128, (2, *shape), dtype=np.int8)
    steps = rng.uniform(0.001, 0.02, (2, *shape[:2])).astype(np.float32)
    return keys, values, steps, 2 * keys.nbytes + steps.nbytes


def attention_cases(variant: str) -> Iterator[Case]:
    rng = np.random.default_rng(1)
    heads, kv_heads, head_dim = 9, 3, 64
    for kv in ("bf16", "int8"):
        for m, keys in ((1, 128), (1, 512), (1, 2048), (128, 512), (256, 2048)):
            *cache, moved = random_cache(rng, kv, (keys, kv_heads, head_dim))
            q = rng.normal(size=(m, heads, head_dim)).astype(np.float32) / 8
            table = np.arange(-(-keys // 64), dtype=np.int32)
            seen = sum(range(keys - m + 1, keys + 1))

            def attend(name: str, repeats: int, q: Any = q, c: Any = (*cache, table), at: int = keys - m) -> float:
                return float(testing.attention(name, q, c[0], c[1], c[3], at, 16, repeats, steps=c[2])[1])

            run, reference = partial(attend, variant, 5), partial(attend, PORTABLE, 1)
            operations = 4.0 * seen * heads * head_dim
            yield Case(f"attention {kv} KV rows={m} keys={keys}", operations, moved, True, run, reference)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--variant", default=_native.variants()[0], choices=_native.variants())
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the names of the kernels to time")
    parser.add_argument("--reference", action="store_true", help="the portable variant too, once")
    args = parser.parse_args()
    team, peaks = _native.Team(args.threads), Peaks()
    found = (*gemm_cases(args.variant, team), *attention_cases(args.variant))
    cases = [case for case in found if args.only in case.name]
    for _ in range(args.rounds):
        peaks.measure(team)
        for case in cases:
            case.measure()
    for case in cases if args.reference else ():
        case.plain = case.reference()
    print(f"{args.variant}, {args.threads} threads, best of {args.rounds} rounds; {peaks.line()}")
    phase = testing.phase_seconds(team, 1000) * 1e6
    print(f"an empty phase of the team: {phase:.2f} us")
    print(HEADER)
    for case in cases:
        print(case.line(peaks))


if __name__ == "__main__":
    main()
