"""The CPU's schedule of a kernel: the axis its threads divide, its region, and how one thread tiles its part."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from wholestep.compiler.plan.model.kernel import Kernel, Schedule
from wholestep.records import dataclass


@dataclass(frozen=True)
class Blocks:
    """A product is computed in blocks of `rows` x `columns`; `work` buffers one block if an epilogue follows."""

    tag: ClassVar[str] = "blocks"
    rows: int = 48
    columns: int = 64
    work: int | None = None
    pairs: int | None = None  # workspace that packs the columns of a half-precision right operand into pairs


@dataclass(frozen=True)
class Queries:
    """Attention: `block` queries at a time; `work` holds their scores."""

    tag: ClassVar[str] = "queries"
    block: int
    work: int


@dataclass(frozen=True)
class PaddedImage:
    """An image as a kernel reads or accumulates it: zero-padded in the workspace, or in place."""

    low: tuple[int, ...]  # padding: rows above the image and columns before it
    row: int  # elements from one row to the next
    elements: int  # elements of the padded image, with the slack that full vectors read after it


@dataclass(frozen=True)
class Taps:
    """The kernel taps that contribute to one phase of a gradient along one dimension, in descending order."""

    first: int  # the first pixel of the phase; the other pixels follow at the stride
    pixels: int
    taps: tuple[int, ...]
    start: int  # position in the frame of the first pixel's first tap
    step: int  # positions from one tap to the next


@dataclass(frozen=True)
class Runs:
    """A row of a window as contiguous runs: one run if neighbouring taps are contiguous, else one run per tap."""

    count: int
    step: int
    length: int


@dataclass(frozen=True)
class Tiles:
    """A convolution, a pool or a gradient of one: its complete geometry, which appears as literals in the C source."""

    tag: ClassVar[str] = "tiles"
    rows: int = 0  # rows of Winograd tiles computed at a time (winograd.py); 0: direct convolution
    granule: int = 0  # unit in which axis 0 is divided among threads, if not the default for its extent
    work: tuple[tuple[str, int], ...] = ()  # pieces of a thread's workspace: name, buffer
    frame: PaddedImage | None = None
    down: tuple[Taps, ...] = ()  # phases of a gradient in the image, along its rows
    across: tuple[Taps, ...] = ()  # phases of a gradient in the image, along its columns
    runs: Runs | None = None  # contiguous runs of a window's row, in a weight's gradient
    in_place: bool = False  # weight's gradient: all images are read in place, for a few outputs at a time
    images: int = 0  # images computed together by implicit GEMM (implicit_gemm.py); 0: one after the other


@dataclass(frozen=True)
class CpuSchedule(Schedule):
    """Threads own complete granules of the axis `split`; all threads meet at a barrier between two regions."""

    tag: ClassVar[str] = "cpu"
    heading: ClassVar[str] = f"{'region':>6}  {'split':<7}"
    split: int | None = None  # the axis divided among the threads; None: the first thread runs the kernel alone
    granule: int = 1  # steps of that axis; no thread owns a part of one
    region: int = 0
    inner: Inner | None = None
    prefetch: bool = False  # does the kernel prefetch its next operands in software?

    @property
    def text(self) -> str:
        split = "-" if self.split is None else f"axis {self.split}"
        return f"{self.region:>6}  {split:<7}"


Inner = Blocks | Queries | Tiles


def schedule_of(kernel: Kernel) -> CpuSchedule:
    """The schedule of a kernel, which must be a CPU kernel."""
    assert isinstance(kernel.schedule, CpuSchedule), f"kernel {kernel.id} is scheduled for another backend"
    return kernel.schedule


def blocks_of(kernel: Kernel) -> Blocks:
    inner = schedule_of(kernel).inner
    assert isinstance(inner, Blocks), f"kernel {kernel.id} is not a product"
    return inner


def queries_of(kernel: Kernel) -> Queries:
    inner = schedule_of(kernel).inner
    assert isinstance(inner, Queries), f"kernel {kernel.id} is not an attention call"
    return inner


def tiles_of(kernel: Kernel) -> Tiles:
    inner = schedule_of(kernel).inner
    assert isinstance(inner, Tiles), f"kernel {kernel.id} is not a window kernel"
    return inner


def partition_among_threads(kernel: Kernel, split: int | None, granule: int, region: int) -> Kernel:
    """The kernel with its axis `split` divided among the threads, in a region."""
    return replace(kernel, schedule=replace(schedule_of(kernel), split=split, granule=granule, region=region))


def in_region(kernel: Kernel, region: int) -> Kernel:
    return replace(kernel, schedule=replace(schedule_of(kernel), region=region))
