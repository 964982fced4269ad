"""Epochs on a GPU: many steps per launch, over data on the GPU or streamed to it, gathered in the epoch's order.

The records of all steps of a launch are written ahead and the losses are read together.  Inputs are double-buffered:
a launch of each step also gathers the rows of the next.  Control returns to the host every 50 ms.
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
from wholestep.compiler.backends.cuda.runtime.launch_list import Gathering
from wholestep.compiler.backends.cuda.runtime.streaming import StreamedData
from wholestep.compiler.backends.gpu.cost_model import RunCosts
from wholestep.compiler.backends.gpu.launch_order import Order, Resource, with_double_buffers
from wholestep.compiler.backends.gpu.persistent.eligibility import MOST_DATA
from wholestep.compiler.backends.gpu.program_memory import record_words
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.epoch_permutation import ROUNDS, _round_keys

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.runtime.program import CudaProgram

MOST_SOURCES = 8  # inputs of `ws_data` in native/gather.h
LOSS_BYTES = 16  # bytes per loss of a step: the stride of `losses` in gpu/render/persistent_step.py
DATA_BYTES = 8 * (3 + ROUNDS + 3 * MOST_SOURCES)  # size of `ws_data`
PLACES = 3  # records of input addresses: two buffers, and inputs that a persistent kernel reads in place
ROW_ALIGNMENT = 256  # bytes


@dataclass(frozen=True)
class Resident:
    """The data set of a run, on the GPU."""

    memory: DeviceMemory
    offsets: Mapping[str, int]


def copy_sources(gpu: Gpu, sources: Mapping[str, AnyArray]) -> Resident:
    """Copies a data set to the GPU."""
    offsets, end = {}, 0
    for name, array in sources.items():
        offsets[name] = end
        end += -(-array.nbytes // ROW_ALIGNMENT) * ROW_ALIGNMENT
    memory = DeviceMemory(gpu, end)
    for name, array in sources.items():
        memory.write(offsets[name], array)
    return Resident(memory, offsets)


class Epochs:
    """Runs the epochs of a program; created at the first one."""

    def __init__(self, program: CudaProgram, gpu: Gpu, gather: Any, data: CudaModule) -> None:
        self._program, self._gpu, self._gather, self._module = program, gpu, gather, data
        self._persistent = program.persistent()
        costs, self._gather_blocks = self._costs, target_of(program.plan).multiprocessors
        graph_steps = max(1, min(costs.graph_steps, costs.graph_launches // max(1, program.launches)))
        self.steps = graph_steps if self._persistent is None else costs.persistent_steps
        self._graph_steps = graph_steps
        self._words = record_words(program.plan)
        self._records = DeviceMemory(gpu, 8 * self._words * self.steps)
        self._losses = DeviceMemory(gpu, LOSS_BYTES * self.steps)
        self._data = DeviceMemory(gpu, PLACES * DATA_BYTES)
        self._second = self._second_inputs()
        self._gathering: Gathering | None = None
        self._looked = False  # was a launch that can gather already searched for?
        size = 8 * self._words * self.steps + LOSS_BYTES * self.steps
        self._pinned = [PinnedMemory(gpu, size) for _ in range(costs.queued_graphs + 1)]
        self._events = [CudaEvent(gpu) for _ in self._pinned]
        self._graphs: dict[tuple[int, frozenset[int], tuple[int, ...]], CudaGraph] = {}
        self._resident: Resident | StreamedData | None = None
        self.mapped_bytes = self._records.size + self._losses.size + self._data.size + self._inputs.size
        self.mapped_bytes += 0 if self._persistent is None else self._persistent.mapped_bytes

    @property
    def _costs(self) -> RunCosts:
        return costs_of(self._program.plan).run

    def _second_inputs(self) -> dict[int, int]:
        """The second buffer of every input: rows are gathered there while the previous step reads the first."""
        plan, offsets, end = self._program.plan, {}, 0
        for _, id in plan.inputs:
            offsets[id] = end
            end += -(-plan.buffers[id].bytes // ROW_ALIGNMENT) * ROW_ALIGNMENT
        self._inputs = DeviceMemory(self._gpu, end)
        return {id: self._inputs.address + offset for id, offset in offsets.items()}

    def forget_graphs(self) -> None:
        """Releases graphs and tables, because addresses have changed."""
        self._graphs = {}
        if self._persistent is not None:
            self._persistent.forget()

    def takes(self, epoch: Epoch) -> bool:
        """Can the epoch run here?  It needs arrays, and indices that are all in range."""
        if not epoch.sources or len(epoch.sources) > MOST_SOURCES:
            return False
        self._resident = epoch.program_caches.get(self)
        if self._resident is None:
            size = sum(a.nbytes for a in epoch.sources.values())
            try:
                check_indices(self._program.plan, {**epoch.sources, **epoch.whole}, epoch.sizes)
            except IndexRefusedError:
                return False  # run step by step instead, so that the session reports the invalid index
            if size > self._costs.resident_share * self._gpu.free_bytes:
                words = PLACES * DATA_BYTES // 8
                host = self._program.host_copies
                self._resident = StreamedData(
                    self._gpu, epoch.sources, epoch.batch, self.steps, words, host, self._costs.stream_chunk
                )
            else:
                self._resident = copy_sources(self._gpu, epoch.sources)
            epoch.program_caches[self] = self._resident
        return True

    # -- an epoch ------------------------------------------------------------------------------------------------

    def run(self, epoch: Epoch) -> Iterator[StepRange]:
        """Runs an epoch in slices; each slice sets up its state, since other steps may run in between."""
        first, pace = epoch.first, self._program.pace
        try:
            while first < epoch.end:
                most, losses = min(epoch.end - first, epoch.every or epoch.end), list[AnyArray]()
                if pace is None:
                    self._slice(epoch, range(first, first + most), SLICE_SECONDS, losses)
                else:
                    updates = range(first, first + pace.steps(most))
                    pace.measure(partial(self._slice, epoch, updates, pace.seconds, losses))
                slice_losses = np.concatenate(losses)
                yield StepRange.of(epoch, first, slice_losses)
                first += len(slice_losses)
        finally:
            self._resident = None  # only the run keeps the resident data, for its other epochs

    def _slice(self, epoch: Epoch, updates: range, seconds: float, losses: list[AnyArray]) -> int:
        """Runs updates until the time is up; appends their losses and returns their number."""
        self._program.begin_slice(epoch)
        self._resident = epoch.program_caches[self]  # set by takes()
        self._elsewhere = frozenset(dict(self._program.plan.inputs)[name] for name in epoch.sources)
        self._is_long = epoch.rows > MOST_DATA
        most = self._most_steps()
        if isinstance(self._resident, Resident):
            start, offsets = self._resident.memory.address, self._resident.offsets
            self._data.write(0, self._data_record(epoch, {name: start + at for name, at in offsets.items()}))
        deadline, first, end = time.monotonic() + seconds, updates.start, updates.stop
        in_flight: deque[tuple[int, int]] = deque()
        update, slot = first, 0
        while update < end and (update == first or time.monotonic() < deadline):
            left = end - update
            # Powers of two, so that few graphs are built; a persistent kernel runs any number of steps.
            count = min(most, left if self._persists() else 1 << left.bit_length() - 1)
            if self._program.has_library and epoch.rows_of(update + count - 1) < epoch.batch:
                count = 1  # with library calls, all steps of a graph have one size
            self._launch(epoch, update, count, slot)
            in_flight.append((slot, count))
            update, slot = update + count, (slot + 1) % len(self._pinned)
            if len(in_flight) == len(self._pinned) - 1:
                losses.append(self._read(*in_flight.popleft()))
        losses += [self._read(*each) for each in in_flight]
        self._program.end_slice(epoch.sizes_of(update - 1), float(losses[-1][-1]))
        return update - first

    def _persists(self) -> bool:
        """Does a persistent kernel run the steps of this epoch?"""
        return self._persistent is not None and self._persistent.input in self._elsewhere and not self._is_long

    def _most_steps(self) -> int:
        """Steps per launch."""
        most = self.steps if self._persists() else self._graph_steps
        return min(most, self._resident.updates) if isinstance(self._resident, StreamedData) else most

    def _data_record(self, epoch: Epoch, begins: Mapping[str, int]) -> AnyArray:
        """Addresses and order of the rows: `ws_data` of native/gather.h.

        Three records: one for each of the two alternating input buffers, and one for inputs that a persistent kernel
        reads itself.
        """
        inputs, first, second = dict(self._program.plan.inputs), self._program.address, self._second.__getitem__
        direct = {name for name in epoch.sources if self._persists() and inputs[name] == self._persistent_input}
        gathered = [name for name in epoch.sources if name not in direct]
        destinations = ((gathered, first), (gathered, second), (sorted(direct), first))
        return np.concatenate([self._words_of(epoch, begins, names, place) for names, place in destinations])

    @property
    def _persistent_input(self) -> int:
        return -1 if self._persistent is None else self._persistent.input

    def _words_of(
        self, epoch: Epoch, begins: Mapping[str, int], names: Sequence[str], place: Callable[[int], int]
    ) -> AnyArray:
        words = np.zeros(DATA_BYTES // 8, np.uint64)
        words[0] = epoch.rows
        shuffled = epoch.order is not None and isinstance(
            self._resident, Resident
        )  # a streamed chunk is already in order
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

    def _launch(self, epoch: Epoch, update: int, count: int, slot: int) -> None:
        """Writes the records of some updates, enqueues their steps, and starts copying their losses to the host."""
        program, pinned = self._program, self._pinned[slot]
        records = pinned.view(0, self._words * count, np.dtype(np.uint64)).reshape(count, self._words)
        program.write_records(records, epoch, update)
        graph = None if self._persists() else self._ready_graph(count, epoch.sizes_of(update))
        if isinstance(self._resident, StreamedData):
            begins = self._resident.load(epoch, update, count, self._program.share.rows)
            self._resident.write(self._data.address, self._data_record(epoch, begins))
        self._gpu.copy_in(self._records.address, pinned.address, records.nbytes)
        if graph is not None:
            graph.launch()
        elif self._persistent is not None:
            at, data, losses = self._records.address, self._data.address, self._losses.address
            self._persistent.launch(at, count, data, losses, self._second.__getitem__, self._elsewhere)
        if isinstance(self._resident, StreamedData):
            self._resident.mark_launched()
        to = pinned.address + 8 * self._words * self.steps
        self._gpu.copy_out(to, self._losses.address, LOSS_BYTES * count)
        self._events[slot].record()

    def _ready_graph(self, count: int, sizes: Mapping[str, int]) -> CudaGraph:
        key = count, self._elsewhere, self._program.graph_key(sizes)
        if not self._looked:
            self._gathering, self._looked = self._program.gather_launch(self._gather_blocks), True

        def build(nodes: Nodes) -> None:
            order = self._program.order_of(nodes)
            for i in range(count):
                self._add_step(order, i, i + 1 == count, sizes)

        if key not in self._graphs:
            self._graphs[key] = self._program.new_graph(build)
        return self._graphs[key]

    def _add_step(self, order: Order, i: int, is_last: bool, sizes: Mapping[str, int]) -> None:
        """Adds one step to a graph; one of the step's launches also gathers the rows of the next step."""
        loss, elsewhere = self._losses.address + LOSS_BYTES * i, self._elsewhere if i % 2 else frozenset()
        if i == 0 or self._gathering is None:
            addresses, writes = self._gather_arguments(i)
            order.kernel(
                self._gather, (self._gather_blocks, 1), 256, list(map(ctypes.c_void_p, addresses)), set(), set(writes)
            )
        gathering = None
        if not is_last and self._gathering is not None:
            addresses, writes = self._gather_arguments(i + 1)
            gathering = replace(self._gathering, arguments=addresses, writes=writes)
        first = self._program.plan.outputs[0][1]

        def address(id: int) -> int:
            if id == first:
                return loss
            return self._second[id] if id in elsewhere else self._program.address(id)

        record = self._records.address + 8 * self._words * i
        self._program.add_step(order, self._program.step_addresses(address, record, elsewhere), sizes, gathering)

    def _gather_arguments(self, i: int) -> tuple[tuple[int, int], frozenset[Resource]]:
        """Arguments for gathering a step's rows, and the buffers written: steps alternate between two buffers."""
        addresses = self._records.address + 8 * self._words * i, self._data.address + i % 2 * DATA_BYTES
        elsewhere = self._elsewhere if i % 2 else frozenset()
        return addresses, frozenset(with_double_buffers(set(self._elsewhere), elsewhere))

    def _read(self, slot: int, count: int) -> AnyArray:
        self._events[slot].wait()
        dtype = self._program.plan.buffers[self._program.plan.outputs[0][1]].type.dtype.numpy
        raw = self._pinned[slot].view(8 * self._words * self.steps, LOSS_BYTES * count // dtype.itemsize, dtype)
        return raw[:: LOSS_BYTES // dtype.itemsize].astype(np.float64)
