"""Host memory of sessions: anonymous mappings, made resident (prefaulted) when they are created.

Large mappings use huge pages, are zeroed on all cores, and are recycled within a build.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import numpy as np

from wholestep import platforms
from wholestep.compiler.ir.types import symbols_of
from wholestep.compiler.plan.memory.peak_memory import page_rounded
from wholestep.compiler.plan.model.kernel import Buffer, Plan, Space
from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.runtime.background import Background, run_all
from wholestep.compiler.runtime.threads import default_threads
from wholestep.errors import OutOfMemoryError

# Bytes of a mapping from which on huge pages are requested: updates that pass over many megabytes run 5 to 20 % faster
# with them.  The same for every target: pages belong to the operating system.
LARGE = 4 << 20
LISTED = 4  # largest tensors listed in an error about memory
PIECE = 64 << 20  # bytes that a thread makes resident at a time; a multiple of the huge page size


class Region:
    """A private mapping, zeroed and resident: the first step has no page faults."""

    def __init__(self, size: int) -> None:
        self.size = page_rounded(size)
        if self.size == 0:
            self._bytes = np.empty(0, np.uint8)
        else:
            spares = _SPARES.get() if self.size >= LARGE else None
            zeroing = (spares and spares.take(self.size)) or Zeroing(_map_memory(self.size))
            zeroing.finish()
            self._bytes = np.frombuffer(zeroing.mapped, np.uint8)
            if spares is not None:  # the finalizer runs after the last view is freed: every view keeps the array alive
                weakref.finalize(self._bytes, spares.put, zeroing.mapped).atexit = False
        self.address: int = self._bytes.ctypes.data

    def view(self, offset: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """`count` elements from byte `offset` on; writing to the view writes to the region."""
        end = offset + count * dtype.itemsize
        assert 0 <= offset <= end <= self.size, f"bytes {offset}..{end} are outside a region of {self.size}"
        return self._bytes[offset:end].view(dtype)


class Zeroing:
    """A mapping whose pages are being zeroed, and so made resident, by any number of threads."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self.mapped = mapped
        if len(mapped) >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        pieces = range(0, len(mapped), PIECE)
        self._threads = default_threads() if pieces[1:] else 1
        self._pieces = iter(
            [slice(at, at + PIECE) for at in pieces]
        )  # a list iterator yields each piece to one thread only
        self._background: Background[None] | None = None

    def begin(self) -> None:
        """Start zeroing in the background."""
        self._background = Background(self._work, patient=True)

    def finish(self) -> None:
        """Zero the remaining pages on all cores and return: a virtual machine may take seconds to get a gigabyte."""
        run_all([self._work] * self._threads, self._threads)
        self.wait()

    def stop(self) -> None:
        """Cancel the remaining pieces."""
        for _ in self._pieces:
            pass
        self.wait()

    def wait(self) -> None:
        if self._background is not None:
            self._background.wait()

    def _work(self) -> None:
        all_bytes = np.frombuffer(self.mapped, np.uint8)
        for piece in self._pieces:
            all_bytes[piece].fill(0)


class Spares:
    """A pool of large mappings for a build: freed mappings, and mappings prepared for later.

    Zeroing resident pages is ten times as fast as mapping new ones.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] | None = []
        self._expected: dict[int, Zeroing] = {}

    def put(self, mapped: mmap.mmap) -> None:
        """Return a mapping to the pool, unless the pool is closed."""
        if self._free is not None:
            self._free.append(mapped)

    def expect(self, size: int) -> None:
        """Start preparing a mapping of this size.  If memory does not suffice, the error is raised when it is taken."""
        if size in self._expected or any(len(mapped) == size for mapped in self._free or ()):
            return
        with suppress(OutOfMemoryError):
            self._expected[size] = Zeroing(_map_memory(size))
            self._expected[size].begin()

    def take(self, size: int) -> Zeroing | None:
        """A mapping of exactly this size; None if the pool has no such mapping."""
        if size in self._expected:
            return self._expected.pop(size)
        free_mapping = next((mapped for mapped in self._free or () if len(mapped) == size), None)
        if free_mapping is None:
            return None
        assert self._free is not None
        self._free.remove(free_mapping)
        return Zeroing(free_mapping)

    def close(self) -> None:
        self._free = None
        for zeroing in self._expected.values():
            zeroing.stop()
        self._expected.clear()


def expect_region(size: int) -> None:
    """Announce, early in a build, that a region of this size will be needed."""
    spares, size = _SPARES.get(), page_rounded(size)
    if spares is not None and size >= PIECE:
        spares.expect(size)


_SPARES: ContextVar[Spares | None] = ContextVar("spares", default=None)


@contextmanager
def recycle_pages() -> Iterator[None]:
    """Context of a build: the session reuses mappings that were announced, or that the plan's check made resident."""
    spares = Spares()
    outer = _SPARES.set(spares)
    try:
        yield
    finally:
        _SPARES.reset(outer)
        spares.close()


def _map_memory(size: int) -> mmap.mmap:
    """Map anonymous memory; OutOfMemoryError if it exceeds the machine's: touching it would kill the process."""
    try:
        if size > platforms.physical_bytes():
            raise MemoryError
        return platforms.map_memory(size)
    except (OSError, OverflowError, ValueError, MemoryError):
        raise OutOfMemoryError(f"{size:,} bytes of memory are not available.", size) from None


def free_bytes() -> int:
    """The memory available now, as the system estimates it."""
    return platforms.available_bytes()


@contextmanager
def explain_memory_errors(plan: Plan, threads: int) -> Iterator[None]:
    """Let an OutOfMemoryError for a plan name the largest tensors and a batch size that would fit."""
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
    return "; ".join(f"{_name(plan, b)} {b.user_type}, {b.bytes:,} bytes" for b in largest)


def _name(plan: Plan, buffer: Buffer) -> str:
    if buffer.name:
        return repr(buffer.name)
    origin = plan.kernels[buffer.first].origin if buffer.first < len(plan.kernels) else ()
    return f"the result of {origin[-1]!r}" if origin else "an intermediate"


def _advice(plan: Plan, needed: int, free: int) -> str:
    """Advice on a size that fits, assuming that memory is linear in the capacity except for fixed-size buffers."""
    fixed = sum(b.bytes for b in plan.buffers if not symbols_of(b.type.shape) and b.space is not Space.WORK)
    room = free - fixed
    if len(plan.symbols) != 1 or needed <= fixed or room <= 0:
        return "Use a smaller model, or smaller sizes."
    fits = plan.capacity[0] * room // (needed - fixed)
    name = plan.symbols[0]
    return (
        f"About {name}={fits:,} fits; received {name}={plan.capacity[0]:,}. ws.find_batch_size finds it exactly, "
        "accumulate= splits large batches into micro-batches."
    )
