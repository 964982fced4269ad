"""Staging ring: pinned host memory for the inputs and outputs of launches in flight, one slot per launch.

A launch whose inputs are small is a single driver call: its graph begins with a kernel that fetches the record and the
inputs from the slot (zero-copy), and small outputs are written back to it.  A slot is reused only after its launch is
done.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any
from weakref import ref

import numpy as np

from wholestep.compiler.backends.cuda.driver.driver import CudaEvent, DeviceMemory, Gpu, PinnedMemory
from wholestep.compiler.backends.cuda.driver.host_copies import HostCopies
from wholestep.compiler.backends.cuda.runtime.launch_handles import CudaLaunch
from wholestep.compiler.backends.gpu.launch_order import RECORD, Order, Resource
from wholestep.compiler.backends.gpu.program_memory import HEAD, OwnLayout, record_words, write_record
from wholestep.compiler.backends.gpu.scalar_prologue import PrologueScalars
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray

FETCH_BYTES = 16 * 256  # bytes that one block of `ws_fetch` (gpu/native/gather.h) fetches at a time: 16 per thread
MOST_LANDINGS = 3  # pinned buffers per output size: copies of large outputs that may be in flight
WAITED = 4  # a wait for one slot also waits for the next 1 / WAITED of all slots
GAP = 4096  # inputs at most this many bytes apart are copied together: a separate copy costs more
FEW_AHEAD, AHEAD = 8, 256  # records computed at once (first, at most): the count grows while they stay valid


class Records:
    """Step records; while only the step number changes, the records of several steps are computed at once.

    Sizes are considered equal if they are the same mapping object.
    """

    def __init__(self, plan: Plan, scalars: PrologueScalars, seed: int) -> None:
        self._plan, self._scalars, self._seed = plan, scalars, seed % 2**64
        self._rows: list[AnyArray] = []
        self._block = np.zeros((0, record_words(plan)), np.uint64)  # the same rows as one array
        self._one = np.zeros(record_words(plan), np.uint64)
        self._first, self._version = 0, -1  # step of the first row, and the version of the scalars it was computed from
        self._ahead = FEW_AHEAD
        self._sizes: Mapping[str, int] | None = None

    def row(self, sizes: Mapping[str, int], step: int, epoch: int) -> AnyArray:
        """The words of one step's record."""
        scalars, at = self._scalars, step - self._first
        scalars.set_epoch(epoch)
        if scalars.version != self._version or sizes is not self._sizes:  # may change in every step: compute one record
            self._version, self._rows, self._sizes, self._ahead = scalars.version, [], sizes, FEW_AHEAD
            head = (self._seed, step, 0, 0)
            write_record(self._one, self._plan, sizes, scalars.slots(sizes, step), head)
            return self._one
        if not 0 <= at < len(self._rows):
            self._make(sizes, step)
            at = 0
        return self._rows[at]

    def block(self, sizes: Mapping[str, int], step: int, epoch: int, count: int) -> AnyArray:
        """The words of the records of consecutive steps."""
        scalars = self._scalars
        scalars.set_epoch(epoch)
        if scalars.version != self._version or sizes is not self._sizes:
            self._version, self._rows, self._sizes, self._ahead = scalars.version, [], sizes, FEW_AHEAD
        at = step - self._first
        if not 0 <= at <= len(self._rows) - count:
            self._ahead, at = max(self._ahead, count), 0
            self._make(sizes, step)
        return self._block[at : at + count]

    def _make(self, sizes: Mapping[str, int], step: int) -> None:
        steps, self._ahead = range(step, step + self._ahead), min(AHEAD, 4 * self._ahead)
        rows = np.zeros((len(steps), record_words(self._plan)), np.uint64)
        rows[:, 0], rows[:, 1] = self._seed, steps
        rows[:, 4 : 4 + len(self._plan.symbols)] = [sizes[s] for s in self._plan.symbols]
        rows[:, HEAD : HEAD + self._plan.slots].view(np.float64)[:] = self._scalars.table(sizes, steps)
        self._rows, self._block, self._first = list(rows), rows, step


class Landing:
    """Pinned memory for one output."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self.pinned, self.event = PinnedMemory(gpu, size), CudaEvent(gpu)


class DeferredOutput:
    """An output that the next launch overwrites, being copied to the host."""

    def __init__(self, landing: Landing, free: list[Landing], shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._landing: Landing | None = landing
        self._free, self._shape, self._dtype = free, shape, dtype
        self._array: AnyArray | None = None

    def read(self) -> AnyArray:
        """A copy of the output; waits until it has arrived."""
        return self.array().copy()

    def array(self) -> AnyArray:
        """The output's array; waits for the copy, then returns its pinned memory to the pool."""
        if self._array is None:
            assert self._landing is not None, "the copy is in flight"
            self._landing.event.wait()
            self._array = self._landing.pinned.view(0, prod(self._shape), self._dtype).reshape(self._shape).copy()
            self.__del__()
        return self._array

    def __del__(self) -> None:
        if self._landing is not None:
            self._free.append(self._landing)  # a later copy into it is ordered after this one by the stream
            self._landing = None


class Landings:
    """Pool of pinned buffers of one size; if it is exhausted, the oldest user's output is settled."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self._gpu, self._size, self._free = gpu, size, [Landing(gpu, size)]
        self._left, self._users = MOST_LANDINGS - 1, deque[ref[DeferredOutput]]()

    def keep(self, address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> DeferredOutput:
        """Starts copying an output to the host, in stream order."""
        while not self._free and self._left == 0:
            oldest = self._users.popleft()()
            if oldest is not None:
                oldest.array()
        if not self._free:
            self._left -= 1
            self._free.append(Landing(self._gpu, self._size))
        landing = self._free.pop()
        if self._size:
            self._gpu.copy_out(landing.pinned.address, address, self._size)
        landing.event.record()
        output = DeferredOutput(landing, self._free, shape, dtype)
        if len(self._users) == MOST_LANDINGS:
            self._users.popleft()  # the oldest user no longer holds a buffer
        self._users.append(ref(output))
        return output


class StagingSlot:
    """Pinned memory of one launch: its record, its inputs, its small outputs."""

    def __init__(self, gpu: Gpu, plan: Plan, layout: OwnLayout, pinned: PinnedMemory, start: int) -> None:
        self.start, self.address = start, pinned.address + start
        self.record = pinned.view(start, record_words(plan), np.dtype(np.uint64))
        self.event = CudaEvent(gpu)
        self.ticket: ref[CudaLaunch] | None = None  # handle of the slot's last launch
        self.launch = 0  # number of the slot's last launch
        self._inputs: dict[str, AnyArray] = {}
        for name, id in plan.inputs:
            type = plan.buffers[id].type
            count = evaluate(type.elements, plan.sizes)
            self._inputs[name] = pinned.view(start + layout.offsets[id], count, type.dtype.numpy)
        self._small: list[tuple[str, AnyArray]] = []  # views of small inputs, with the shapes of the last launch
        self._large: list[tuple[str, AnyArray]] = []  # views of inputs that several threads copy
        self._sizes: Mapping[str, int] | None = None  # sizes of the last launch

    def fill(self, inputs: Mapping[str, AnyArray], sizes: Mapping[str, int], copies: HostCopies) -> None:
        """Copies the inputs of a launch; shapes change only if `sizes` does."""
        if sizes is not self._sizes:
            self._shape(inputs, copies)
            self._sizes = sizes
        for name, view in self._small:
            view[...] = inputs[name]
        for name, view in self._large:
            copies.copy(view, inputs[name])

    def _shape(self, inputs: Mapping[str, AnyArray], copies: HostCopies) -> None:
        shaped = [(n, view[: inputs[n].size].reshape(inputs[n].shape)) for n, view in self._inputs.items()]
        self._small = [(name, view) for name, view in shaped if not copies.takes(view.nbytes)]
        self._large = [(name, view) for name, view in shaped if copies.takes(view.nbytes)]


class StagingRing:
    """The staging slots of a program."""

    def __init__(
        self, gpu: Gpu, plan: Plan, layout: OwnLayout, own: DeviceMemory, is_short: bool, copies: HostCopies
    ) -> None:
        self._gpu, self._plan, self._layout, self._own, self._copies = gpu, plan, layout, own, copies
        costs, self._fetch_blocks = costs_of(plan).run, target_of(plan).multiprocessors
        self.fetches = is_short and layout.given_end <= costs.fetched_bytes
        most = costs.fetching_slots if self.fetches else costs.staging_slots
        count = max(2, min(most, costs.staging_bytes // max(1, layout.given_end)))
        size = layout.given_end + layout.small_bytes
        self._pinned = PinnedMemory(gpu, count * size)
        self._turns = [StagingSlot(gpu, plan, layout, self._pinned, i * size) for i in range(count)]
        self._slot, self._launch = 0, 0
        self._launched, self._done = 0, 0  # numbers of the last launch, and of the last launch known to be done
        if any(copies.takes(plan.buffers[id].bytes) for _, id in plan.inputs):
            copies.prepare()
        self._landings: dict[int, Landings] = {}  # bytes of an output -> its pinned buffers
        self._begun_memory = PinnedMemory(gpu, 8)  # number of the last launch that has started, written by its fetch
        self._begun = self._begun_memory.view(0, 1, np.dtype(np.int64))
        read = {load.buffer for k in plan.kernels for load, _ in k.body.reads()} if self.fetches else set()
        # Small outputs that no kernel reads are written directly to the slot.
        self._direct = {b.id for b in layout.small if b.id not in read} if self.fetches else set()
        others = [b for b in layout.small if b.id not in self._direct]
        # Small outputs that kernels read are copied to the slot by separate kernels, if there are few such outputs.
        self._left = others if self.fetches and len(others) <= costs.output_kernels else []
        self._all = [(layout.given_end, layout.small_bytes)] if layout.small else []
        self._copied = self._all if others and not self.fetches else []
        if others and self.fetches and not self._left:
            self._copied = [(layout.offsets[b.id], b.bytes) for b in others]
        self._given: list[tuple[int, int]] = []  # (offset, bytes) of the copies to the GPU, for `_sizes`
        self._sizes: Mapping[str, int] | None = None  # sizes of the last launch

    def next(self) -> tuple[int, StagingSlot]:
        """The next slot and its number; waits until the slot's previous launch is done."""
        number = self._slot = (self._slot + 1) % len(self._turns)
        slot = self._turns[number]
        if slot.ticket is not None:
            self._free(number, slot)
        self._launch += 1
        return number, slot

    def _free(self, number: int, slot: StagingSlot) -> None:
        """Waits until a slot's last launch and some later launches are done: one wait serves the next slots, too."""
        if self.fetches:
            self._done = max(self._done, self._begun.item(0) - 1)
        if slot.launch > self._done:
            count = len(self._turns)
            self.wait_for(self._turns[(number + max(1, count // WAITED) - 1) % count])
            self.wait_for(slot)  # in case the other slot was never launched
        ticket = None if slot.ticket is None else slot.ticket()
        if ticket is not None:
            ticket.resolve()  # its outputs may still be read
        slot.ticket = None

    def wait_for(self, slot: StagingSlot) -> None:
        """Waits until a slot's last launch is done; then all earlier launches are done, too."""
        launch = slot.launch
        if launch > self._done:
            slot.event.wait()
            self._done = max(self._done, launch)

    def wait(self) -> None:
        """Waits until all launches are done."""
        launch = self._launched
        self._gpu.wait()
        self._done = max(self._done, launch)

    def address(self, number: int, id: int) -> int | None:
        """Address in the slot to which a launch writes a small output; None if it writes to device memory."""
        return self._turns[number].address + self._layout.offsets[id] if id in self._direct else None

    def output(self, slot: StagingSlot, id: int, count: int) -> AnyArray:
        """A small output of a finished launch."""
        return self._pinned.view(slot.start + self._layout.offsets[id], count, self._plan.buffers[id].type.dtype.numpy)

    def add_fetch(self, order: Order, number: int, fetch: Any) -> None:
        """Begins a graph with the kernel that fetches a slot's record and inputs."""
        bytes = self._layout.given_end
        addresses = [ctypes.c_void_p(self._own.address), ctypes.c_void_p(self._turns[number].address)]
        grid = (min(self._fetch_blocks, -(-bytes // FETCH_BYTES)), 1)
        writes: set[Resource] = {RECORD, *(id for _, id in self._plan.inputs)}
        arguments = [ctypes.c_longlong(bytes // 16), ctypes.c_void_p(self._begun_memory.address)]
        order.kernel(fetch, grid, 256, [*addresses, *arguments], set(), writes)

    def add_leave(self, order: Order, number: int, leave: Any) -> None:
        """Ends a graph with kernels that copy small outputs to the slot."""
        order.current = ()
        for b in self._left:
            at = self._layout.offsets[b.id]
            addresses = [ctypes.c_void_p(start + at) for start in (self._turns[number].address, self._own.address)]
            grid = (min(self._fetch_blocks, -(-b.bytes // FETCH_BYTES)), 1)
            order.kernel(leave, grid, 256, [*addresses, ctypes.c_longlong(-(-b.bytes // 16))], {b.id}, set())

    def give(self, slot: StagingSlot, row: AnyArray, inputs: Mapping[str, AnyArray], sizes: Mapping[str, int]) -> None:
        """Writes the record and the inputs of a launch: a kernel fetches them, or they are copied."""
        if self.fetches:
            row[2] = self._launch  # stored in `position`, which only epochs use
        slot.record[...] = row
        slot.fill(inputs, sizes, self._copies)
        if not self.fetches:
            if sizes is not self._sizes:
                self._given, self._sizes = self._runs(inputs), sizes
            for at, size in self._given:
                self._gpu.copy_in(self._own.address + at, slot.address + at, size)

    def _runs(self, inputs: Mapping[str, AnyArray]) -> list[tuple[int, int]]:
        """Byte ranges of the record and the inputs; neighbouring ranges are merged."""
        runs = [(0, 8 * record_words(self._plan))]
        for name, id in self._plan.inputs:  # in memory order
            (start, size), at = runs[-1], self._layout.offsets[id]
            if at - (start + size) <= GAP:
                runs[-1] = start, at - start + inputs[name].nbytes
            elif inputs[name].nbytes:
                runs.append((at, inputs[name].nbytes))
        return runs

    def keep(self, address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> DeferredOutput:
        """Starts copying an output to its own host buffer, in stream order."""
        size = prod(shape) * dtype.itemsize
        if size not in self._landings:
            self._landings[size] = Landings(self._gpu, size)
        return self._landings[size].keep(address, shape, dtype)

    def take(self, slot: StagingSlot, everything: bool = False) -> None:
        """Starts copying small outputs that kernels do not write to the slot, and records the slot's event."""
        for at, size in self._all if everything else self._copied:
            self._gpu.copy_out(slot.address + at, self._own.address + at, size)
        slot.event.record()
        slot.launch = self._launched = self._launch  # after the event: waiting for this number waits for the event
