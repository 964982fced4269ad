"""Many steps a launch: data on the GPU, or brought there chunk by chunk, gathered in the order of the epoch.

Records of all steps of a launch are written ahead; losses come back together.  The host looks every 50 ms.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.backend import SLICE_SECONDS, Epoch, IndexRefusedError, StepRange, check_indices
from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.driver import CudaEvent, CudaModule, DeviceMemory, Gpu, PinnedMemory
from wholestep.compiler.backends.cuda.runtime.launch_list import Gathering, Order, Resource, in_second_place
from wholestep.compiler.backends.cuda.runtime.program_memory import record_words
from wholestep.compiler.backends.cuda.runtime.streaming import Streamed
from wholestep.compiler.backends.gpu.persistent.eligibility import MOST_DATA
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.epoch_permutation import ROUNDS, _round_keys

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.runtime.program import CudaProgram

MOST_SOURCES = 8  # of `ws_data` in native/gather.h
SHARE = 0.5  # of the free memory that data may take
NODES = 512  # launches of one graph, about
MOST_STEPS = 32  # of one graph
PERSISTENT_STEPS = 128  # of one kernel
IN_FLIGHT = 3  # graphs that are queued
LOSS_BYTES = 16  # where each step leaves its loss
GATHER_BLOCKS = 132
DATA_BYTES = 8 * (3 + ROUNDS + 3 * MOST_SOURCES)  # of `ws_data`
PLACES = 3  # of inputs: two in turn, and where a kernel of many steps has those that it reads where they are
ROW_ALIGNMENT = 256


@dataclass(frozen=True)
class Resident:
    """The sources of a run, on the GPU."""

    memory: DeviceMemory
    offsets: Mapping[str, int]


def copy_sources(gpu: Gpu, sources: Mapping[str, AnyArray]) -> Resident:
    """Take a data set to the GPU."""
    offsets, end = {}, 0
    for name, array in sources.items():
        offsets[name] = end
        end += -(-array.nbytes // ROW_ALIGNMENT) * ROW_ALIGNMENT
    memory = DeviceMemory(gpu, end)
    for name, array in sources.items():
        memory.write(offsets[name], array)
    return Resident(memory, offsets)


class Epochs:
    """What a program needs to run epochs by itself: made when the first one is asked for."""

    def __init__(self, program: CudaProgram, gpu: Gpu, gather: Any, data: CudaModule) -> None:
        self._program, self._gpu, self._gather, self._module = program, gpu, gather, data
        self._persistent = program.persistent()
        graph_steps = max(1, min(MOST_STEPS, NODES // max(1, program.launches)))
        self.steps = graph_steps if self._persistent is None else PERSISTENT_STEPS
        self._graph_steps = graph_steps
        self._words = record_words(program.plan)
        self._records = DeviceMemory(gpu, 8 * self._words * self.steps)
        self._losses = DeviceMemory(gpu, LOSS_BYTES * self.steps)
        self._data = DeviceMemory(gpu, PLACES * DATA_BYTES)
        self._second = self._second_inputs()
        self._gathering: Gathering | None = None
        self._looked = False  # for a launch that may gather
        size = 8 * self._words * self.steps + LOSS_BYTES * self.steps
        self._pinned = [PinnedMemory(gpu, size) for _ in range(IN_FLIGHT + 1)]
        self._events = [CudaEvent(gpu) for _ in self._pinned]
        self._graphs: dict[tuple[int, frozenset[int], tuple[int, ...]], CudaGraph] = {}
        self._resident: Resident | Streamed | None = None
        self.mapped_bytes = self._records.size + self._losses.size + self._data.size + self._inputs.size
        self.mapped_bytes += 0 if self._persistent is None else self._persistent.mapped_bytes

    def _second_inputs(self) -> dict[int, int]:
        """A second place for every input: rows are gathered there while the step before still reads the first."""
        plan, offsets, end = self._program.plan, {}, 0
        for _, id in plan.inputs:
            offsets[id] = end
            end += -(-plan.buffers[id].bytes // ROW_ALIGNMENT) * ROW_ALIGNMENT
        self._inputs = DeviceMemory(self._gpu, end)
        return {id: self._inputs.address + offset for id, offset in offsets.items()}

    def forget_graphs(self) -> None:
        """Addresses have changed."""
        self._graphs = {}
        if self._persistent is not None:
            self._persistent.forget()

    def takes(self, epoch: Epoch) -> bool:
        """Can the epoch run here: arrays, and indices that may all be used?"""
        if not epoch.sources or len(epoch.sources) > MOST_SOURCES:
            return False
        self._resident = epoch.kept.get(self)
        if self._resident is None:
            size = sum(a.nbytes for a in epoch.sources.values())
            try:
                check_indices(self._program.plan, {**epoch.sources, **epoch.whole}, epoch.sizes)
            except IndexRefusedError:
                return False  # step by step the session finds out which one
            if size > SHARE * self._gpu.free_bytes:
                words = PLACES * DATA_BYTES // 8
                host = self._program.host_copies
                self._resident = Streamed(self._gpu, epoch.sources, epoch.batch, self.steps, words, host)
            else:
                self._resident = copy_sources(self._gpu, epoch.sources)
            epoch.kept[self] = self._resident
        return True

    # -- an epoch ------------------------------------------------------------------------------------------------

    def run(self, epoch: Epoch) -> Iterator[StepRange]:
        """Slices of an epoch; all that a slice needs is set anew, since others may have made steps in between."""
        first, pace = epoch.first, self._program.pace
        try:
            while first < epoch.end:
                most, losses = min(epoch.end - first, epoch.every or epoch.end), list[AnyArray]()
                if pace is None:
                    self._slice(epoch, range(first, first + most), SLICE_SECONDS, losses)
                else:
                    updates = range(first, first + pace.steps(most))
                    pace.timed(partial(self._slice, epoch, updates, pace.seconds, losses))
                found = np.concatenate(losses)
                yield StepRange.of(epoch, first, found)
                first += len(found)
        finally:
            self._resident = None  # the run keeps it for its other epochs, and nobody after it

    def _slice(self, epoch: Epoch, updates: range, seconds: float, losses: list[AnyArray]) -> int:
        """Make some updates, as long as there is time; how many, and their losses."""
        self._program.begin_slice(epoch)
        self._resident = epoch.kept[self]  # by takes()
        self._elsewhere = frozenset(dict(self._program.plan.inputs)[name] for name in epoch.sources)
        self._is_long = epoch.rows > MOST_DATA
        most = self._most_steps()
        if isinstance(self._resident, Resident):
            start, offsets = self._resident.memory.address, self._resident.offsets
            self._data.write(0, self._data_record(epoch, {name: start + at for name, at in offsets.items()}))
        deadline, first, end = time.monotonic() + seconds, updates.start, updates.stop
        begun: deque[tuple[int, int]] = deque()
        update, turn = first, 0
        while update < end and (update == first or time.monotonic() < deadline):
            left = end - update
            # Few graphs serve every number; one kernel takes any.
            count = min(most, left if self._persists() else 1 << left.bit_length() - 1)
            if self._program.has_library and epoch.rows_of(update + count - 1) < epoch.batch:
                count = 1  # the steps of a graph that a library has part in have one size
            self._launch(epoch, update, count, turn)
            begun.append((turn, count))
            update, turn = update + count, (turn + 1) % len(self._pinned)
            if len(begun) == IN_FLIGHT:
                losses.append(self._read(*begun.popleft()))
        losses += [self._read(*each) for each in begun]
        self._program.end_slice(epoch.sizes_of(update - 1), float(losses[-1][-1]))
        return update - first

    def _persists(self) -> bool:
        """Does one kernel make the steps of this epoch?"""
        return self._persistent is not None and self._persistent.input in self._elsewhere and not self._is_long

    def _most_steps(self) -> int:
        """Of one launch."""
        most = self.steps if self._persists() else self._graph_steps
        return min(most, self._resident.updates) if isinstance(self._resident, Streamed) else most

    def _data_record(self, epoch: Epoch, begins: Mapping[str, int]) -> AnyArray:
        """Where rows are and in which order they come: `ws_data` of native/gather.h.

        It is that of the first place of inputs, of the second, and of those that a kernel reads where they are.
        """
        inputs, first, second = dict(self._program.plan.inputs), self._program.address, self._second.__getitem__
        direct = {name for name in epoch.sources if self._persists() and inputs[name] == self._persistent_input}
        gathered = [name for name in epoch.sources if name not in direct]
        places = ((gathered, first), (gathered, second), (sorted(direct), first))
        return np.concatenate([self._words_of(epoch, begins, names, place) for names, place in places])

    @property
    def _persistent_input(self) -> int:
        return -1 if self._persistent is None else self._persistent.input

    def _words_of(
        self, epoch: Epoch, begins: Mapping[str, int], names: Sequence[str], place: Callable[[int], int]
    ) -> AnyArray:
        words = np.zeros(DATA_BYTES // 8, np.uint64)
        words[0] = epoch.rows
        shuffled = epoch.order is not None and isinstance(self._resident, Resident)  # a chunk is in order
        bits = max(2, (epoch.rows - 1).bit_length())
        words[1:3] = np.array([shuffled, bits // 2, bits - bits // 2, len(names)], np.int32).view(np.uint64)
        if epoch.order is not None:
            words[3 : 3 + ROUNDS] = _round_keys(epoch.seed, epoch.order)
        inputs, at = dict(self._program.plan.inputs), 3 + ROUNDS
        for name in names:
            array = epoch.sources[name]
            words[at : at + 3] = begins[name], place(inputs[name]), array.nbytes // len(array)
            at += 3
        return words

    def _launch(self, epoch: Epoch, update: int, count: int, turn: int) -> None:
        """Write the records of some updates ahead, queue their steps, and have their losses brought back."""
        program, pinned = self._program, self._pinned[turn]
        records = pinned.view(0, self._words * count, np.dtype(np.uint64)).reshape(count, self._words)
        program.write_records(records, epoch, update)
        graph = None if self._persists() else self._ready_graph(count, epoch.sizes_of(update))
        if isinstance(self._resident, Streamed):
            begins = self._resident.bring(epoch, update, count, self._program.share.rows)
            self._resident.write(self._data.address, self._data_record(epoch, begins))
        self._gpu.copy_in(self._records.address, pinned.address, records.nbytes)
        if graph is not None:
            graph.launch()
        elif self._persistent is not None:
            at, data, losses = self._records.address, self._data.address, self._losses.address
            self._persistent.launch(at, count, data, losses, self._second.__getitem__, self._elsewhere)
        if isinstance(self._resident, Streamed):
            self._resident.launched()
        to = pinned.address + 8 * self._words * self.steps
        self._gpu.copy_out(to, self._losses.address, LOSS_BYTES * count)
        self._events[turn].record()

    def _ready_graph(self, count: int, sizes: Mapping[str, int]) -> CudaGraph:
        key = count, self._elsewhere, self._program.graph_key(sizes)
        if not self._looked:
            self._gathering, self._looked = self._program.gathering(GATHER_BLOCKS), True

        def build(nodes: Nodes) -> None:
            order = self._program.order_of(nodes)
            for i in range(count):
                self._add_step(order, i, i + 1 == count, sizes)

        if key not in self._graphs:
            self._graphs[key] = self._program.new_graph(build)
        return self._graphs[key]

    def _add_step(self, order: Order, i: int, is_last: bool, sizes: Mapping[str, int]) -> None:
        """Put one step into a graph: its kernels, one of which gathers the rows of the next step besides."""
        loss, elsewhere = self._losses.address + LOSS_BYTES * i, self._elsewhere if i % 2 else frozenset()
        if i == 0 or self._gathering is None:
            given, writes = self._gather_arguments(i)
            order.kernel(self._gather, (GATHER_BLOCKS, 1), 256, list(map(ctypes.c_void_p, given)), set(), set(writes))
        ahead = None
        if not is_last and self._gathering is not None:
            given, writes = self._gather_arguments(i + 1)
            ahead = replace(self._gathering, given=given, writes=writes)
        first = self._program.plan.outputs[0][1]

        def address(id: int) -> int:
            if id == first:
                return loss
            return self._second[id] if id in elsewhere else self._program.address(id)

        placed = self._program.placed(address, self._records.address + 8 * self._words * i, elsewhere)
        self._program.add_step(order, placed, sizes, ahead)

    def _gather_arguments(self, i: int) -> tuple[tuple[int, int], frozenset[Resource]]:
        """What gathering the rows of a step is given, and what it writes: steps have two places in turn."""
        given = self._records.address + 8 * self._words * i, self._data.address + i % 2 * DATA_BYTES
        elsewhere = self._elsewhere if i % 2 else frozenset()
        return given, frozenset(in_second_place(set(self._elsewhere), elsewhere))

    def _read(self, turn: int, count: int) -> AnyArray:
        self._events[turn].wait()
        dtype = self._program.plan.buffers[self._program.plan.outputs[0][1]].type.dtype.numpy
        raw = self._pinned[turn].view(8 * self._words * self.steps, LOSS_BYTES * count // dtype.itemsize, dtype)
        return raw[:: LOSS_BYTES // dtype.itemsize].astype(np.float64)
