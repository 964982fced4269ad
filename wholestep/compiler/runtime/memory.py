"""Memory that a session owns: anonymous mappings of whole pages, touched when they are made."""

from __future__ import annotations

import mmap
from functools import partial
from typing import Any

import numpy as np

from wholestep.compiler.plan.footprint import Segments, page_rounded
from wholestep.compiler.runtime.threads import default_threads
from wholestep.compiler.runtime.together import run_all

# From here on huge pages are asked for: updates that pass over many megabytes run 5 to 20 % faster with them.
LARGE = 4 << 20
PIECE = 64 << 20  # bytes that a thread makes resident at a time; whole huge pages


class Region:
    """A private mapping of whole pages, all zero and all resident: the first step meets no page fault."""

    def __init__(self, size: int) -> None:
        self.size = page_rounded(size)
        if self.size == 0:
            self._bytes = np.empty(0, np.uint8)
        else:
            # Private, so that a forked child does not write into its parent's parameters.
            mapped = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if self.size >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
                mapped.madvise(mmap.MADV_HUGEPAGE)
            self._bytes = np.frombuffer(mapped, np.uint8)
            self._touch()
        self.address: int = self._bytes.ctypes.data

    def _touch(self) -> None:
        """Make every page resident, on all cores: a virtual machine may take seconds to get a gigabyte."""
        pieces = range(0, self.size, PIECE)
        run_all(
            [partial(self._bytes[at : at + PIECE].fill, 0) for at in pieces], default_threads() if pieces[1:] else 1
        )

    def view(self, offset: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """`count` elements from byte `offset` on; writing to the view writes to the region."""
        end = offset + count * dtype.itemsize
        assert 0 <= offset <= end <= self.size, f"bytes {offset}..{end} are outside a region of {self.size}"
        return self._bytes[offset:end].view(dtype)


class Scratch:
    """The arena and the threads' workspaces: shared by the entry points of a session, as large as the largest needs."""

    def __init__(self) -> None:
        self.segments = Segments()
        self.region = Region(0)

    def reserve(self, arena: int, work: int, threads: int) -> None:
        """Make room.  Addresses may change: programs read them again afterwards."""
        wanted = self.segments.grown(arena, work, threads)
        if wanted != self.segments:
            self.segments, self.region = wanted, Region(wanted.total)

    @property
    def arena(self) -> int:
        """The address of the arena."""
        return self.region.address

    @property
    def work(self) -> int:
        """The address of the workspaces."""
        return self.region.address + self.segments.arena
