"""Many steps a launch: data that lies on the GPU, gathered there in the order of the epoch, several steps a graph.

Records of all steps of a launch are written ahead; losses come back together.  The host looks every 50 ms.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.backend import SLICE_SECONDS, Epoch, IndexRefusedError, Slice, check_indices
from wholestep.compiler.backends.cuda.driver import DeviceMemory, Event, Gpu, Graph, Module, Nodes, PinnedMemory
from wholestep.compiler.backends.cuda.launches import Order, in_second_place
from wholestep.compiler.backends.cuda.layout import record_words
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.order import ROUNDS, _round_keys

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.program import CudaProgram

MOST_SOURCES = 8  # of `ws_data` in native/gather.h
SHARE = 0.5  # of the free memory that data may take
NODES = 512  # launches of one graph, about
MOST_STEPS = 32  # of one graph
IN_FLIGHT = 3  # graphs that are queued
LOSS_BYTES = 16  # where each step leaves its loss
GATHER_BLOCKS = 132
DATA_BYTES = 8 * (5 + ROUNDS + 3 * MOST_SOURCES)  # of `ws_data`
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

    def __init__(self, program: CudaProgram, gpu: Gpu, gather: Any, data: Module) -> None:
        self._program, self._gpu, self._gather, self._module = program, gpu, gather, data
        self.steps = max(1, min(MOST_STEPS, NODES // max(1, program.launches)))
        self._words = record_words(program.plan)
        self._records = DeviceMemory(gpu, 8 * self._words * self.steps)
        self._losses = DeviceMemory(gpu, LOSS_BYTES * self.steps)
        self._data = DeviceMemory(gpu, 2 * DATA_BYTES)
        self._second = self._second_inputs()
        size = 8 * self._words * self.steps + LOSS_BYTES * self.steps
        self._pinned = [PinnedMemory(gpu, size) for _ in range(IN_FLIGHT + 1)]
        self._events = [Event(gpu) for _ in self._pinned]
        self._graphs: dict[tuple[int, frozenset[int], tuple[int, ...]], Graph] = {}
        self._resident: Resident | None = None
        self.mapped_bytes = self._records.size + self._losses.size + self._data.size + self._inputs.size

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

    def takes(self, epoch: Epoch) -> bool:
        """Can the epoch run here: data that fits the GPU, and indices that may all be used?"""
        if not epoch.sources or len(epoch.sources) > MOST_SOURCES:
            return False
        self._resident = epoch.kept.get(self)
        if self._resident is None:
            size = sum(a.nbytes for a in epoch.sources.values())
            if size > SHARE * self._gpu.free_bytes:
                return False
            try:
                check_indices(self._program.plan, {**epoch.sources, **epoch.whole}, epoch.sizes)
            except IndexRefusedError:
                return False  # step by step the session finds out which one
            self._resident = epoch.kept[self] = copy_sources(self._gpu, epoch.sources)
        return True

    # -- an epoch ------------------------------------------------------------------------------------------------

    def run(self, epoch: Epoch) -> Iterator[Slice]:
        """Slices of an epoch; all that a slice needs is set anew, since others may have made steps in between."""
        first = epoch.first
        while first < epoch.end:
            losses = self._slice(epoch, first)
            yield Slice.of(epoch, first, losses)
            first += len(losses)

    def _slice(self, epoch: Epoch, first: int) -> AnyArray:
        self._program.begin_slice(epoch)
        self._describe(epoch)
        deadline, end = time.monotonic() + SLICE_SECONDS, min(epoch.end, first + (epoch.every or epoch.end))
        losses: list[AnyArray] = []
        begun: deque[tuple[int, int]] = deque()
        update, turn = first, 0
        while update < end and (update == first or time.monotonic() < deadline):
            count = self.steps if end - update >= self.steps else 1
            if self._program.has_library and epoch.rows_of(update + count - 1) < epoch.batch:
                count = 1  # the steps of a graph that a library has part in have one size
            self._launch(epoch, update, count, turn)
            begun.append((turn, count))
            update, turn = update + count, (turn + 1) % len(self._pinned)
            if len(begun) == IN_FLIGHT:
                losses.append(self._read(*begun.popleft()))
        losses += [self._read(*each) for each in begun]
        found = np.concatenate(losses)
        self._program.end_slice(epoch.sizes_of(update - 1), float(found[-1]))
        return found

    def _describe(self, epoch: Epoch) -> None:
        """Where rows are and in which order they come: `ws_data` of native/gather.h."""
        assert self._resident is not None, "takes() comes before"
        words = np.zeros(DATA_BYTES // 8, np.uint64)
        words[0] = epoch.rows
        bits = max(2, (epoch.rows - 1).bit_length())
        words[1:3] = np.array(
            [epoch.order is not None, bits // 2, bits - bits // 2, len(epoch.sources)], np.int32
        ).view(np.uint64)
        if epoch.order is not None:
            words[3 : 3 + ROUNDS] = _round_keys(epoch.seed, epoch.order)
        inputs = dict(self._program.plan.inputs)
        for number, place in enumerate((self._program.address, self._second.__getitem__)):
            at = 3 + ROUNDS
            for name, array in epoch.sources.items():
                rows = self._resident.memory.address + self._resident.offsets[name]
                words[at : at + 3] = rows, place(inputs[name]), array.nbytes // len(array)
                at += 3
            self._data.write(number * DATA_BYTES, words)
        self._elsewhere = frozenset(inputs[name] for name in epoch.sources)

    def _launch(self, epoch: Epoch, update: int, count: int, turn: int) -> None:
        """Write the records of some updates ahead, queue their graph, and have their losses brought back."""
        program, pinned = self._program, self._pinned[turn]
        records = pinned.view(0, self._words * count, np.dtype(np.uint64)).reshape(count, self._words)
        program.write_records(records, epoch, update)
        graph = self._ready_graph(count, epoch.sizes_of(update))
        self._gpu.copy_in(self._records.address, pinned.address, records.nbytes)
        graph.launch()
        to = pinned.address + 8 * self._words * self.steps
        self._gpu.copy_out(to, self._losses.address, LOSS_BYTES * count)
        self._events[turn].record()

    def _ready_graph(self, count: int, sizes: Mapping[str, int]) -> Graph:
        key = count, self._elsewhere, self._program.graph_key(sizes)

        def build(nodes: Nodes) -> None:
            order = Order(nodes, self._program.plan)
            for i in range(count):
                self._add_step(order, i, sizes)

        if key not in self._graphs:
            self._graphs[key] = Graph(self._gpu, build)
        return self._graphs[key]

    def _add_step(self, order: Order, i: int, sizes: Mapping[str, int]) -> None:
        """Put one step into a graph: the gathering of its rows, and its kernels."""
        step, loss = self._records.address + 8 * self._words * i, self._losses.address + LOSS_BYTES * i
        second = i % 2 == 1
        given = [ctypes.c_void_p(step), ctypes.c_void_p(self._data.address + second * DATA_BYTES)]
        elsewhere = self._elsewhere if second else frozenset()
        writes = in_second_place(set(self._elsewhere), elsewhere)
        order.kernel(self._gather, (GATHER_BLOCKS, 1), 256, given, set(), writes)
        first = self._program.plan.outputs[0][1]

        def address(id: int) -> int:
            if id == first:
                return loss
            return self._second[id] if id in elsewhere else self._program.address(id)

        self._program.add_step(order, self._program.placed(address, step, elsewhere), sizes)

    def _read(self, turn: int, count: int) -> AnyArray:
        self._events[turn].wait()
        dtype = self._program.plan.buffers[self._program.plan.outputs[0][1]].type.dtype.numpy
        raw = self._pinned[turn].view(8 * self._words * self.steps, LOSS_BYTES * count // dtype.itemsize, dtype)
        return raw[:: LOSS_BYTES // dtype.itemsize].astype(np.float64)
