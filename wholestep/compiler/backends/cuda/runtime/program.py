"""A plan on a GPU: kernels compiled by NVRTC, one CUDA graph launch per step, one arena of device memory.

A launch returns when its inputs are copied and the graph is enqueued; reading an output waits for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wholestep.compiler.backend import Epoch, IndexRefusedError, LoadContext, StepRange, do_nothing
from wholestep.compiler.backends.common.program import ProgramBase, staging_arrays
from wholestep.compiler.backends.common.rank_shares import RankShare, SliceLength, is_collective, lockstep_group
from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.driver import CudaEvent, CudaModule, DeviceMemory, Gpu
from wholestep.compiler.backends.cuda.driver.host_copies import HostCopies
from wholestep.compiler.backends.cuda.driver.memory import CudaArray, CudaMemory, CudaScratch
from wholestep.compiler.backends.cuda.driver.nvrtc import compile_kernels, compile_source
from wholestep.compiler.backends.cuda.driver.staging_ring import DeferredOutput, Records, StagingRing, StagingSlot
from wholestep.compiler.backends.cuda.runtime.collectives import Collectives, GpuProcessGroup
from wholestep.compiler.backends.cuda.runtime.device_init import HalfCopies
from wholestep.compiler.backends.cuda.runtime.epochs import Epochs
from wholestep.compiler.backends.cuda.runtime.launch_handles import CudaLaunch
from wholestep.compiler.backends.cuda.runtime.launch_list import Gathering, Launches, StepAddresses
from wholestep.compiler.backends.cuda.runtime.persistent_program import Persistent, persistent_of
from wholestep.compiler.backends.cuda.target import begins_early
from wholestep.compiler.backends.gpu.arena import arena_end
from wholestep.compiler.backends.gpu.kernel_schedule import calls_library
from wholestep.compiler.backends.gpu.launch_order import Order
from wholestep.compiler.backends.gpu.program_memory import is_small, lay_out
from wholestep.compiler.backends.gpu.render.source import GpuSource, gather_launch, native, render
from wholestep.compiler.backends.gpu.scalar_prologue import PrologueScalars
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import Extent, evaluate
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.background import Background
from wholestep.compiler.runtime.cache.content_store import open_cache
from wholestep.compiler.runtime.state.storage import StateMemory
from wholestep.options import CompileOptions

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.runtime.profiler import GpuKernelTimer
    from wholestep.compiler.runtime.state.partitioned_state import PartsMemory


def bounds_of(plan: Plan) -> list[tuple[str, np.dtype[Any], Extent]]:
    """Inputs that are indices: name, unsigned dtype of the same width, and exclusive upper bound."""
    types = {name: plan.buffers[id].type.dtype.numpy for name, id in plan.inputs}
    return [(b.input, np.dtype(f"u{types[b.input].itemsize}"), b.size) for b in plan.bounds if b.is_plain]


def _recorder(gpu: Gpu) -> GpuKernelTimer:
    from wholestep.compiler.backends.cuda.runtime.profiler import GpuKernelTimer  # imported here: only profiles need it

    return GpuKernelTimer(gpu)


class ProgramDevice(Protocol):
    """The interface of a device that its programs use."""

    gpu: Gpu
    memory: CudaMemory

    @property
    def architecture(self) -> str:
        """Architecture that code is compiled for."""

    def moves(self, options: CompileOptions) -> CudaModule:
        """Kernels that fetch the arguments of a launch and gather the rows of an update."""

    def copies(self, options: CompileOptions) -> CudaModule:
        """Kernel that computes half-precision copies of states."""

    def ranks(self, options: CompileOptions) -> CudaModule:
        """Kernels that add the data that ranks send."""


class CudaProgram(ProgramBase):
    """A loaded plan on a GPU."""

    synchronous = False

    def __init__(
        self, device: ProgramDevice, plan: Plan, place: LoadContext, meanwhile: Callable[[], None] = do_nothing
    ) -> None:
        group = place.where.group if is_collective(plan) else None
        assert group is None or isinstance(group, GpuProcessGroup), (
            f"ranks connected by {group.engine!r} cannot communicate between GPUs"
        )
        self.has_library, self.begins_early = calls_library(plan), begins_early(device.architecture)
        self.share = RankShare(plan, group, self.has_library)
        super().__init__(self.share.plan)  # the callers' view of all ranks; `_plan` is this rank's plan
        self._plan, self._place, self._state, self._device = plan, place, place.state, device
        self._gpu, self._line = device.gpu, group
        self.host_copies = HostCopies(place.where.threads, place.where.options)
        lockstep = lockstep_group(group, plan)
        self.pace = None if lockstep is None else SliceLength(lockstep)
        assert isinstance(place.scratch, CudaScratch), "GPU programs use GPU scratch memory"
        self._scratch = place.scratch
        self._modules: list[CudaModule] = []
        self.functions = self._compile_kernels(meanwhile)
        collectives = Collectives(group, lambda: device.ranks(place.where.options))
        self._launches = Launches(self._gpu, plan, self._render, self.functions, collectives)
        self.large_outputs = [name for name, id in plan.outputs if not is_small(plan.buffers[id])]
        self._scalars = PrologueScalars(plan)
        # Step records: of single steps, of epochs with a smaller batch, and of epochs with a full batch.
        self._records, *self._epoch_records = (Records(plan, self._scalars, place.where.seed) for _ in range(3))
        self._lay_out()
        self._epochs: Epochs | None = None
        self.recorder = _recorder(self._gpu) if place.profile else None
        self._graphs: dict[tuple[int | None, tuple[int, ...]], CudaGraph] = {}
        self._ready: dict[int, CudaGraph] = {}  # by staging slot, for the sizes of the last launch
        self._sizes: Mapping[str, int] | None = None  # sizes of the last launch
        self._last = CudaLaunch(self, self._exchange.next()[1], {})
        self._seen = -1
        self.count_steps(bool(plan.updated))
        self._scratch.users.add(self)
        if group is not None:
            group.users.add(self)

    def _compile_kernels(self, meanwhile: Callable[[], None]) -> Mapping[str, Any]:
        """Kernel functions by name, compiled in the background while `meanwhile` runs."""
        device, options, functions = self._device, self._place.where.options, dict[str, Any]()
        compilation = Background(lambda: compile_source(self._render, device.architecture, open_cache(options)))
        meanwhile()
        for names, code in compilation.result():
            self._modules.append(CudaModule(self._gpu, code))
            functions |= {name: self._modules[-1].function(name) for name in names}
        return functions

    @cached_property
    def _render(self) -> GpuSource:
        return render(self._plan, together=self._gpu.multiprocessors)

    @property
    def source(self) -> str:
        """Source text of the kernels."""
        return self._render.text

    # -- memory --------------------------------------------------------------------------------------------------

    @property
    def mapped_bytes(self) -> int:
        """The program's own bytes on the GPU; after its first epoch, those that epochs need are included."""
        return self._own.size + (0 if self._epochs is None else self._epochs.mapped_bytes)

    def _lay_out(self) -> None:
        """Allocates the program's own memory."""
        plan, layout = self._plan, lay_out(self._plan)
        self._offsets = layout.offsets
        self._own = DeviceMemory(self._gpu, layout.end)
        for id, data in plan.constants:
            self._own.write(self._offsets[id], np.frombuffer(data, np.uint8))
        few = self.launches <= costs_of(plan).run.branched_launches
        # Is the graph linear?  With ranks it has branches, so that transfers overlap with computation.
        self._in_line = not few and self._line is None
        # If profiled, all slots share one graph: otherwise another would be built while times are recorded.
        is_short = few and not self.has_library and not self._place.profile
        self._exchange = StagingRing(self._gpu, plan, layout, self._own, is_short, self.host_copies)
        self._staging = staging_arrays(self.plan)
        self._bounds = bounds_of(plan)
        self._parts = self._memories_of_parts()
        self._states = {id: self._state_memory(name) for name, id in plan.states}
        self._copies = HalfCopies(self._gpu, plan, self._own, self._offsets, self._states)

    def _memories_of_parts(self) -> Mapping[str, PartsMemory]:
        """Memories of states that are partitioned among ranks."""
        divided = [buffer for _, id in self._plan.states if (buffer := self._plan.buffers[id]).is_part]
        if not divided:
            return {}
        from wholestep.compiler.runtime.state.partitioned_state import (
            memories_of_parts,
        )  # imported here: most plans have none

        assert self._line is not None, "partitioned states need a process group"
        return memories_of_parts(divided, self._device.memory, self._line)

    def _memory_of(self, name: str) -> StateMemory:
        return self._parts.get(name, self._place.memory or self._device.memory)

    def _state_memory(self, name: str) -> CudaArray:
        array: Any = self._state.slot(name).on(self._memory_of(name))
        if name in self._parts:
            assert self._line is not None
            array = array.of[self._line.rank]
        assert isinstance(array, CudaArray), "the state is on the GPU"
        return array

    def address(self, id: int) -> int:
        """Device address of a buffer."""
        buffer = self.plan.buffers[id]
        if buffer.space is Space.STATE:
            return self._states[id].address
        if buffer.space is Space.ARENA:
            return self._scratch.arena.address + buffer.offset
        return self._own.address + self._offsets[id]

    def place_scratch(self) -> None:
        """Releases graphs, which contain addresses of the old arena."""
        self.forget_graphs()

    def forget_graphs(self) -> None:
        """Releases graphs, because addresses have changed or the process group is closing."""
        self._graphs, self._ready, self._sizes = {}, {}, None
        if self._epochs is not None:
            self._epochs.forget_graphs()

    # -- a step --------------------------------------------------------------------------------------------------

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar; a scalar that the plan does not use is ignored."""
        self._scalars.set(name, value)

    def launch(self, sizes: Mapping[str, int]) -> CudaLaunch:
        """Writes the inputs, enqueues the step, and starts copying its small outputs to the host."""
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
        number, slot = exchange.next()
        own_sizes, inputs = self._own_sizes, self._inputs
        if self.share.ranks > 1:
            inputs = {name: self.share.of(name, array) for name, array in inputs.items()}
        exchange.give(slot, self._records.row(own_sizes, state.step, state.epoch), inputs, own_sizes)
        (self._ready.get(number) or self._ready_graph(number, sizes)).launch()
        exchange.take(slot)
        ticket = self._last = CudaLaunch(self, slot, sizes)
        slot.ticket = weakref.ref(ticket)
        if self.plan.updated:
            state.family.version += 1
        self._seen = state.family.version
        state.step += self.counts(ticket)
        return ticket

    def _resize(self, sizes: Mapping[str, int]) -> None:
        """Computes what depends on the sizes: consecutive launches mostly have the same."""
        self._own_sizes = self.share.sizes(sizes)
        self._limits = [(name, unsigned, evaluate(limit, sizes)) for name, unsigned, limit in self._bounds]
        self._ready, self._sizes = {}, sizes

    def _check_indices(self) -> None:
        """IndexRefusedError if an input has an index outside its bound."""
        for name, unsigned, limit in self._limits:
            indices = self._inputs[name].view(unsigned)  # as unsigned, negative ones are large
            if indices.size and indices.item(indices.argmax()) >= limit:
                raise IndexRefusedError(name)

    def _refresh(self) -> None:
        """Copies external state changes to the GPU, and recomputes half-precision copies."""
        family = self._state.family
        if family.spread:
            for name, _ in self.plan.states:
                self._state.slot(name).sync_to(self._memory_of(name).kind, name in self.plan.updated)
        self._copies.renew(lambda: self._device.copies(self._place.where.options))
        self._seen = family.version

    def graph_key(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Sizes that a graph is valid for, if a library needs them; else ().  All ranks build a new graph together."""
        return tuple([sizes[s] for s in self.plan.symbols]) if self.has_library else ()

    def _ready_graph(self, number: int, sizes: Mapping[str, int]) -> CudaGraph:
        """The graph of a staging slot, for the sizes of the last launch."""
        key = number if self._exchange.fetches else None, self.graph_key(sizes)
        graph = self._ready[number] = self._graphs.get(key) or self._new_graph(key, sizes)
        return graph

    def _new_graph(self, key: tuple[int | None, tuple[int, ...]], sizes: Mapping[str, int]) -> CudaGraph:
        """Builds the graph of a staging slot."""

        def build(nodes: Nodes) -> None:
            self.add_launch(self.order_of(nodes), key[0], sizes)

        graph = self._graphs[key] = self.new_graph(build)
        return graph

    def new_graph(self, build: Callable[[Nodes], None]) -> CudaGraph:
        """Builds a graph of this program's kernels; timed if it is profiled."""
        arguments = self._gpu, build, self.begins_early, lambda: self._copies_between_steps("ws_fill_bytes")
        return CudaGraph(*arguments) if self.recorder is None else self.recorder.graph(*arguments)

    def order_of(self, nodes: Nodes) -> Order:
        """The order with which a graph is built; serialised if the program is profiled."""
        if self.recorder is None:
            return Order(nodes, self._plan, self._in_line)
        # imported here: only profiles need it
        from wholestep.compiler.backends.cuda.runtime.profiler import SerialOrder

        return SerialOrder(nodes, self._plan, self.recorder, self._gpu)

    def add_launch(self, order: Order, turn: int | None, sizes: Mapping[str, int]) -> None:
        """Adds a launch to a graph, with a fetch from staging slot `turn`; if that is None, inputs are in place."""
        exchange = self._exchange

        def address(id: int) -> int:
            staged = None if turn is None else exchange.address(turn, id)
            return self.address(id) if staged is None else staged

        if turn is not None:
            exchange.add_fetch(order, turn, self._copies_between_steps("ws_fetch"))
        self.add_step(order, self.step_addresses(address, self._own.address), sizes)
        if turn is not None:
            exchange.add_leave(order, turn, self._copies_between_steps("ws_leave"))

    def _copies_between_steps(self, name: str) -> Any:
        return self._device.moves(self._place.where.options).function(name)

    def step_addresses(
        self, address: Callable[[int], int], record: int, elsewhere: frozenset[int] = frozenset()
    ) -> StepAddresses:
        """Addresses for the kernels of a step."""
        arena = self._scratch.arena.address
        scratch = arena + arena_end(self._plan)
        return StepAddresses(address, record, scratch, self._scratch.counters.address, arena, elsewhere)

    def add_step(
        self, order: Order, placed: StepAddresses, sizes: Mapping[str, int], gathering: Gathering | None = None
    ) -> None:
        """Adds the kernels of one step to a graph."""
        self._launches.add(order, placed, self.share.sizes(sizes), gathering)

    def gather_launch(self, blocks: int) -> Gathering | None:
        """The launch that can also gather the next step's rows; compiled when epochs first need it."""
        gather = gather_launch(self._plan, self._render, blocks)
        if gather is None:
            return None
        number, text, launch = gather
        body = f"{native('gather.h')}\n{text}"
        code = compile_kernels(body, self._device.architecture, open_cache(self._place.where.options))
        self._modules.append(CudaModule(self._gpu, code))
        return Gathering(number, launch, self._modules[-1].function(launch.function))

    def persistent(self) -> Persistent | None:
        """The persistent kernel, if the plan has one; compiled when epochs first need it."""
        return persistent_of(self, self._gpu, self._device.architecture, open_cache(self._place.where.options))

    def replay(self, steps: int) -> float:
        """Launches the step repeatedly over the inputs on the GPU; returns the seconds by the GPU's clock."""
        key = None, self.graph_key(self.plan.sizes)
        graph = self._graphs.get(key) or self._new_graph(key, self.plan.sizes)
        first, last = CudaEvent(self._gpu, timed=True), CudaEvent(self._gpu, timed=True)
        first.record()
        for _ in range(steps):
            graph.launch()
        last.record()
        last.wait()
        return last.milliseconds_since(first) / 1e3

    # -- outputs -------------------------------------------------------------------------------------------------

    def output(self, name: str, slot: StagingSlot, sizes: Mapping[str, int], latest: bool) -> AnyArray:
        """A copy of an output of a finished launch."""
        buffer = self.plan.buffers[dict(self.plan.outputs)[name]]
        shape = [evaluate(e, sizes) for e in self.outputs[name].shape]
        if is_small(buffer):
            return self._exchange.output(slot, buffer.id, prod(shape)).reshape(shape).copy()
        assert latest, "large outputs of an earlier launch must be kept before the next launch"
        if buffer.space is Space.STATE:
            return self._states[buffer.id].read().reshape(shape)
        array = np.empty(shape, buffer.type.dtype.numpy)
        self._own.read(self._offsets[buffer.id], array)
        return array

    def keep_output(self, name: str, sizes: Mapping[str, int]) -> DeferredOutput:
        """Starts copying a large output of the last launch, before the next one overwrites it."""
        self._gpu.enter()
        buffer = self.plan.buffers[dict(self.plan.outputs)[name]]
        shape = [evaluate(e, sizes) for e in self.outputs[name].shape]
        return self._exchange.keep(self.address(buffer.id), shape, buffer.type.dtype.numpy)

    def is_latest(self, ticket: CudaLaunch) -> bool:
        return ticket is self._last

    def wait(self) -> None:
        """Waits until every launch is done."""
        self._exchange.wait()

    def wait_for(self, turn: StagingSlot) -> None:
        """Waits until a staging slot's last launch is done."""
        self._exchange.wait_for(turn)

    # -- many steps ----------------------------------------------------------------------------------------------

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        """Runs an epoch: many steps per launch if possible, else one launch per step."""
        if self._unless is None and self.plan.outputs:
            if self._epochs is None:
                module = self._device.moves(self._place.where.options)
                self._epochs = Epochs(self, self._gpu, module.function("ws_gather"), module)
            if self._epochs.takes(epoch):
                return self._epochs.run(epoch)
        return super().epoch(epoch)

    @property
    def launches(self) -> int:
        """Launches per step."""
        return self._launches.count

    def begin_slice(self, epoch: Epoch) -> None:
        """Prepares the steps of an epoch: synchronises states, and writes the inputs that all steps share."""
        self._gpu.enter()
        if self._line is not None:
            self._line.step = self._state.step
        if self._state.family.version != self._seen:
            self._refresh()
        self._ahead = 0  # steps whose records were written in this slice
        for name, array in epoch.whole.items():
            self._own.write(self._offsets[dict(self.plan.inputs)[name]], array)

    def write_records(self, records: AnyArray, epoch: Epoch, update: int) -> None:
        """Writes the records of a slice's next steps, beginning at `update`; only the last batch may be smaller."""
        count, step = len(records), self._state.step + self._ahead * self._advances
        sizes, last = epoch.sizes_of(update), epoch.sizes_of(update + count - 1)
        full_batches = count if last is sizes or count == 1 else count - 1
        for begin, end, batch_sizes in ((0, full_batches, sizes), (full_batches, count, last)):
            if begin < end:
                source = self._epoch_records[batch_sizes is epoch.sizes]
                steps = end - begin if self._advances else 1
                at, own_sizes = step + self._advances * begin, self.share.sizes(batch_sizes)
                records[begin:end] = source.block(own_sizes, at, self._state.epoch, steps)
                first, records[begin:end, 3] = self.share.rows(epoch.rows_of(update + end - 1))
                records[begin:end, 2] = np.arange(update + begin, update + end) * epoch.batch + first
        self._ahead += count

    def end_slice(self, sizes: Mapping[str, int], loss: float) -> None:
        """Accounts for the steps of a slice, whose last one becomes the program's last launch."""
        if self._advances:
            self._state.step += self._ahead
        self._state.family.version += bool(self.plan.updated)
        self._seen = self._state.family.version
        _, slot = self._exchange.next()
        self._exchange.take(slot, everything=True)
        name, id = self.plan.outputs[0]
        outputs = {name: np.array(loss, self.plan.buffers[id].type.dtype.numpy)}
        self._last = CudaLaunch(self, slot, sizes, outputs)
        slot.ticket = weakref.ref(self._last)
