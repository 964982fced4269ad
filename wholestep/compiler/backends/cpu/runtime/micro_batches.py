"""Gradient accumulation on the CPU: the programs of a step run for each micro-batch of a batch in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_void_p
from dataclasses import dataclass
from functools import partial
from typing import Any

from wholestep.compiler.backend import Epoch, LoadContext, MicroBatchShape
from wholestep.compiler.backends.common.program import CombinedProgram
from wholestep.compiler.backends.common.rank_shares import SliceLength, lockstep_group
from wholestep.compiler.backends.cpu.runtime import library as native
from wholestep.compiler.backends.cpu.runtime.launch_handles import NativeProgram
from wholestep.compiler.backends.cpu.runtime.program import CpuProgram, bounds_of
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import Region


@dataclass(frozen=True)
class BoundPhase:
    """A program of a step and its inputs: those divided into micro-batches, and those passed completely."""

    program: CpuProgram
    rows: tuple[str, ...]
    complete: tuple[str, ...]
    inputs: ctypes.Array[native.LoopInput]


class MicroBatchProgram(NativeProgram, CombinedProgram):
    """The programs of a step as one program.  `plan` is the callers' view: inputs as large as all micro-batches."""

    def __init__(self, plan: Plan, programs: Sequence[CpuProgram], place: LoadContext, shape: MicroBatchShape) -> None:
        super().__init__(plan, programs, programs[-1])
        self.shape, self._state = shape, place.state
        self._library, self.threads = programs[0].library, programs[0].threads
        group = place.where.group
        ranks = group if any(lockstep_group(group, p.plan) for p in programs) else None
        self.pace = SliceLength(ranks)
        types = {name: plan.buffers[id].type for name, id in plan.inputs}
        self._cut = {name for name, type in types.items() if shape.is_cut(type.shape)}
        self._types = types
        self._phases = [self._phase(p) for p in programs]
        self._native = (native.NativePhase * len(programs))(*(self._as_native(p) for p in self._phases))
        self._addresses = (c_void_p * max(1, len(types)))()
        self._slots = {name: i for i, name in enumerate(types)}
        self._bounded: Mapping[str, int] | None = None  # the sizes for which the bounds were computed
        self._stage()
        self.count_steps(True)

    def _phase(self, program: CpuProgram) -> BoundPhase:
        names = [name for name, _ in program.plan.inputs]
        rows = tuple(n for n in names if n in self._cut)
        return BoundPhase(program, rows, tuple(n for n in names if n not in self._cut), program.rows_of_inputs(rows))

    def _as_native(self, phase: BoundPhase) -> native.NativePhase:
        native_phase = phase.program.as_phase(self.shape.dims, once=phase is self._phases[-1])
        native_phase.inputs, native_phase.input_count = phase.inputs, len(phase.rows)
        return native_phase

    def _stage(self) -> None:
        """Allocate staging memory for inputs that arrive in another dtype or layout."""
        sizes = {n: t.bytes(self.plan.sizes) for n, t in self._types.items()}
        self._region, offset = Region(sum(-(-s // 64) * 64 for s in sizes.values())), 0
        self.own_bytes, staging = self._region.size, dict[str, AnyArray]()
        for name, type in self._types.items():
            staging[name] = self._region.view(offset, sizes[name] // type.dtype.size, type.dtype.numpy)
            offset += -(-sizes[name] // 64) * 64
        self._staging = staging

    def stored_output(self, name: str) -> AnyArray:
        """The flat array of an output."""
        return self._phases[-1].program.stored_output(name)

    # -- running -------------------------------------------------------------------------------------------------

    def bind(self, name: str, array: AnyArray) -> None:
        """Let the next step read an input in place, without a copy."""
        self._addresses[self._slots[name]] = array.ctypes.data

    def launch(self, sizes: Mapping[str, int]) -> MicroBatchProgram:
        """Run one step to completion."""
        self.count(self.pace.measure(self.prepare(sizes)))
        self.show()
        return self

    def prepare(self, sizes: Mapping[str, int]) -> Callable[[], int]:
        """Prepare a step, and return its native call."""
        if sizes is not self._bounded:
            self._bounds = bounds_of(self.plan, sizes, self._addresses, self._slots)
            self._bounded = sizes
        self._place_whole(sizes)
        for phase in self._phases:
            for item, name in zip(phase.inputs, phase.rows, strict=False):
                type = self._types[name]
                item.source = self._addresses[self._slots[name]]
                item.row_bytes = type.bytes(sizes) // sizes[self.shape.batch]
        rows = sizes[self.shape.batch]
        loop = self._loop_over(rows, rows)
        loop.steps, loop.bounds, loop.bound_count = 1, addressof(self._bounds), len(self._bounds)
        loop.step = self._state.step
        self._running = loop
        return partial(self._library.run_micro_batches, loop)

    def _place_whole(self, sizes: Mapping[str, int]) -> None:
        changed = self._state.family.version != self._seen_version
        for phase in self._phases:
            if changed:
                phase.program.sync_states()
            phase.program.set_sizes(sizes)
            for name in phase.complete:
                phase.program.bind_address(name, self._addresses[self._slots[name]])
            phase.program.set_epoch()

    def loop_of(self, epoch: Epoch) -> native.MicroBatchLoop:
        """The native loop's description of an epoch, without the start of a slice."""
        loop = self._loop_over(epoch.rows, epoch.batch)
        loop.seconds = self.pace.seconds
        if epoch.order is not None:
            loop.order_kind, loop.order_epoch, loop.order_seed = native.SHUFFLED, epoch.order, epoch.seed
        return loop

    def prepare_slice(self, epoch: Epoch, loop: Any, losses: AnyArray, done: int, most: int) -> Callable[[], int]:
        """Prepare a slice, and return its native call."""
        self._place_sources(epoch)
        self.place_slice(loop, epoch, losses, done, most)
        loop.step = self._state.step
        self._running = loop
        return partial(self._library.run_micro_batches, loop)

    def _place_sources(self, epoch: Epoch) -> None:
        for name, array in epoch.whole.items():
            self.bind(name, array)
        self._place_whole(epoch.sizes)
        for phase in self._phases:
            for item, name in zip(phase.inputs, phase.rows, strict=False):
                source = epoch.sources[name]
                item.source, item.row_bytes = source.ctypes.data, source.nbytes // len(source)

    def _loop_over(self, rows: int, batch: int) -> native.MicroBatchLoop:
        last = self._phases[-1].program.plan
        loss = last.buffers[last.outputs[0][1]]
        self._loss = (ctypes.c_double * 1)()
        part = min(self.shape.part, batch)
        return native.MicroBatchLoop(
            phases=self._native,
            phase_count=len(self._phases),
            loss=self.stored_output(last.outputs[0][0]).ctypes.data,
            refused=None if self._refused is None else self._refused.ctypes.data,
            losses=ctypes.addressof(self._loss),
            rows=rows,
            batch=batch,
            part=part,
            order_kind=native.SEQUENTIAL,
            loss_is_double=loss.type.dtype.size == 8,
            stop_on_refusal=self._stop,
            threads=self.threads,
        )

    def count_slice(self, steps: int) -> None:
        """Advance the state's counters by the steps that were run."""
        if self._advances:
            self._state.step = self._running.step
            self._state.family.version += max(steps, 1)

    count = count_slice
