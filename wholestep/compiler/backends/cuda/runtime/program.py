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
    IndexRefusedError,
    Launch,
    LoadContext,
    StepRange,
    do_nothing,
    epoch_of_launches,
)
from wholestep.compiler.backends.common.rank_shares import Pace, RankShare, lockstep_group, takes_part
from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.driver import CudaEvent, CudaModule, DeviceMemory, Gpu
from wholestep.compiler.backends.cuda.driver.host_copies import HostCopies
from wholestep.compiler.backends.cuda.driver.memory import CudaArray, CudaMemory, CudaScratch
from wholestep.compiler.backends.cuda.driver.nvrtc import compile_kernels, compile_source
from wholestep.compiler.backends.cuda.driver.staging_ring import DeferredOutput, Records, StagingRing, StagingSlot
from wholestep.compiler.backends.cuda.runtime.collectives import Collectives, Line
from wholestep.compiler.backends.cuda.runtime.epochs import Epochs
from wholestep.compiler.backends.cuda.runtime.half_copies import HalfCopies
from wholestep.compiler.backends.cuda.runtime.launch_handles import CudaTicket
from wholestep.compiler.backends.cuda.runtime.launch_list import Gathering, Launches, Order, Placed
from wholestep.compiler.backends.cuda.runtime.persistent_program import Persistent, persistent_of
from wholestep.compiler.backends.cuda.runtime.program_memory import is_small, lay_out
from wholestep.compiler.backends.cuda.runtime.scalar_prologue import PrologueScalars
from wholestep.compiler.backends.cuda.target import begins_early
from wholestep.compiler.backends.gpu.kernel_schedule import calls_library
from wholestep.compiler.backends.gpu.render.source import GpuSource, gather_launch, native, render
from wholestep.compiler.backends.gpu.schedule import arena_end
from wholestep.compiler.ir.types import Extent, TensorType, evaluate
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.background import Background
from wholestep.compiler.runtime.cache.content_store import cache_of
from wholestep.compiler.runtime.state.storage import StateMemory
from wholestep.options import CompileOptions

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.runtime.profiler import GpuKernelTimer
    from wholestep.compiler.runtime.state.partitioned_state import PartsMemory

# Launches of a step.  Of a longer one, copies are a small part and a graph for each turn a large one, and branches of
# its graph cost more than they hide.
FEW_LAUNCHES = 64


def bounds_of(plan: Plan) -> list[tuple[str, np.dtype[Any], Extent]]:
    """Inputs that are indices: the name, an unsigned dtype of their size, and what all must be below."""
    types = {name: plan.buffers[id].type.dtype.numpy for name, id in plan.inputs}
    return [(b.input, np.dtype(f"u{types[b.input].itemsize}"), b.size) for b in plan.bounds if b.is_plain]


def _recorder(gpu: Gpu) -> GpuKernelTimer:
    from wholestep.compiler.backends.cuda.runtime.profiler import GpuKernelTimer  # only a profile reads what was noted

    return GpuKernelTimer(gpu)


class Holder(Protocol):
    """What a program asks its device for."""

    gpu: Gpu
    memory: CudaMemory

    @property
    def architecture(self) -> str:
        """What code is compiled for."""

    def moves(self, options: CompileOptions) -> CudaModule:
        """The kernels that fetch what a launch is given, and the rows of an update."""

    def copies(self, options: CompileOptions) -> CudaModule:
        """The kernel that makes half forms of states."""

    def ranks(self, options: CompileOptions) -> CudaModule:
        """The kernels that add what ranks send."""


class CudaProgram:
    """A plan on a GPU."""

    synchronous = False

    def __init__(
        self, device: Holder, plan: Plan, place: LoadContext, meanwhile: Callable[[], None] = do_nothing
    ) -> None:
        group = place.where.group if takes_part(plan) else None
        assert group is None or isinstance(group, Line), f"ranks by {group.engine} exchange on CPUs"
        self.has_library, self.begins_early = calls_library(plan), begins_early(device.architecture)
        self.share = RankShare(plan, group, self.has_library)
        # `plan` is what callers see, `_plan` that of this rank.
        self._plan, self.plan, self._place, self._state, self._device = (
            plan,
            self.share.plan,
            place,
            place.state,
            device,
        )
        self._gpu, self._line = device.gpu, group
        self.host_copies = HostCopies(place.where.threads, place.where.options)
        together = lockstep_group(group, plan)
        self.pace = None if together is None else Pace(together)
        assert isinstance(place.scratch, CudaScratch), "programs of a GPU share its scratch memory"
        self._scratch = place.scratch
        self._modules: list[CudaModule] = []
        self.functions = self._compile_kernels(meanwhile)
        collectives = Collectives(group, lambda: device.ranks(place.where.options))
        self._launches = Launches(self._gpu, plan, self._render, self.functions, collectives)
        self.outputs: Mapping[str, TensorType] = {name: plan.buffers[id].type for name, id in plan.outputs}
        self.large_outputs = [name for name, id in plan.outputs if not is_small(plan.buffers[id])]
        self._scalars = PrologueScalars(plan)
        # Of steps one by one; of epochs, where a batch is smaller and where it is whole.
        self._records, *self._epoch_records = (Records(plan, self._scalars, place.where.seed) for _ in range(3))
        self._lay_out()
        self._epochs: Epochs | None = None
        self.recorder = _recorder(self._gpu) if place.profile else None
        self._graphs: dict[tuple[int | None, tuple[int, ...]], CudaGraph] = {}
        self._ready: dict[int, CudaGraph] = {}  # by turn, of the sizes of the last launch
        self._sizes: Mapping[str, int] | None = None  # of the last launch
        self._last = CudaTicket(self, self._exchange.next()[1], {})
        self._seen = -1
        self.count_steps(bool(plan.updated))
        self._scratch.users.add(self)
        if group is not None:
            group.users.add(self)

    def _compile_kernels(self, meanwhile: Callable[[], None]) -> Mapping[str, Any]:
        """The kernels by name, compiled while something else is done."""
        device, options, found = self._device, self._place.where.options, dict[str, Any]()
        coming = Background(lambda: compile_source(self._render, device.architecture, cache_of(options)))
        meanwhile()
        for names, code in coming.result():
            self._modules.append(CudaModule(self._gpu, code))
            found |= {name: self._modules[-1].function(name) for name in names}
        return found

    @cached_property
    def _render(self) -> GpuSource:
        return render(self._plan, together=self._gpu.multiprocessors)

    @property
    def source(self) -> str:
        """The kernels that run."""
        return self._render.text

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def mapped_bytes(self) -> int:
        """Its own bytes on the GPU; once it has run epochs, also those that only they need."""
        return self._own.size + (0 if self._epochs is None else self._epochs.mapped_bytes)

    def _lay_out(self) -> None:
        """Make room for what is this program's alone."""
        plan, layout = self._plan, lay_out(self._plan)
        self._offsets = layout.offsets
        self._own = DeviceMemory(self._gpu, layout.end)
        for id, data in plan.constants:
            self._own.write(self._offsets[id], np.frombuffer(data, np.uint8))
        few = self.launches <= FEW_LAUNCHES
        self._in_line = not few and self._line is None  # what ranks send goes beside what is computed
        # Where it is profiled, one graph has all launches: another would be built while times are noted.
        is_short = few and not self.has_library and not self._place.profile
        self._exchange = StagingRing(self._gpu, plan, layout, self._own, is_short, self.host_copies)
        self._staging = {
            name: np.empty(evaluate(plan.buffers[id].type.elements, self.plan.sizes), plan.buffers[id].type.dtype.numpy)
            for name, id in plan.inputs
        }
        self._inputs: dict[str, AnyArray] = {}
        self._bounds = bounds_of(plan)
        self._parts = self._memories_of_parts()
        self._states = {id: self._state_memory(name) for name, id in plan.states}
        self._copies = HalfCopies(self._gpu, plan, self._own, self._offsets, self._states)

    def _memories_of_parts(self) -> Mapping[str, PartsMemory]:
        """Where states are that ranks have divided among them."""
        divided = [buffer for _, id in self._plan.states if (buffer := self._plan.buffers[id]).is_part]
        if not divided:
            return {}
        from wholestep.compiler.runtime.state.partitioned_state import memories_of_parts  # most have none

        assert self._line is not None, "a rank that is alone has no parts"
        return memories_of_parts(divided, self._device.memory, self._line)

    def _memory_of(self, name: str) -> StateMemory:
        return self._parts.get(name, self._place.memory or self._device.memory)

    def _state_memory(self, name: str) -> CudaArray:
        found: Any = self._state.slot(name).on(self._memory_of(name))
        if name in self._parts:
            assert self._line is not None
            found = found.of[self._line.rank]
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
        self.forget_graphs()

    def forget_graphs(self) -> None:
        """Let go of graphs: addresses have changed, or those who exchange are leaving."""
        self._graphs, self._ready, self._sizes = {}, {}, None
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
        """Give the step its inputs and queue it; its small outputs are brought back."""
        if sizes is not self._sizes:
            self._resize(sizes)
        if self._limits:
            self._check_indices()
        self._gpu.enter()
        state, exchange = self._state, self._exchange
        if state.family.version != self._seen:
            self._refresh()
        if self._line is not None:
            self._line.step = state.step
        number, turn = exchange.next()
        own, inputs = self._own_sizes, self._inputs
        if self.share.ranks > 1:
            inputs = {name: self.share.of(name, array) for name, array in inputs.items()}
        exchange.give(turn, self._records.row(own, state.step, state.epoch), inputs, own)
        (self._ready.get(number) or self._ready_graph(number, sizes)).launch()
        exchange.take(turn)
        ticket = self._last = CudaTicket(self, turn, sizes)
        turn.ticket = weakref.ref(ticket)
        if self.plan.updated:
            state.family.version += 1
        self._seen = state.family.version
        if self._advances and (self._unless is None or not ticket.read(self._unless)):
            state.step += 1
        return ticket

    def _resize(self, sizes: Mapping[str, int]) -> None:
        """Note what a launch needs of its sizes: those after it mostly have the same."""
        self._own_sizes = self.share.sizes(sizes)
        self._limits = [(name, unsigned, evaluate(limit, sizes)) for name, unsigned, limit in self._bounds]
        self._ready, self._sizes = {}, sizes

    def _check_indices(self) -> None:
        """IndexRefusedError where an input holds an index outside its bound."""
        for name, unsigned, limit in self._limits:
            indices = self._inputs[name].view(unsigned)  # of which negative ones are large
            if indices.size and indices.item(indices.argmax()) >= limit:
                raise IndexRefusedError(name)

    def _refresh(self) -> None:
        """Bring what somebody else has changed since, and the second forms of states."""
        family = self._state.family
        if family.spread:
            for name, _ in self.plan.states:
                self._state.slot(name).bring(self._memory_of(name).kind, name in self.plan.updated)
        self._copies.renew(lambda: self._device.copies(self._place.where.options))
        self._seen = family.version

    def graph_key(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """What a graph is for: any sizes, but where a library is told them; ranks make a new one together."""
        return tuple([sizes[s] for s in self.plan.symbols]) if self.has_library else ()

    def _ready_graph(self, number: int, sizes: Mapping[str, int]) -> CudaGraph:
        """The graph of a turn, for the sizes of the last launch."""
        key = number if self._exchange.fetches else None, self.graph_key(sizes)
        graph = self._ready[number] = self._graphs.get(key) or self._new_graph(key, sizes)
        return graph

    def _new_graph(self, key: tuple[int | None, tuple[int, ...]], sizes: Mapping[str, int]) -> CudaGraph:
        """The graph of a turn."""

        def build(nodes: Nodes) -> None:
            self.add_launch(self.order_of(nodes), key[0], sizes)

        graph = self._graphs[key] = self.new_graph(build)
        return graph

    def new_graph(self, build: Callable[[Nodes], None]) -> CudaGraph:
        """A graph of kernels of this program; where it is profiled, their times are noted."""
        given = self._gpu, build, self.begins_early, lambda: self._copies_between_steps("ws_fill_bytes")
        return CudaGraph(*given) if self.recorder is None else self.recorder.graph(*given)

    def order_of(self, nodes: Nodes) -> Order:
        """In which order a graph is built; where the program is profiled, one thing after the other."""
        if self.recorder is None:
            return Order(nodes, self._plan, self._in_line)
        from wholestep.compiler.backends.cuda.runtime.profiler import InTurn  # only a profile reads what was noted

        return InTurn(nodes, self._plan, self.recorder, self._gpu)

    def add_launch(self, order: Order, turn: int | None, sizes: Mapping[str, int]) -> None:
        """Put a launch into a graph: it begins with fetching what its turn is given, or has inputs that are there."""
        exchange = self._exchange

        def address(id: int) -> int:
            own = None if turn is None else exchange.address(turn, id)
            return self.address(id) if own is None else own

        if turn is not None:
            exchange.add_fetch(order, turn, self._copies_between_steps("ws_fetch"))
        self.add_step(order, self.placed(address, self._own.address), sizes)
        if turn is not None:
            exchange.add_leave(order, turn, self._copies_between_steps("ws_leave"))

    def _copies_between_steps(self, name: str) -> Any:
        return self._device.moves(self._place.where.options).function(name)

    def placed(self, address: Callable[[int], int], record: int, elsewhere: frozenset[int] = frozenset()) -> Placed:
        """Where the kernels of a step find things."""
        arena = self._scratch.arena.address
        scratch = arena + arena_end(self._plan)
        return Placed(address, record, scratch, self._scratch.counters.address, arena, elsewhere)

    def add_step(
        self, order: Order, placed: Placed, sizes: Mapping[str, int], gathering: Gathering | None = None
    ) -> None:
        """Put the kernels of one step into a graph."""
        self._launches.add(order, placed, self.share.sizes(sizes), gathering)

    def gathering(self, blocks: int) -> Gathering | None:
        """The launch that may gather the rows of the next step besides; it is compiled when epochs first ask for it."""
        found = gather_launch(self._plan, self._render, blocks)
        if found is None:
            return None
        number, text, launch = found
        body = f"{native('gather.h')}\n{text}"
        code = compile_kernels(body, self._device.architecture, cache_of(self._place.where.options))
        self._modules.append(CudaModule(self._gpu, code))
        return Gathering(number, launch, self._modules[-1].function(launch.function))

    def persistent(self) -> Persistent | None:
        """The kernel of many steps, where the plan has one; it is compiled when epochs first ask for it."""
        return persistent_of(self, self._gpu, self._device.architecture, cache_of(self._place.where.options))

    def replay(self, steps: int) -> float:
        """Launch the step over the inputs that lie on the GPU again; the seconds that it took by the GPU's clock."""
        key = None, self.graph_key(self.plan.sizes)
        graph = self._graphs.get(key) or self._new_graph(key, self.plan.sizes)
        first, last = CudaEvent(self._gpu, timed=True), CudaEvent(self._gpu, timed=True)
        first.record()
        for _ in range(steps):
            graph.launch()
        last.record()
        last.wait()
        return last.milliseconds_since(first) / 1e3

    # -- what it leaves ------------------------------------------------------------------------------------------

    def output(self, name: str, turn: StagingSlot, sizes: Mapping[str, int], latest: bool) -> AnyArray:
        """A copy of an output of a launch that is done."""
        buffer = self.plan.buffers[dict(self.plan.outputs)[name]]
        shape = [evaluate(e, sizes) for e in self.outputs[name].shape]
        if is_small(buffer):
            return self._exchange.output(turn, buffer.id, prod(shape)).reshape(shape).copy()
        assert latest, "a launch whose large outputs are read later is kept before the next one"
        if buffer.space is Space.STATE:
            return self._states[buffer.id].read().reshape(shape)
        found = np.empty(shape, buffer.type.dtype.numpy)
        self._own.read(self._offsets[buffer.id], found)
        return found

    def keep_output(self, name: str, sizes: Mapping[str, int]) -> DeferredOutput:
        """Have a large output of the last launch brought, before another one writes over it."""
        self._gpu.enter()
        buffer = self.plan.buffers[dict(self.plan.outputs)[name]]
        shape = [evaluate(e, sizes) for e in self.outputs[name].shape]
        return self._exchange.keep(self.address(buffer.id), shape, buffer.type.dtype.numpy)

    def is_latest(self, ticket: CudaTicket) -> bool:
        return ticket is self._last

    def wait(self) -> None:
        """Until every launch is done."""
        self._exchange.wait()

    def wait_for(self, turn: StagingSlot) -> None:
        """Until the launch that had a turn last is done."""
        self._exchange.wait_for(turn)

    def loss(self) -> float:
        return self._last.loss()

    def read(self, name: str) -> AnyArray:
        return self._last.read(name)

    def keep(self) -> Launch:
        return self._last.keep()

    # -- many steps ----------------------------------------------------------------------------------------------

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        """Steps over the rows of an epoch: by itself where its data fits the GPU, else launch by launch."""
        if self._unless is None and self.plan.outputs:
            if self._epochs is None:
                module = self._device.moves(self._place.where.options)
                self._epochs = Epochs(self, self._gpu, module.function("ws_gather"), module)
            if self._epochs.takes(epoch):
                return self._epochs.run(epoch)
        return epoch_of_launches(self, epoch, self._unless if self._stop else None, self.pace)

    @property
    def launches(self) -> int:
        """Kernels of a step."""
        return self._launches.count

    def begin_slice(self, epoch: Epoch) -> None:
        """Before steps of an epoch: states as they are now, and what every step is given."""
        self._gpu.enter()
        if self._line is not None:
            self._line.step = self._state.step
        if self._state.family.version != self._seen:
            self._refresh()
        self._ahead = 0  # steps whose records were written since
        for name, array in epoch.whole.items():
            self._own.write(self._offsets[dict(self.plan.inputs)[name]], array)

    def write_records(self, records: AnyArray, epoch: Epoch, update: int) -> None:
        """The records of the next steps of a slice, beginning with an update; only the last may be a smaller one."""
        count, step = len(records), self._state.step + self._ahead * self._advances
        sizes, last = epoch.sizes_of(update), epoch.sizes_of(update + count - 1)
        whole = count if last is sizes or count == 1 else count - 1
        for begin, end, found in ((0, whole, sizes), (whole, count, last)):
            if begin < end:
                made = self._epoch_records[found is epoch.sizes]
                steps = end - begin if self._advances else 1
                at, own = step + self._advances * begin, self.share.sizes(found)
                records[begin:end] = made.block(own, at, self._state.epoch, steps)
                first, records[begin:end, 3] = self.share.rows(epoch.rows_of(update + end - 1))
                records[begin:end, 2] = np.arange(update + begin, update + end) * epoch.batch + first
        self._ahead += count

    def end_slice(self, sizes: Mapping[str, int], loss: float) -> None:
        """After steps of an epoch, whose last one is the program's last launch."""
        if self._advances:
            self._state.step += self._ahead
        self._state.family.version += bool(self.plan.updated)
        self._seen = self._state.family.version
        _, turn = self._exchange.next()
        self._exchange.take(turn, everything=True)
        name, id = self.plan.outputs[0]
        kept = {name: np.array(loss, self.plan.buffers[id].type.dtype.numpy)}
        self._last = CudaTicket(self, turn, sizes, kept)
        turn.ticket = weakref.ref(self._last)
