"""Memory that a session owns: anonymous mappings of whole pages, touched when they are made."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from wholestep.compiler.ir.types import symbols_of
from wholestep.compiler.plan.memory.peak_memory import page_rounded
from wholestep.compiler.plan.model.kernel import Buffer, Plan, Space
from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.runtime.background import Background, run_all
from wholestep.compiler.runtime.threads import default_threads
from wholestep.errors import OutOfMemoryError

# From here on huge pages are asked for: updates that pass over many megabytes run 5 to 20 % faster with them.  Bytes,
# whatever the target: the pages are the operating system's.
LARGE = 4 << 20
LISTED = 4  # tensors in an error about memory
PIECE = 64 << 20  # bytes that a thread makes resident at a time; whole huge pages


class Region:
    """A private mapping of whole pages, all zero and all resident: the first step meets no page fault."""

    def __init__(self, size: int) -> None:
        self.size = page_rounded(size)
        if self.size == 0:
            self._bytes = np.empty(0, np.uint8)
        else:
            spares = _SPARES.get() if self.size >= LARGE else None
            zeroing = (spares and spares.take(self.size)) or Zeroing(_map_memory(self.size))
            zeroing.finish()
            self._bytes = np.frombuffer(zeroing.mapped, np.uint8)
            if spares is not None:  # every view keeps the array alive
                weakref.finalize(self._bytes, spares.put, zeroing.mapped).atexit = False
        self.address: int = self._bytes.ctypes.data

    def view(self, offset: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """`count` elements from byte `offset` on; writing to the view writes to the region."""
        end = offset + count * dtype.itemsize
        assert 0 <= offset <= end <= self.size, f"bytes {offset}..{end} are outside a region of {self.size}"
        return self._bytes[offset:end].view(dtype)


class Zeroing:
    """A mapping whose pages are made resident, all zero: by whoever asks, on any number of threads."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self.mapped = mapped
        if len(mapped) >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        pieces = range(0, len(mapped), PIECE)
        self._threads = default_threads() if pieces[1:] else 1
        self._pieces = iter([slice(at, at + PIECE) for at in pieces])  # gives each to one thread
        self._begun: Background[None] | None = None

    def begin(self) -> None:
        """On a thread of its own, beside what the caller does."""
        self._begun = Background(self._work, patient=True)

    def finish(self) -> None:
        """Return when all pages are there.  On all cores: a virtual machine may take seconds to get a gigabyte."""
        run_all([self._work] * self._threads, self._threads)
        self.wait()

    def stop(self) -> None:
        """The rest is not wanted."""
        for _ in self._pieces:
            pass
        self.wait()

    def wait(self) -> None:
        if self._begun is not None:
            self._begun.wait()

    def _work(self) -> None:
        every = np.frombuffer(self.mapped, np.uint8)
        for piece in self._pieces:
            every[piece].fill(0)


class Spares:
    """Large mappings for a build: those that nobody uses any more, and those that will be wanted.

    Where pages are resident, zeroing them is ten times as fast.
    """

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] | None = []
        self._coming: dict[int, Zeroing] = {}

    def put(self, mapped: mmap.mmap) -> None:
        """Keep a mapping, while any are kept."""
        if self._kept is not None:
            self._kept.append(mapped)

    def expect(self, size: int) -> None:
        """Begin with a mapping that will be wanted.  What cannot be had is refused when it is asked for."""
        if size in self._coming or any(len(mapped) == size for mapped in self._kept or ()):
            return
        with suppress(OutOfMemoryError):
            self._coming[size] = Zeroing(_map_memory(size))
            self._coming[size].begin()

    def take(self, size: int) -> Zeroing | None:
        """One of exactly this size."""
        if size in self._coming:
            return self._coming.pop(size)
        found = next((mapped for mapped in self._kept or () if len(mapped) == size), None)
        if found is None:
            return None
        assert self._kept is not None
        self._kept.remove(found)
        return Zeroing(found)

    def close(self) -> None:
        self._kept = None
        for coming in self._coming.values():
            coming.stop()
        self._coming.clear()


def expect_region(size: int) -> None:
    """Inside a build, before it is known what else it needs: a region of this size will be made."""
    spares, size = _SPARES.get(), page_rounded(size)
    if spares is not None and size >= PIECE:
        spares.expect(size)


_SPARES: ContextVar[Spares | None] = ContextVar("spares", default=None)


@contextmanager
def recycle_pages() -> Iterator[None]:
    """Around a build: what is expected, and what its check has made resident, serves the session that wants as much."""
    spares = Spares()
    outer = _SPARES.set(spares)
    try:
        yield
    finally:
        _SPARES.reset(outer)
        spares.close()


def _map_memory(size: int) -> mmap.mmap:
    """Anonymous memory.  What the machine does not have is refused here: touching it would end the process."""
    try:
        if size > _machine_bytes():
            raise MemoryError
        # Private, so that a forked child does not write into its parent's parameters.
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError, MemoryError):
        raise OutOfMemoryError(f"{size:,} bytes of memory cannot be had.", size) from None


def _machine_bytes() -> int:
    """All memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


def free_bytes() -> int:
    """Memory that can be had now, as the system estimates it."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, LookupError, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE


@contextmanager
def explain_memory_errors(plan: Plan, threads: int) -> Iterator[None]:
    """Where memory for a plan cannot be had, the error names what takes it, and a size that would fit."""
    try:
        yield
    except OutOfMemoryError as error:
        needed, where = footprint(plan, threads).peak_bytes, f" of {error.where}" if error.where else ""
        free = free_bytes() if error.free is None else error.free
        raise OutOfMemoryError(
            f"a step needs {needed:,} bytes of memory, and {free:,}{where} are free. Its largest tensors: "
            f"{largest_tensors(plan)}.",
            error.bytes,
            _advice(plan, needed, free),
        ) from None


def largest_tensors(plan: Plan) -> str:
    """The tensors that take most of a plan's memory, by name, type and bytes."""
    largest = sorted(plan.buffers, key=lambda b: -b.bytes)[:LISTED]
    return "; ".join(f"{_name(plan, b)} {b.shown}, {b.bytes:,} bytes" for b in largest)


def _name(plan: Plan, buffer: Buffer) -> str:
    if buffer.name:
        return repr(buffer.name)
    origin = plan.kernels[buffer.first].origin if buffer.first < len(plan.kernels) else ()
    return f"what {origin[-1]!r} gives" if origin else "an intermediate"


def _advice(plan: Plan, needed: int, free: int) -> str:
    """Memory grows with a symbol about as the capacity does; what has no symbol stays."""
    fixed = sum(b.bytes for b in plan.buffers if not symbols_of(b.type.shape) and b.space is not Space.WORK)
    room = free - fixed
    if len(plan.symbols) != 1 or needed <= fixed or room <= 0:
        return "Use a smaller model, or smaller sizes."
    fits = plan.capacity[0] * room // (needed - fixed)
    name = plan.symbols[0]
    return (
        f"About {name}={fits:,} fits; received {name}={plan.capacity[0]:,}. ws.find_batch_size says it exactly, "
        "accumulate= takes large batches in parts."
    )
