"""Streamed data sets that do not fit the GPU: double buffering through pinned memory.

The rows of the next steps are gathered in the epoch's order and copied on a separate stream while earlier steps run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from wholestep.compiler.backend import Epoch
from wholestep.compiler.backends.cuda.driver.driver import CopyStream, CudaEvent, DeviceMemory, Gpu, PinnedMemory
from wholestep.compiler.backends.cuda.driver.host_copies import HostCopies
from wholestep.compiler.backends.gpu.program_memory import align_size
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.epoch_permutation import epoch_order

PLACES = 2  # buffers in rotation


class _Place:
    """Buffers for the rows of some steps, on the host and on the GPU."""

    def __init__(self, gpu: Gpu, size: int, more: int) -> None:
        self.pinned, self.memory = PinnedMemory(gpu, size + more), DeviceMemory(gpu, size)
        self.copied, self.used = CudaEvent(gpu), CudaEvent(gpu)
        self.busy = False  # may launched steps still read these buffers?


class StreamedData:
    """The rows of a run, copied chunk by chunk; each chunk is followed by up to `words` 8-byte words for its steps.

    A chunk has about `chunk` bytes of rows, and at most `most` updates.
    """

    def __init__(
        self,
        gpu: Gpu,
        sources: Mapping[str, AnyArray],
        batch: int,
        most: int,
        words: int,
        host: HostCopies,
        chunk: int,
    ) -> None:
        self._gpu, self._sources, self._copies, self._host = gpu, sources, CopyStream(gpu), host
        update = sum(align_size(batch * array[:1].nbytes) for array in sources.values())
        self.updates = max(1, min(most, chunk // max(1, update)))  # updates per chunk
        self._offsets, end = {}, 0
        for name, array in sources.items():
            self._offsets[name] = end
            end += align_size(self.updates * batch * array[:1].nbytes)
        self._end, self._words = end, words
        self._places = [_Place(gpu, end, 8 * words) for _ in range(PLACES)]
        self._next = 0
        gpu.wait()  # memory is zeroed on the main stream, with which the copy stream is not ordered

    def load(self, epoch: Epoch, update: int, count: int, own: Callable[[int], tuple[int, int]]) -> Mapping[str, int]:
        """Starts copying the rows of some updates; steps launched later wait for them.

        Args:
            own: batch size -> a rank's first row in the batch, and its number of rows.

        Returns:
            For each source the address at which it would begin if all of its rows were on the GPU.
        """
        place = self._places[self._next]
        if place.busy:
            place.used.wait()
        first = update * epoch.batch
        if own(epoch.batch) == (0, epoch.batch):
            runs = [(first, min(first + count * epoch.batch, epoch.rows) - first)]
        else:
            own_rows = [(u * epoch.batch, *own(epoch.rows_of(u))) for u in range(update, update + count)]
            runs = [(start + before, length) for start, before, length in own_rows if length]
        for start, length in runs:
            self._copy_chunk(place, epoch, start - first, np.arange(start, start + length))
        begins = {n: self._offsets[n] - first * source[:1].nbytes for n, source in self._sources.items()}
        addresses = {name: (place.memory.address + begin) % 2**64 for name, begin in begins.items()}
        self._copies.record(place.copied)
        self._gpu.wait_for(place.copied)
        return addresses

    def _copy_chunk(self, place: _Place, epoch: Epoch, before: int, at: AnyArray) -> None:
        """Copies consecutive rows of an epoch, `before` rows after the start of the chunk."""
        rows = at if epoch.order is None else epoch_order(epoch.seed, epoch.order, epoch.rows, at)
        for name, source in self._sources.items():
            offset = self._offsets[name] + before * source[:1].nbytes
            chunk = place.pinned.view(offset, len(rows) * source[:1].size, source.dtype)
            self._host.gather(chunk.reshape(len(rows), *source.shape[1:]), source, rows)
            self._copies.copy_in(place.memory.address + offset, place.pinned.address + offset, chunk.nbytes)

    def write(self, address: int, words: AnyArray) -> None:
        """Copies additional words that the next launched steps read."""
        assert words.size <= self._words, f"{words.size} of {self._words} words"
        place = self._places[self._next]
        place.pinned.view(self._end, words.size, words.dtype)[:] = words.reshape(-1)
        self._gpu.copy_in(address, place.pinned.address + self._end, words.nbytes)

    def mark_launched(self) -> None:
        """Marks the buffer as in use until the launched steps are done, and rotates."""
        place = self._places[self._next]
        place.used.record()
        place.busy = True
        self._next = (self._next + 1) % PLACES
