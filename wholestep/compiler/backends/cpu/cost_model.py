"""What the CPU's scheduler chooses by: sizes and prices of a typical machine.  None of them changes a result."""

from __future__ import annotations

from dataclasses import dataclass

from wholestep.compiler.target import Target


@dataclass(frozen=True)
class Prices:
    """Seconds on the machine a plan is made for; they choose among plans and never change a result."""

    threads: int = 2
    flop: float = 1 / 80e9  # inside a contraction
    point: float = 1 / 6e9  # an arithmetic instruction of a loop
    byte: float = 1 / 30e9  # read or written in the thread's own caches
    crossing_byte: float = 1 / 8e9  # last written by another thread
    repeated_byte: float = 1 / 3000e9  # of an operand that every thread reads: little, since caches hold it
    barrier: float = 2e-6


@dataclass(frozen=True)
class Settings:
    """Bytes unless a field says otherwise."""

    prices: Prices = Prices()
    piece: int = 300  # kernels whose splits are searched together
    relief: int = 1 << 20  # of the arena, for which a barrier more pays: less stays in the caches
    delay: int = 1 << 20  # that a pass in between may drive out of the caches
    overwrite: bool = True  # may a kernel write a result over an operand that nobody reads after it?
    frugal: bool = False  # does a kernel run as late as it can where that keeps fewer bytes?
    # A row from which on a product down the columns is faster over panels (512 columns: 4.9 -> 3.3 ms).
    long_row: int = 2048
    # In steps of so many bytes a column lies in a few sets of the caches, and the product copies its blocks (gemm.c).
    # With more columns at a time it copies less often: 1024 columns 75 -> 105 GFLOP/s a core.
    copied_stride: int = 2048
    copied_step: int = 1024
    copied_for: int = 256  # columns
    # A left operand of half elements is copied in pairs for so many columns: 185 -> 215 GFLOP/s against 64.
    paired_for: int = 256
    scores: int = 128 << 10  # of a block of queries: several such stay in a second-level cache
    prefetched: int = 4 << 20  # that a step passes over: what kernels need next is then fetched while they compute
    most_queries: int = 64  # in a block, and so few at least that a product has whole tiles


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
