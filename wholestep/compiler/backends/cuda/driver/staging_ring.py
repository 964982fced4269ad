"""What a launch is given and what it brings back: pinned memory of the host, of which there are several turns.

A launch whose inputs are not large is one call of the driver: the graph begins with a kernel that fetches the record
and the inputs of its turn from pinned memory, and small outputs are written there.
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
from wholestep.compiler.backends.cuda.runtime.launch_handles import CudaTicket
from wholestep.compiler.backends.cuda.runtime.launch_list import RECORD, Order, Resource, write_record
from wholestep.compiler.backends.cuda.runtime.program_memory import HEAD, OwnLayout, record_words
from wholestep.compiler.backends.cuda.runtime.scalar_prologue import PrologueScalars
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray

TURNS = 16  # launches that may be under way, where their inputs are not large
FETCHED_TURNS = 4  # of launches that fetch: each turn has a graph of its own
STAGING = 64 << 20  # bytes of pinned memory for inputs
FETCHED = 1 << 20  # bytes of inputs that a kernel fetches, whatever of them is used
FETCH_BYTES = 16 * 256  # that one block fetches at a time
FETCH_BLOCKS = 132
MOST_LEFT = 4  # small outputs that kernels leave where the host reads them, each by a launch
MOST_LANDINGS = 3  # outputs of one size on their way to places of their own
WAITED = 4  # the part of all turns that is waited for at once is one in so many
GAP = 4096  # bytes between two inputs that are copied to the GPU rather than left out: a copy of their own costs more
FEW_AHEAD, AHEAD = 8, 256  # steps whose records are made at once: the more, the longer nothing changes


class Records:
    """What steps are told; while nothing but the step changes, the records of several are made at once.

    Sizes are the same while they are one mapping.
    """

    def __init__(self, plan: Plan, scalars: PrologueScalars, seed: int) -> None:
        self._plan, self._scalars, self._seed = plan, scalars, seed % 2**64
        self._rows: list[AnyArray] = []
        self._block = np.zeros((0, record_words(plan)), np.uint64)  # all of them
        self._one = np.zeros(record_words(plan), np.uint64)
        self._first, self._made = 0, -1  # the step of the first row, and the scalars' version that they are of
        self._ahead = FEW_AHEAD
        self._sizes: Mapping[str, int] | None = None

    def row(self, sizes: Mapping[str, int], step: int, epoch: int) -> AnyArray:
        """The words of one step's record."""
        scalars, at = self._scalars, step - self._first
        scalars.set_epoch(epoch)
        if scalars.version != self._made or sizes is not self._sizes:  # perhaps in every step
            self._made, self._rows, self._sizes, self._ahead = scalars.version, [], sizes, FEW_AHEAD
            head = (self._seed, step, 0, 0)
            write_record(self._one, self._plan, sizes, scalars.slots(sizes, step), head)
            return self._one
        if not 0 <= at < len(self._rows):
            self._make(sizes, step)
            at = 0
        return self._rows[at]

    def block(self, sizes: Mapping[str, int], step: int, epoch: int, count: int) -> AnyArray:
        """The words of the records of some steps, one after the other."""
        scalars = self._scalars
        scalars.set_epoch(epoch)
        if scalars.version != self._made or sizes is not self._sizes:
            self._made, self._rows, self._sizes, self._ahead = scalars.version, [], sizes, FEW_AHEAD
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
    """Room on the host for outputs of one size."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self.pinned, self.event = PinnedMemory(gpu, size), CudaEvent(gpu)


class DeferredOutput:
    """An output that the next launch writes over, on its way to the host."""

    def __init__(self, landing: Landing, free: list[Landing], shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._landing: Landing | None = landing
        self._free, self._shape, self._dtype = free, shape, dtype
        self._array: AnyArray | None = None

    def read(self) -> AnyArray:
        """A copy, when it is there."""
        return self.settled().copy()

    def settled(self) -> AnyArray:
        """Wait for it, and give back the room that it came through."""
        if self._array is None:
            assert self._landing is not None, "it is on its way"
            self._landing.event.wait()
            self._array = self._landing.pinned.view(0, prod(self._shape), self._dtype).reshape(self._shape).copy()
            self.__del__()
        return self._array

    def __del__(self) -> None:
        if self._landing is not None:
            self._free.append(self._landing)  # what is copied there next stands behind it in the stream
            self._landing = None


class Landings:
    """Rooms of one size; of those who have one and want more than there are, the oldest settles."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self._gpu, self._size, self._free = gpu, size, [Landing(gpu, size)]
        self._left, self._users = MOST_LANDINGS - 1, deque[ref[DeferredOutput]]()

    def keep(self, address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> DeferredOutput:
        """Have an output brought, in the stream's order."""
        while not self._free and self._left == 0:
            oldest = self._users.popleft()()
            if oldest is not None:
                oldest.settled()
        if not self._free:
            self._left -= 1
            self._free.append(Landing(self._gpu, self._size))
        landing = self._free.pop()
        if self._size:
            self._gpu.copy_out(landing.pinned.address, address, self._size)
        landing.event.record()
        kept = DeferredOutput(landing, self._free, shape, dtype)
        if len(self._users) == MOST_LANDINGS:
            self._users.popleft()  # it has none any more
        self._users.append(ref(kept))
        return kept


class StagingSlot:
    """A place on the host for one launch: its record, its inputs, its small outputs."""

    def __init__(self, gpu: Gpu, plan: Plan, layout: OwnLayout, pinned: PinnedMemory, start: int) -> None:
        self.start, self.address = start, pinned.address + start
        self.record = pinned.view(start, record_words(plan), np.dtype(np.uint64))
        self.event = CudaEvent(gpu)
        self.ticket: ref[CudaTicket] | None = None  # of the launch that had it last,
        self.launch = 0  # and its number
        self._places: dict[str, AnyArray] = {}
        for name, id in plan.inputs:
            type = plan.buffers[id].type
            count = evaluate(type.elements, plan.sizes)
            self._places[name] = pinned.view(start + layout.offsets[id], count, type.dtype.numpy)
        self._small: list[tuple[str, AnyArray]] = []  # places as the arrays of the last launch were,
        self._large: list[tuple[str, AnyArray]] = []  # and those that several threads fill
        self._sizes: Mapping[str, int] | None = None  # of the last launch

    def fill(self, inputs: Mapping[str, AnyArray], sizes: Mapping[str, int], copies: HostCopies) -> None:
        """Copy the inputs of a launch, whose shapes are the same while sizes are."""
        if sizes is not self._sizes:
            self._shape(inputs, copies)
            self._sizes = sizes
        for name, place in self._small:
            place[...] = inputs[name]
        for name, place in self._large:
            copies.copy(place, inputs[name])

    def _shape(self, inputs: Mapping[str, AnyArray], copies: HostCopies) -> None:
        shaped = [(n, place[: inputs[n].size].reshape(inputs[n].shape)) for n, place in self._places.items()]
        self._small = [(name, place) for name, place in shaped if not copies.takes(place.nbytes)]
        self._large = [(name, place) for name, place in shaped if copies.takes(place.nbytes)]


class StagingRing:
    """The turns of a program."""

    def __init__(
        self, gpu: Gpu, plan: Plan, layout: OwnLayout, own: DeviceMemory, is_short: bool, copies: HostCopies
    ) -> None:
        self._gpu, self._plan, self._layout, self._own, self._copies = gpu, plan, layout, own, copies
        self.fetches = is_short and layout.given_end <= FETCHED
        most = FETCHED_TURNS if self.fetches else TURNS
        count = max(2, min(most, STAGING // max(1, layout.given_end)))
        size = layout.given_end + layout.small_bytes
        self._pinned = PinnedMemory(gpu, count * size)
        self._turns = [StagingSlot(gpu, plan, layout, self._pinned, i * size) for i in range(count)]
        self._turn, self._launch = 0, 0
        self._launched, self._done = 0, 0  # the numbers of the last launch, and of the last one known to be done
        if any(copies.takes(plan.buffers[id].bytes) for _, id in plan.inputs):
            copies.prepare()
        self._landings: dict[int, Landings] = {}  # by size
        self._begun_memory = PinnedMemory(gpu, 8)  # the number of the last launch that has begun: its fetch says so
        self._begun = self._begun_memory.view(0, 1, np.dtype(np.int64))
        read = {load.buffer for k in plan.kernels for load, _ in k.body.reads()} if self.fetches else set()
        # Where no kernel reads them, kernels write small outputs where the host reads them.
        self._direct = {b.id for b in layout.small if b.id not in read} if self.fetches else set()
        others = [b for b in layout.small if b.id not in self._direct]
        # Those that kernels read are left there by a kernel of their own, where they are few.
        self._left = others if self.fetches and len(others) <= MOST_LEFT else []
        self._all = [(layout.given_end, layout.small_bytes)] if layout.small else []
        self._copied = self._all if others and not self.fetches else []
        if others and self.fetches and not self._left:
            self._copied = [(layout.offsets[b.id], b.bytes) for b in others]
        self._given: list[tuple[int, int]] = []  # bytes that are copied to the GPU, of the sizes
        self._sizes: Mapping[str, int] | None = None  # of the last launch

    def next(self) -> tuple[int, StagingSlot]:
        """The next turn, and its number."""
        number = self._turn = (self._turn + 1) % len(self._turns)
        turn = self._turns[number]
        if turn.ticket is not None:
            self._free(number, turn)
        self._launch += 1
        return number, turn

    def _free(self, number: int, turn: StagingSlot) -> None:
        """Wait until the launch that had a turn last is done, and some behind it: one call for the next turns, too."""
        if self.fetches:
            self._done = max(self._done, self._begun.item(0) - 1)
        if turn.launch > self._done:
            count = len(self._turns)
            self.wait_for(self._turns[(number + max(1, count // WAITED) - 1) % count])
            self.wait_for(turn)  # where that one's last launch was never made
        held = None if turn.ticket is None else turn.ticket()
        if held is not None:
            held.resolve()  # somebody may still read it
        turn.ticket = None

    def wait_for(self, turn: StagingSlot) -> None:
        """Until the launch that had a turn last is done; those before it are then, too."""
        launch = turn.launch
        if launch > self._done:
            turn.event.wait()
            self._done = max(self._done, launch)

    def wait(self) -> None:
        """Until everything is done."""
        launch = self._launched
        self._gpu.wait()
        self._done = max(self._done, launch)

    def address(self, number: int, id: int) -> int | None:
        """Where a launch of this turn writes a small output; None: where all others do."""
        return self._turns[number].address + self._layout.offsets[id] if id in self._direct else None

    def output(self, turn: StagingSlot, id: int, count: int) -> AnyArray:
        """A small output that a launch has brought back."""
        return self._pinned.view(turn.start + self._layout.offsets[id], count, self._plan.buffers[id].type.dtype.numpy)

    def add_fetch(self, order: Order, number: int, fetch: Any) -> None:
        """Begin a graph with what a turn is given."""
        bytes = self._layout.given_end
        given = [ctypes.c_void_p(self._own.address), ctypes.c_void_p(self._turns[number].address)]
        grid = (min(FETCH_BLOCKS, -(-bytes // FETCH_BYTES)), 1)
        writes: set[Resource] = {RECORD, *(id for _, id in self._plan.inputs)}
        more = [ctypes.c_longlong(bytes // 16), ctypes.c_void_p(self._begun_memory.address)]
        order.kernel(fetch, grid, 256, [*given, *more], set(), writes)

    def add_leave(self, order: Order, number: int, leave: Any) -> None:
        """End a graph with small outputs that kernels read: they are written where the host reads them."""
        order.current = ()
        for b in self._left:
            at = self._layout.offsets[b.id]
            given = [ctypes.c_void_p(start + at) for start in (self._turns[number].address, self._own.address)]
            grid = (min(FETCH_BLOCKS, -(-b.bytes // FETCH_BYTES)), 1)
            order.kernel(leave, grid, 256, [*given, ctypes.c_longlong(-(-b.bytes // 16))], {b.id}, set())

    def give(self, turn: StagingSlot, row: AnyArray, inputs: Mapping[str, AnyArray], sizes: Mapping[str, int]) -> None:
        """The record and the inputs of a launch: a kernel fetches them, or they are copied."""
        if self.fetches:
            row[2] = self._launch  # in the place of a position, which only epochs have
        turn.record[...] = row
        turn.fill(inputs, sizes, self._copies)
        if not self.fetches:
            if sizes is not self._sizes:
                self._given, self._sizes = self._runs(inputs), sizes
            for at, size in self._given:
                self._gpu.copy_in(self._own.address + at, turn.address + at, size)

    def _runs(self, inputs: Mapping[str, AnyArray]) -> list[tuple[int, int]]:
        """The bytes of the record and of inputs, those that are near each other as one."""
        runs = [(0, 8 * record_words(self._plan))]
        for name, id in self._plan.inputs:  # in the order in which they lie
            (start, size), at = runs[-1], self._layout.offsets[id]
            if at - (start + size) <= GAP:
                runs[-1] = start, at - start + inputs[name].nbytes
            elif inputs[name].nbytes:
                runs.append((at, inputs[name].nbytes))
        return runs

    def keep(self, address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> DeferredOutput:
        """Have an output brought to a place of its own, in the stream's order."""
        size = prod(shape) * dtype.itemsize
        if size not in self._landings:
            self._landings[size] = Landings(self._gpu, size)
        return self._landings[size].keep(address, shape, dtype)

    def take(self, turn: StagingSlot, everything: bool = False) -> None:
        """Have small outputs brought back that are not written to the host by themselves, and note when it is done."""
        for at, size in self._all if everything else self._copied:
            self._gpu.copy_out(turn.address + at, self._own.address + at, size)
        turn.event.record()
        turn.launch = self._launched = self._launch  # from now on: whoever waits for a number waits for its event
