"""Data that does not fit the GPU, in pinned double buffers.

The rows of the next steps are gathered in the order of the epoch and copied beside the steps before, by a stream of
their own, into two places in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from wholestep.compiler.backend import Epoch
from wholestep.compiler.backends.cuda.driver.driver import CopyStream, CudaEvent, DeviceMemory, Gpu, PinnedMemory
from wholestep.compiler.backends.cuda.driver.host_copies import HostCopies
from wholestep.compiler.backends.cuda.runtime.program_memory import align_size
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.epoch_permutation import epoch_order

CHUNK = 128 << 20  # bytes of rows that are copied at once, about
PLACES = 2


class _Place:
    """Room for the rows of some steps, on the host and on the GPU."""

    def __init__(self, gpu: Gpu, size: int, more: int) -> None:
        self.pinned, self.memory = PinnedMemory(gpu, size + more), DeviceMemory(gpu, size)
        self.copied, self.used = CudaEvent(gpu), CudaEvent(gpu)
        self.busy = False  # may steps that were launched still read it?


class Streamed:
    """The rows of a run, brought chunk by chunk; `words` 8-byte words go with each, by the stream of the steps."""

    def __init__(
        self, gpu: Gpu, sources: Mapping[str, AnyArray], batch: int, most: int, words: int, host: HostCopies
    ) -> None:
        self._gpu, self._sources, self._copies, self._host = gpu, sources, CopyStream(gpu), host
        update = sum(align_size(batch * array[:1].nbytes) for array in sources.values())
        self.updates = max(1, min(most, CHUNK // max(1, update)))  # of a chunk
        self._offsets, end = {}, 0
        for name, array in sources.items():
            self._offsets[name] = end
            end += align_size(self.updates * batch * array[:1].nbytes)
        self._end, self._words = end, words
        self._places = [_Place(gpu, end, 8 * words) for _ in range(PLACES)]
        self._next = 0
        gpu.wait()  # memory is zeroed by the stream of the steps, which copies do not wait for

    def bring(self, epoch: Epoch, update: int, count: int, own: Callable[[int], tuple[int, int]]) -> Mapping[str, int]:
        """Have the rows of some updates copied, which the steps launched next wait for.

        Of each update those are wanted that are a rank's `own`: the first, and how many.  Returns where each source
        would begin if all of it were there.
        """
        place = self._places[self._next]
        if place.busy:
            place.used.wait()
        first = update * epoch.batch
        if own(epoch.batch) == (0, epoch.batch):
            runs = [(first, min(first + count * epoch.batch, epoch.rows) - first)]
        else:
            mine = [(u * epoch.batch, *own(epoch.rows_of(u))) for u in range(update, update + count)]
            runs = [(start + before, length) for start, before, length in mine if length]
        for start, length in runs:
            self._bring(place, epoch, start - first, np.arange(start, start + length))
        begins = {n: self._offsets[n] - first * source[:1].nbytes for n, source in self._sources.items()}
        found = {name: (place.memory.address + begin) % 2**64 for name, begin in begins.items()}
        self._copies.record(place.copied)
        self._gpu.wait_for(place.copied)
        return found

    def _bring(self, place: _Place, epoch: Epoch, before: int, at: AnyArray) -> None:
        """Rows side by side of an epoch, behind so many of the chunk."""
        rows = at if epoch.order is None else epoch_order(epoch.seed, epoch.order, epoch.rows, at)
        for name, source in self._sources.items():
            offset = self._offsets[name] + before * source[:1].nbytes
            chunk = place.pinned.view(offset, len(rows) * source[:1].size, source.dtype)
            self._host.gather(chunk.reshape(len(rows), *source.shape[1:]), source, rows)
            self._copies.copy_in(place.memory.address + offset, place.pinned.address + offset, chunk.nbytes)

    def write(self, address: int, words: AnyArray) -> None:
        """Write what the steps launched next read beside the rows."""
        assert words.size <= self._words, f"{words.size} of {self._words} words"
        place = self._places[self._next]
        place.pinned.view(self._end, words.size, words.dtype)[:] = words.reshape(-1)
        self._gpu.copy_in(address, place.pinned.address + self._end, words.nbytes)

    def launched(self) -> None:
        """The steps that read the rows stand in the stream: their place is free when they are done."""
        place = self._places[self._next]
        place.used.record()
        place.busy = True
        self._next = (self._next + 1) % PLACES
