"""How the CPU runs a kernel: which axis its threads share, in which region, and how one thread walks its part."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from wholestep.compiler.backends.cpu.convolution.padding import Runs, Taps
from wholestep.compiler.plan.model.kernel import Kernel, Schedule
from wholestep.records import dataclass


@dataclass(frozen=True)
class Blocks:
    """A product is computed in blocks of `rows` x `columns`; `work` holds one where an epilogue follows."""

    tag: ClassVar[str] = "blocks"
    rows: int = 48
    columns: int = 64
    work: int | None = None
    pairs: int | None = None  # workspace for the columns of a right operand of half elements that is not in pairs


@dataclass(frozen=True)
class Queries:
    """Attention: so many queries at a time; `work` holds their scores."""

    tag: ClassVar[str] = "queries"
    block: int
    work: int


@dataclass(frozen=True)
class PaddedImage:
    """An image as a kernel reads or adds it up: zeros around it in the workspace, or where it lies."""

    low: tuple[int, ...]  # rows above it and columns before it
    row: int  # elements from one row to the next
    elements: int  # of all of it, and what whole vectors reach behind it


@dataclass(frozen=True)
class Tiles:
    """A convolution, a pool or an adjoint: its whole geometry, which C has as literals."""

    tag: ClassVar[str] = "tiles"
    rows: int = 0  # of tiles computed at a time, where fewer products do (winograd.py); 0: pixel by pixel
    granule: int = 0  # of axis 0, where it is not the one of its extent
    work: tuple[tuple[str, int], ...] = ()  # pieces of a thread's workspace, by name
    frame: PaddedImage | None = None
    down: tuple[Taps, ...] = ()  # the phases of an adjoint in the image, along its rows
    across: tuple[Taps, ...] = ()  # and along its columns
    runs: Runs | None = None  # a row of a window, in a gradient of a weight
    in_place: bool = False  # in a gradient of a weight: all images are read where they lie, for some outputs at a time
    images: int = 0  # computed together, as products (products.py); 0: one after the other


@dataclass(frozen=True)
class CpuSchedule(Schedule):
    """Threads own whole granules of the axis `split`; between two regions all threads meet at a barrier."""

    tag: ClassVar[str] = "cpu"
    heading: ClassVar[str] = f"{'region':>6}  {'split':<7}"
    split: int | None = None  # the axis partitioned among the threads; None: one thread
    granule: int = 1
    region: int = 0
    inner: Inner | None = None
    prefetch: bool = False  # is what it touches next fetched while it computes?

    @property
    def text(self) -> str:
        split = "-" if self.split is None else f"axis {self.split}"
        return f"{self.region:>6}  {split:<7}"


Inner = Blocks | Queries | Tiles


def schedule_of(kernel: Kernel) -> CpuSchedule:
    """The schedule of a kernel that the CPU has scheduled."""
    assert isinstance(kernel.schedule, CpuSchedule), f"kernel {kernel.id} is scheduled for another backend"
    return kernel.schedule


def blocks_of(kernel: Kernel) -> Blocks:
    inner = schedule_of(kernel).inner
    assert isinstance(inner, Blocks), f"kernel {kernel.id} is no product"
    return inner


def queries_of(kernel: Kernel) -> Queries:
    inner = schedule_of(kernel).inner
    assert isinstance(inner, Queries), f"kernel {kernel.id} is no attention"
    return inner


def tiles_of(kernel: Kernel) -> Tiles:
    inner = schedule_of(kernel).inner
    assert isinstance(inner, Tiles), f"kernel {kernel.id} is no window"
    return inner


def partition_among_threads(kernel: Kernel, split: int | None, granule: int, region: int) -> Kernel:
    """The kernel with its axis `split` partitioned among the threads, in a region."""
    return replace(kernel, schedule=replace(schedule_of(kernel), split=split, granule=granule, region=region))


def in_region(kernel: Kernel, region: int) -> Kernel:
    return replace(kernel, schedule=replace(schedule_of(kernel), region=region))
