"""Cost model of the CPU's scheduler: sizes and costs of a typical machine.  None of them changes a result's bits."""

from __future__ import annotations

from dataclasses import dataclass

from wholestep.compiler.target import Target


@dataclass(frozen=True)
class Prices:
    """Seconds on the target machine; they choose among plans and never change a result."""

    threads: int = 2
    flop: float = 1 / 80e9  # seconds per operation inside a contraction
    point: float = 1 / 6e9  # seconds per arithmetic instruction of an elementwise loop
    byte: float = 1 / 30e9  # seconds per byte read or written in the thread's own caches
    crossing_byte: float = 1 / 8e9  # seconds per byte that another thread wrote last
    repeated_byte: float = 1 / 3000e9  # seconds per operand byte that every thread reads: small, since caches hold it
    barrier: float = 2e-6  # seconds per barrier of all threads


@dataclass(frozen=True)
class Settings:
    """Thresholds and block sizes of the scheduler, in bytes unless a field says otherwise."""

    prices: Prices = Prices()
    piece: int = 300  # number of kernels whose splits are searched together: the search is quadratic
    relief: int = 1 << 20  # arena bytes that must become reusable to justify a barrier: less stays in the caches anyway
    delay: int = 1 << 20  # size from which a pass in between would evict a buffer from the caches
    overwrite: bool = True  # may a kernel write its result over an operand that no later kernel reads?
    frugal: bool = False  # run each kernel as late as possible if that keeps fewer bytes alive?
    # From rows of this length on, a product that reads down columns is faster over panels (512 columns: 4.9 -> 3.3 ms).
    long_row: int = 2048
    # With a stride of this many bytes a column maps to a few cache sets, so the product copies its blocks (gemm.c).
    # With more columns at a time it copies less often: 1024 columns 75 -> 105 GFLOP/s per core.
    copied_stride: int = 2048
    copied_step: int = 1024
    copied_for: int = 256  # columns of a block whose left operand is copied
    # Columns of a block whose half-precision left operand is copied in pairs: 185 -> 215 GFLOP/s against 64.
    paired_for: int = 256
    scores: int = 128 << 10  # scores of a block of queries in attention: several blocks fit into a second-level cache
    prefetched: int = 4 << 20  # bytes accessed by a step from which on kernels prefetch their next operands
    most_queries: int = 64  # queries per block; at least 16, so that a product has full tiles


def settings_of(target: Target) -> Settings:
    """The settings for a target."""
    limits = target.limits
    return Settings(
        Prices(threads=limits.threads),
        relief=limits.cache,
        delay=limits.cache,
        scores=limits.cache // 8,
        prefetched=limits.caches,
    )
