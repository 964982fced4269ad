"""The GPU: a plan's kernels, compiled by NVRTC, launched as one CUDA graph a step over one arena of device memory.

A launch returns when its inputs are copied and the graph is queued; whoever reads a number waits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wholestep.compiler.backend import (
    Epoch,
    Place,
    Slice,
    Ticket,
    check_indices,
    epoch_of_launches,
    nothing,
)
from wholestep.compiler.backends.cuda.compiler import compile_source
from wholestep.compiler.backends.cuda.driver import DeviceMemory, Event, Gpu, Graph, Module, Nodes, PinnedMemory
from wholestep.compiler.backends.cuda.epochs import Epochs
from wholestep.compiler.backends.cuda.launches import Launches, Order, Placed, write_record
from wholestep.compiler.backends.cuda.layout import HEAD, lay_out, record_words
from wholestep.compiler.backends.cuda.memory import CudaArray, CudaMemory, CudaScratch
from wholestep.compiler.backends.cuda.prologue import Scalars
from wholestep.compiler.backends.cuda.render.source import Source, render
from wholestep.compiler.backends.cuda.schedule import arena_end
from wholestep.compiler.backends.cuda.scheduled import calls_library, workspace_bytes
from wholestep.compiler.backends.cuda.tickets import CudaTicket
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.plan.kernel import Plan, Space
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.store import cache_of
from wholestep.compiler.runtime.together import Background
from wholestep.options import CompileOptions

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.recorder import Recorder

TURNS = 16  # launches that may be under way, where their inputs are not large
STAGING = 64 << 20  # bytes of pinned memory for inputs
TOGETHER = 256 << 10  # bytes of inputs that are copied at once, whatever of them is used


def _recorder(gpu: Gpu) -> Recorder:
    from wholestep.compiler.backends.cuda.recorder import Recorder  # only a profile reads what was noted

    return Recorder(gpu)


class Holder(Protocol):
    """What a program asks its device for."""

    gpu: Gpu
    memory: CudaMemory

    @property
    def architecture(self) -> str:
        """What code is compiled for."""

    def gather(self, options: CompileOptions) -> Module:
        """The kernel that takes the rows of an update from data on the GPU."""


class CudaProgram:
    """A plan on a GPU."""

    synchronous = False

    def __init__(self, device: Holder, plan: Plan, place: Place, meanwhile: Callable[[], None] = nothing) -> None:
        self.plan, self._place, self._state, self._device = plan, place, place.state, device
        self._gpu = device.gpu
        assert isinstance(place.scratch, CudaScratch), "programs of a GPU share its scratch memory"
        self._scratch = place.scratch
        coming = Background(lambda: compile_source(self._rendered, device.architecture, cache_of(place.where.options)))
        meanwhile()
        functions: dict[str, Any] = {}
        self._modules = []
        for names, code in coming.result():
            self._modules.append(Module(self._gpu, code))
            functions |= {name: self._modules[-1].function(name) for name in names}
        self._launches = Launches(self._gpu, plan, self._rendered, functions)
        self.outputs: Mapping[str, TensorType] = {name: plan.buffers[id].type for name, id in plan.outputs}
        self._lay_out()
        self._scalars = Scalars(plan)
        self._epochs: Epochs | None = None
        self.recorder = _recorder(self._gpu) if place.profile else None
        self._graphs: dict[tuple[int, ...], Graph] = {}
        self.has_library = calls_library(plan)
        self._turn, self._last = 0, CudaTicket(self, 0, {})
        self._seen = -1
        self.count_steps(bool(plan.updated))
        self._scratch.users.add(self)

    @cached_property
    def _rendered(self) -> Source:
        return render(self.plan)

    @property
    def source(self) -> str:
        """The kernels that run."""
        return self._rendered.text

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def mapped_bytes(self) -> int:
        """Its own bytes on the GPU; once it has run epochs, also those that only they need."""
        return self._own.size + (0 if self._epochs is None else self._epochs.mapped_bytes)

    def _lay_out(self) -> None:
        """Place what is this program's alone."""
        plan, own = self.plan, lay_out(self.plan)
        self._offsets, self._record_bytes = own.offsets, 8 * record_words(plan)
        self._given_end, self._small, self._small_bytes = own.given_end, own.small, own.small_bytes
        self._small_start = own.given_end
        self._own = DeviceMemory(self._gpu, own.end)
        for id, data in plan.constants:
            self._own.write(self._offsets[id], np.frombuffer(data, np.uint8))
        self._turns = max(2, min(TURNS, STAGING // max(1, self._given_end)))
        self._pinned = PinnedMemory(self._gpu, self._turns * (self._given_end + self._small_bytes))
        self._places = [self._turn_places(turn) for turn in range(self._turns)]
        self._events = [Event(self._gpu) for _ in range(self._turns)]
        self._tickets: list[weakref.ref[CudaTicket] | None] = [None] * self._turns
        self._staging = {
            name: np.empty(evaluate(plan.buffers[id].type.elements, plan.sizes), plan.buffers[id].type.dtype.numpy)
            for name, id in plan.inputs
        }
        self._inputs: dict[str, AnyArray] = {}
        self._states = {id: self._held(name) for name, id in plan.states}

    def _turn_places(self, turn: int) -> tuple[AnyArray, dict[str, tuple[AnyArray, int]]]:
        """Of one turn: the record, and for each input its elements in pinned memory and where they go."""
        start = turn * (self._given_end + self._small_bytes)
        places = {}
        for name, id in self.plan.inputs:
            type, offset = self.plan.buffers[id].type, self._offsets[id]
            count = evaluate(type.elements, self.plan.sizes)
            places[name] = self._pinned.view(start + offset, count, type.dtype.numpy), offset
        return self._pinned.view(start, record_words(self.plan), np.dtype(np.uint64)), places

    def _held(self, name: str) -> CudaArray:
        found = self._state.slot(name).on(self._device.memory)
        assert isinstance(found, CudaArray), "it is the GPU's memory"
        return found

    def address(self, id: int) -> int:
        """Where a buffer is."""
        buffer = self.plan.buffers[id]
        if buffer.space is Space.STATE:
            return self._states[id].address
        if buffer.space is Space.ARENA:
            return self._scratch.arena.address + buffer.offset
        return self._own.address + self._offsets[id]

    def place_scratch(self) -> None:
        """The arena is elsewhere: the graphs have addresses of the old one."""
        self._graphs = {}
        if self._epochs is not None:
            self._epochs.forget_graphs()

    # -- a step --------------------------------------------------------------------------------------------------

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar; one that the plan does not use is ignored."""
        self._scalars.set(name, value)

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a launch count as an update?  Not where the output `unless` is not 0; `stop` ends a slice there."""
        self._advances, self._unless, self._stop = advances, unless, stop

    def staging(self, name: str) -> AnyArray:
        return self._staging[name]

    def bind(self, name: str, array: AnyArray) -> None:
        """Give the next launch an input, which copies it."""
        self._inputs[name] = array

    def launch(self, sizes: Mapping[str, int]) -> CudaTicket:
        """Copy the inputs, queue the step, and have its small outputs brought back behind it."""
        check_indices(self.plan, self._inputs, sizes)
        self._gpu.enter()
        self._refresh()
        turn = self._next_turn()
        self._copy_inputs(turn, sizes)
        self._ready_graph(sizes).launch()
        self._copy_outputs(turn)
        ticket = self._last = CudaTicket(self, turn, sizes)
        self._tickets[turn] = weakref.ref(ticket)
        state = self._state
        state.family.version += bool(self.plan.updated)
        self._seen = state.family.version
        if self._advances and (self._unless is None or not ticket.read(self._unless)):
            state.step += 1
        return ticket

    def _next_turn(self) -> int:
        """A place on the host for inputs and small outputs, which the launch that had it last has done with."""
        turn = self._turn = (self._turn + 1) % self._turns
        before = self._tickets[turn]
        if before is not None:
            held = before()
            if held is not None:
                held.resolve()  # somebody may still read it
            else:
                self._events[turn].wait()
        return turn

    def _refresh(self) -> None:
        """Bring what somebody else has changed since, and the second forms of states."""
        family = self._state.family
        if family.version == self._seen:
            return
        if family.spread:
            for name, _ in self.plan.states:
                self._state.slot(name).bring(self._device.memory.kind, name in self.plan.updated)
        for buffer in self.plan.buffers:
            if buffer.space is Space.COPY:
                assert buffer.source is not None, "a copy is one of a state"
                state = self._states[buffer.source].read()
                turned = state.T if buffer.turned else state
                self._own.write(self._offsets[buffer.id], np.ascontiguousarray(turned.astype(buffer.type.dtype.numpy)))
        self._seen = family.version

    def _copy_inputs(self, turn: int, sizes: Mapping[str, int]) -> None:
        """The record and the inputs: through pinned memory, one copy where they are small."""
        start, state = turn * (self._given_end + self._small_bytes), self._state
        record, places = self._places[turn]
        self._fill(record, sizes, state.step)
        pieces = [(0, self._record_bytes)]
        for name, (place, offset) in places.items():
            array = self._inputs[name]
            place[: array.size] = array.reshape(-1)
            pieces.append((offset, array.nbytes))
        for offset, size in [(0, self._given_end)] if self._given_end <= TOGETHER else pieces:
            if size:
                to, of = self._own.address + offset, self._pinned.address + start + offset
                self._gpu.copy_in(to, of, size)

    def _fill(self, record: AnyArray, sizes: Mapping[str, int], step: int) -> None:
        """What a step is told."""
        write_record(
            record,
            self.plan,
            sizes,
            self._scalars.slots(sizes, step, self._state.epoch),
            (self._place.where.seed % 2**64, step, 0, 0),
        )

    def _copy_outputs(self, turn: int) -> None:
        if self._small_bytes:
            to = self._pinned.address + turn * (self._given_end + self._small_bytes) + self._given_end
            self._gpu.copy_out(to, self._own.address + self._small_start, self._small_bytes)
        self._events[turn].record()

    def graph_key(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """What a graph is for: any sizes, but where a library is told them."""
        return tuple(sizes[s] for s in self.plan.symbols) if self.has_library else ()

    def _ready_graph(self, sizes: Mapping[str, int]) -> Graph:
        key = self.graph_key(sizes)
        if key not in self._graphs:
            step = self.placed(self.address, self._own.address)
            self._graphs[key] = Graph(self._gpu, lambda nodes: self._launches.add(self._order(nodes), step, sizes))
        return self._graphs[key]

    def _order(self, nodes: Nodes) -> Order:
        if self.recorder is None:
            return Order(nodes, self.plan)
        from wholestep.compiler.backends.cuda.recorder import InTurn  # only a profile reads what was noted

        return InTurn(nodes, self.plan, self.recorder, self._gpu)

    def placed(self, address: Callable[[int], int], record: int, elsewhere: frozenset[int] = frozenset()) -> Placed:
        """Where the kernels of a step find things."""
        arena = self._scratch.arena.address
        workspace = arena + self.plan.arena_bytes - workspace_bytes(self.plan.kernels)
        scratch = arena + arena_end(self.plan)
        return Placed(address, record, scratch, self._scratch.counters.address, workspace, elsewhere)

    def add_step(self, order: Order, placed: Placed, sizes: Mapping[str, int]) -> None:
        """Put the kernels of one step into a graph."""
        self._launches.add(order, placed, sizes)

    def replay(self, steps: int) -> float:
        """Launch the step over the inputs that lie on the GPU again; the seconds that it took by the GPU's clock."""
        graph = self._ready_graph(self.plan.sizes)
        first, last = Event(self._gpu, timed=True), Event(self._gpu, timed=True)
        first.record()
        for _ in range(steps):
            graph.launch()
        last.record()
        last.wait()
        return last.milliseconds_since(first) / 1e3

    # -- what it leaves ------------------------------------------------------------------------------------------

    def output(self, name: str, turn: int, sizes: Mapping[str, int], latest: bool) -> AnyArray:
        """A copy of an output of a launch that is done."""
        buffer = self.plan.buffers[dict(self.plan.outputs)[name]]
        shape = [evaluate(e, sizes) for e in self.outputs[name].shape]
        if buffer in self._small:
            start = turn * (self._given_end + self._small_bytes) + self._given_end
            offset = start + self._offsets[buffer.id] - self._small_start
            return self._pinned.view(offset, prod(shape), buffer.type.dtype.numpy).reshape(shape).copy()
        assert latest, "a launch whose large outputs are read later is kept before the next one"
        if buffer.space is Space.STATE:
            return self._states[buffer.id].read().reshape(shape)
        found = np.empty(shape, buffer.type.dtype.numpy)
        self._own.read(self._offsets[buffer.id], found)
        return found

    def is_latest(self, ticket: CudaTicket) -> bool:
        return ticket is self._last

    def event(self, turn: int) -> Event:
        return self._events[turn]

    def wait(self) -> None:
        """Until every launch is done."""
        self._gpu.wait()

    def loss(self) -> float:
        return self._last.loss()

    def read(self, name: str) -> AnyArray:
        return self._last.read(name)

    def keep(self) -> Ticket:
        return self._last.keep()

    # -- many steps ----------------------------------------------------------------------------------------------

    def epoch(self, epoch: Epoch) -> Iterator[Slice]:
        """Steps over the rows of an epoch: by itself where its data fits the GPU, else launch by launch."""
        if self._unless is None and self.plan.outputs:
            if self._epochs is None:
                module = self._device.gather(self._place.where.options)
                self._epochs = Epochs(self, self._gpu, module.function("ws_gather"), module)
            if self._epochs.takes(epoch):
                return self._epochs.run(epoch)
        return epoch_of_launches(self, epoch, self._unless if self._stop else None)

    @property
    def launches(self) -> int:
        """Kernels of a step."""
        return self._launches.count

    def begin_slice(self, epoch: Epoch) -> None:
        """Before steps of an epoch: states as they are now, and what every step is given."""
        self._gpu.enter()
        self._refresh()
        self._ahead = 0  # steps whose records were written since
        for name, array in epoch.whole.items():
            self._own.write(self._offsets[dict(self.plan.inputs)[name]], array)

    def write_records(self, records: AnyArray, epoch: Epoch, update: int) -> None:
        """The records of the next steps of a slice, beginning with an update; only the last may be a smaller one."""
        count = len(records)
        updates, step = np.arange(update, update + count), self._state.step + self._ahead * self._advances
        records[:, 0], records[:, 1] = self._place.where.seed % 2**64, step + self._advances * np.arange(count)
        records[:, 2], records[:, 3] = updates * epoch.batch, epoch.batch
        records[-1, 3] = epoch.rows_of(update + count - 1)
        sizes, last = epoch.sizes_of(update), epoch.sizes_of(update + count - 1)
        whole = count if last is sizes or count == 1 else count - 1
        for rows, own in ((slice(0, whole), sizes), (slice(whole, count), last)):
            if rows.start < rows.stop:
                records[rows, 4 : 4 + len(self.plan.symbols)] = [own[s] for s in self.plan.symbols]
                steps = [int(step) for step in records[rows, 1]]
                table = self._scalars.table(own, steps, self._state.epoch)
                records[rows, HEAD : HEAD + self.plan.slots].view(np.float64)[:] = table
        self._ahead += count

    def end_slice(self, sizes: Mapping[str, int], loss: float) -> None:
        """After steps of an epoch, whose last one is the program's last launch."""
        if self._advances:
            self._state.step += self._ahead
        self._state.family.version += bool(self.plan.updated)
        self._seen = self._state.family.version
        turn = self._next_turn()
        self._copy_outputs(turn)
        name, id = self.plan.outputs[0]
        kept = {name: np.array(loss, self.plan.buffers[id].type.dtype.numpy)}
        self._last = CudaTicket(self, turn, sizes, kept)
        self._tickets[turn] = weakref.ref(self._last)
