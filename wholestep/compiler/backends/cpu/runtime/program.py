"""A CPU program: a plan's compiled C code, loaded into this process and called once per step.

All addresses, sizes and scalars are written into C structures once; a step changes only what differs, so that its
overhead is one native call.
"""

from __future__ import annotations

import ctypes
import errno
import math
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, byref, c_char, c_double, c_long, c_void_p
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from wholestep.compiler.backend import Epoch, IndexRefusedError, LoadContext, check_indices
from wholestep.compiler.backends.common.rank_shares import (
    RankShare,
    SliceLength,
    is_collective,
    lockstep_group,
    native_group_address,
)
from wholestep.compiler.backends.cpu.layout.stored_layout import MEMORY, PANELS
from wholestep.compiler.backends.cpu.runtime import library as native
from wholestep.compiler.backends.cpu.runtime.launch_handles import NativeProgram, StepOutputs, StoredOutput
from wholestep.compiler.backends.cpu.runtime.object_loader import PlanCode
from wholestep.compiler.backends.cpu.runtime.scratch import CpuScratch
from wholestep.compiler.ir.type_rules.collectives import OWN, ROWS
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.memory.peak_memory import host_footprint, staging_bytes
from wholestep.compiler.plan.model.kernel import Buffer, Plan, Space
from wholestep.compiler.plan.model.layout import align_up
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import Region
from wholestep.compiler.runtime.state.storage import HostArray, StateMemory

if TYPE_CHECKING:
    from wholestep.compiler.backends.cpu.runtime.profiler import KernelLog


class CpuProgram(NativeProgram):
    """A plan in this process.  Everything a step needs is prepared here once; `launch` is one native call.

    The program is also the handle of its last launch, which is complete; the next launch overwrites its outputs.
    """

    def __init__(self, plan: Plan, place: LoadContext, code: PlanCode) -> None:
        group = place.where.group if is_collective(plan) else None
        self._share = RankShare(plan, group)
        plan, self.ranks = self._share.plan, self._share.ranks  # callers pass the rows of all ranks
        super().__init__(plan)
        self._place, self._state, self._group = place, place.state, group
        self._memory = place.memory or MEMORY
        alone = place.apart or place.where.threads == 1  # steps on one thread run on the caller's, without the pool
        self.threads = native.CALLING_THREAD if alone else place.where.threads
        self._parts: Mapping[str, StateMemory] = {}
        if parts := [b for b in plan.buffers if b.space is Space.STATE and b.is_part]:
            from wholestep.compiler.runtime.state.partitioned_state import memories_of_parts  # most programs need none

            assert group is not None, "a plan with sharded states needs a group"
            self._parts = memories_of_parts(parts, MEMORY, group)
        assert isinstance(place.scratch, CpuScratch), "a CPU program needs CPU scratch memory"
        self._scratch, self._code, self.library = place.scratch, code, code.library
        self.recorder = _recorder(code.path, place.where.threads) if place.profile else None
        self._allocate()
        self._make_call()
        self.place_scratch()
        self._scratch.users.add(self)

    @property
    def source(self) -> str:
        """The C source that runs."""
        return self._code.source.text

    def _allocate(self) -> None:
        """Allocate this program's own memory: copies, outputs, constants, input staging."""
        plan, parts = self.plan, host_footprint(self.plan, self._place.where.threads)
        self._region = Region(parts.private_mapped)
        self.mapped_bytes = self._region.size
        self._offset: dict[int, int] = {b.id: b.offset for b in plan.buffers if b.space is Space.COPY}
        end = parts.copies
        for buffer in plan.buffers:
            if buffer.space in (Space.OUTPUT, Space.CONSTANT):
                self._offset[buffer.id] = end
                end += align_up(buffer.bytes)
        for id, data in plan.constants:
            self._region.view(self._offset[id], len(data), np.dtype(np.uint8))[:] = np.frombuffer(data, np.uint8)
        staging: dict[str, AnyArray] = {}
        for name, id in plan.inputs:
            size, dtype = staging_bytes(plan, plan.buffers[id]), plan.buffers[id].type.dtype
            staging[name] = self._region.view(end, size // dtype.size, dtype.numpy)
            end += size
        self._staging = staging
        self._outlets = {name: self._outlet(plan.buffers[id]) for name, id in plan.outputs}
        first = next(iter(self._outlets.values()), None)
        # `loss` is the bound method of a one-element view, so that reading the loss costs one call.
        self.loss = _no_loss if first is None else first.stored[:1].item  # type: ignore[method-assign, assignment]

    def _outlet(self, buffer: Buffer) -> StoredOutput:
        stored = self._persistent_array(buffer)
        return StoredOutput(buffer, stored[:1] if buffer.type.shape == () else stored)  # a scalar, without its padding

    def _persistent_array(self, buffer: Buffer) -> AnyArray:
        """The flat array of a buffer that outlives the step."""
        if buffer.space is Space.STATE:
            return self._state_array(buffer.name)
        dtype = buffer.type.dtype
        return self._region.view(self._offset[buffer.id], buffer.bytes // dtype.size, dtype.numpy)

    def _state_array(self, state: str) -> AnyArray:
        """The values of a state in their stored layout, flat."""
        storage: Any = self._state.slot(state).on(self._memory_of(state))
        if state in self._parts:
            assert self._group is not None
            storage = storage.of[self._group.rank]
        assert isinstance(storage, HostArray), "a CPU state is in host memory"
        return storage.flat

    def _memory_of(self, state: str) -> StateMemory:
        return self._parts.get(state, self._memory)

    def _make_call(self) -> None:
        plan = self.plan
        pointers = plan.pointer_buffers()
        state_names = {id: name for name, id in plan.states}
        self._addresses = (c_void_p * max(1, len(pointers)))()
        for i, buffer in enumerate(pointers):
            if buffer.space is Space.STATE:
                self._addresses[i] = self._state_array(state_names[buffer.id]).ctypes.data
            elif buffer.space is not Space.INPUT:
                self._addresses[i] = self._region.address + self._offset[buffer.id]
        position = {buffer.id: i for i, buffer in enumerate(pointers)}
        self._slots = {name: position[id] for name, id in plan.inputs}
        values = {**plan.sizes, **self._share.coordinates}
        self._dims = (c_long * max(1, len(plan.symbols)))(*[values[s] for s in plan.symbols])
        self._sizes: Mapping[str, int] | None = None  # sizes written into the call; None after an epoch changed them
        self._scalars = (c_double * max(1, len(plan.scalars)))(*(s.default for s in plan.scalars))
        self._scalar_index = {s.name: i for i, s in enumerate(plan.scalars)}
        self._step_index = self._scalar_index.get("step")
        self._epoch_index = self._scalar_index.get("epoch")
        self._derived = (c_double * max(1, plan.slots))()
        self._call = native.NativeCall(
            api=self.library.api,
            dims=self._dims,
            buffers=self._addresses,
            scalars=self._scalars,
            derived=self._derived,
            seed=self._place.where.seed,
            group=None if self._group is None else native_group_address(self._group, plan),
        )
        self._call_reference = byref(self._call)
        self._step = native.NativeStep(
            prologue=self._code.prologue,
            entry=self._code.entry,
            call=ctypes.pointer(self._call),
            threads=self.threads,
        )
        self._run, self._step_reference = self.library.step, byref(self._step)
        self.count_steps(bool(plan.updated))
        self.pace = SliceLength(lockstep_group(self._group, plan))

    def place_scratch(self) -> None:
        """Update the addresses of the scratch memory."""
        scratch = self._scratch
        self._call.arena, self._call.work, self._call.work_bytes = scratch.arena, scratch.work, scratch.segments.work

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar; a scalar that the plan does not use is ignored."""
        index = self._scalar_index.get(name)
        if index is not None:
            self._scalars[index] = value

    # -- one step ------------------------------------------------------------------------------------------------

    def bind(self, name: str, array: AnyArray) -> None:
        """Let the next step read an input in place, without a copy."""
        if self.ranks > 1:
            self._inputs[name] = array  # every rank checks the indices of all rows
            array = self._share.of(name, array)
        try:
            # This takes a quarter of the time of array.ctypes.data; the stubs do not know that arrays are buffers.
            self._addresses[self._slots[name]] = addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
        except (TypeError, ValueError):  # a read-only array
            self._addresses[self._slots[name]] = array.ctypes.data

    def prepare(self, sizes: Mapping[str, int]) -> Callable[[], int]:
        """Prepare a step, and return its native call: the ranks of one process run their calls concurrently."""
        if sizes is not self._sizes:
            self._resize(sizes)
        if self.ranks > 1:
            check_indices(self.plan, self._inputs, sizes)
        if self._state.family.version != self._seen_version:
            self._refresh()
        self._call.step = self._state.step
        if self._step_index is not None:
            self._scalars[self._step_index] = self._state.step
        self.set_epoch()
        return partial(self._run, self._step_reference)

    def count(self, error: int) -> None:
        """Finish a step after its native call."""
        if error:
            self._refuse(error)
        if self._advances:
            self._state.step += self._refused is None or not self._refused[0]
            self._state.family.version += 1

    def launch(self, sizes: Mapping[str, int]) -> CpuProgram:
        """Run one step to completion."""
        if sizes is not self._sizes:
            self._resize(sizes)
        if self.ranks > 1:
            check_indices(self.plan, self._inputs, sizes)
        state = self._state
        family = state.family
        if family.version != self._seen_version:
            self._refresh()
        step = self._call.step = state.step
        if self._step_index is not None:
            self._scalars[self._step_index] = step
        if self._epoch_index is not None:
            self._scalars[self._epoch_index] = state.epoch
        error = self._run(self._step_reference)
        if error:
            self._refuse(error)
        if self._advances:
            if self._refused is None or not self._refused[0]:
                state.step = step + 1
            self._seen_version = family.version = family.version + 1
        return self

    def _refuse(self, error: int) -> NoReturn:
        if error == errno.EDOM:
            raise IndexRefusedError
        if self._group is not None:
            self._group.check()
        native.check(error, self.threads)
        raise AssertionError(f"a native step returned an unknown error number: {error}")

    def _resize(self, sizes: Mapping[str, int]) -> None:
        """Write the sizes of the next steps, and the bounds of their index inputs."""
        rank_sizes = self._share.sizes(sizes)
        self._dims[: len(self.plan.symbols)] = [rank_sizes[s] for s in self.plan.symbols]
        # If a rank rejected only its own rows, the other ranks would wait for it: so every rank checks all rows.
        bounded = self.plan if self.ranks == 1 else replace(self.plan, bounds=())
        self._bounds = bounds_of(bounded, rank_sizes, self._addresses, self._slots)
        self._step.bounds, self._step.bound_count = self._bounds, len(self._bounds)
        self._sizes = sizes

    def _refresh(self) -> None:
        """Rewrite the copies of states that another program, perhaps on another device, has changed."""
        self.sync_states()
        if self._code.refresh is not None:
            self._code.refresh(self._call_reference)
        self._seen_version = self._state.family.version

    def sync_states(self) -> None:
        """Copy states that were last changed in another memory (a device's, or another rank's) into this one."""
        if self._state.family.spread:
            for name, _ in self.plan.states:
                session_memory = self._memory is MEMORY  # the other ranks of this process update their own copies alike
                self._state.slot(name).sync_to(self._memory_of(name).kind, session_memory and name in self.plan.updated)

    # -- outputs -------------------------------------------------------------------------------------------------

    def read(self, name: str) -> AnyArray:
        """An output of the last step, copied."""
        return self._outlets[name].read(self._sizes_now())

    def keep(self) -> StepOutputs:
        """A copy of the outputs of the last step, in their stored layout."""
        return StepOutputs({name: o.copy() for name, o in self._outlets.items()}, self._sizes_now())

    def _sizes_now(self) -> dict[str, int]:
        return dict(zip(self.plan.symbols, self._dims, strict=False))

    # -- many steps ----------------------------------------------------------------------------------------------

    def prepare_slice(self, epoch: Epoch, loop: Any, losses: AnyArray, done: int, most: int) -> Callable[[], int]:
        """Prepare a slice, and return its native call."""
        self.set_sizes(epoch.sizes)
        for name, array in epoch.whole.items():
            self.bind(name, array)
        if self._state.family.version != self._seen_version:
            self._refresh()
        self.set_epoch()
        self._call.step = self._state.step
        self.place_slice(loop, epoch, losses, done, most)
        return partial(self.library.run_loop, loop)

    def count_slice(self, steps: int) -> None:
        """Finish a slice after its native call."""
        if self._advances:
            self._state.step = self._call.step
            self._state.family.version += steps

    def rows_of_inputs(self, names: Sequence[str]) -> ctypes.Array[native.LoopInput]:
        """The native loop's description of inputs that it reads row by row, without the addresses of their rows."""
        inputs = (native.LoopInput * max(1, len(names)))()
        for item, name in zip(inputs, names, strict=False):
            item.slot = addressof(self._addresses) + self._slots[name] * ctypes.sizeof(c_void_p)
            item.staging = self._staging[name].ctypes.data
        return inputs

    def as_phase(self, symbols: Mapping[str, str], once: bool) -> native.NativePhase:
        """This program as a phase of a step over micro-batches; `symbols` maps fields to the dimensions they hold."""
        copies = [self._as_copy(b) for b in self.plan.buffers if b.space is Space.COPY]
        self._copies = (native.Copy * max(1, len(copies)))(*copies)
        return native.NativePhase(
            prologue=self._code.prologue,
            entry=self._code.entry,
            call=ctypes.pointer(self._call),
            step_scalar=self._step_scalar(),
            copies=self._copies,
            copy_count=len(copies),
            once=once,
            **{name: self._dim(symbol) for name, symbol in symbols.items()},
        )

    def _dim(self, symbol: str | None) -> int | None:
        """The address of a symbolic size."""
        at = self.plan.symbols.index(symbol) if symbol in self.plan.symbols else None
        return None if at is None else addressof(self._dims) + at * ctypes.sizeof(c_long)

    def _as_copy(self, copy: Buffer) -> native.Copy:
        state = next(b for b in self.plan.buffers if b.id == copy.source)
        rows, columns = (int(e) for e in state.type.shape)
        return native.Copy(
            state=self._state_array(state.name).ctypes.data,
            copy=self._region.address + self._offset[copy.id],
            rows=rows,
            columns=columns,
            paneled=state.layout == PANELS,
            bytes=state.type.dtype.size,
            half=native.HALF[copy.type.dtype.name] if copy.type.dtype.is_half else native.WHOLE,
            transposed=copy.transposed,
        )

    def _step_scalar(self) -> int | None:
        at = self._step_index
        return None if at is None else addressof(self._scalars) + at * ctypes.sizeof(c_double)

    def set_sizes(self, sizes: Mapping[str, int]) -> None:
        """Set the sizes of some symbols, for callers that do not use `launch`."""
        self._sizes = None
        for i, symbol in enumerate(self.plan.symbols):
            if symbol not in self._share.coordinates:
                self._dims[i] = sizes.get(symbol, self._dims[i])

    def bind_address(self, name: str, address: int | None) -> None:
        """Bind an input by its address."""
        self._addresses[self._slots[name]] = address

    def stored_output(self, name: str) -> AnyArray:
        """The flat array of an output."""
        return self._outlets[name].stored

    def set_epoch(self) -> None:
        """Set the epoch's number, if the program reads it."""
        if self._epoch_index is not None:
            self._scalars[self._epoch_index] = self._state.epoch

    def loop_of(self, epoch: Epoch) -> native.NativeLoop:
        """The native loop's description of an epoch, without the start of a slice: most of it is built once per run."""
        if self not in epoch.program_caches:
            epoch.program_caches[self] = self._loop_over(epoch)
        loop: native.NativeLoop = epoch.program_caches[self]
        loop.order_kind = native.SEQUENTIAL if epoch.order is None else native.SHUFFLED
        loop.order_epoch = epoch.order or 0
        return loop

    def _loop_over(self, epoch: Epoch) -> native.NativeLoop:
        inputs = self.rows_of_inputs(list(epoch.sources))
        for item, source in zip(inputs, epoch.sources.values(), strict=False):
            item.source, item.row_bytes = source.ctypes.data, source.nbytes // len(source)
        loss = self.plan.buffers[self.plan.outputs[0][1]]
        return native.NativeLoop(
            prologue=self._code.prologue,
            entry=self._code.entry,
            call=ctypes.pointer(self._call),
            batch_dim=self._dim(epoch.symbol),
            inputs=inputs,
            loss=self._persistent_array(loss).ctypes.data,
            refused=None if self._refused is None else self._refused.ctypes.data,
            step_scalar=self._step_scalar(),
            order_seed=epoch.seed,
            rows=epoch.rows,
            capacity=epoch.batch,
            seconds=self.pace.seconds,
            input_count=len(epoch.sources),
            loss_is_double=loss.type.dtype.size == 8,
            stop_on_refusal=self._stop,
            threads=self.threads,
            own_dim=self._dim(OWN),
            rows_dim=self._dim(ROWS),
        )


def bounds_of(
    plan: Plan, sizes: Mapping[str, int], addresses: ctypes.Array[c_void_p], slots: Mapping[str, int]
) -> ctypes.Array[native.NativeBound]:
    """The checks of a native step: how many values of which input are indices, and their upper limit."""
    bounds = []
    for name, id in plan.inputs:
        type = plan.buffers[id].type
        limits = [evaluate(b.size, sizes) for b in plan.bounds if b.input == name and b.is_plain]
        if limits:
            count = math.prod(evaluate(e, sizes) for e in type.shape)
            slot = addressof(addresses) + slots[name] * ctypes.sizeof(c_void_p)
            bounds.append(native.NativeBound(slot, count, min(limits), type.dtype.size))
    return (native.NativeBound * len(bounds))(*bounds)


def _no_loss() -> NoReturn:
    raise AssertionError("a program without outputs has no loss")


def _recorder(compiled: Path, threads: int) -> KernelLog:
    from wholestep.compiler.backends.cpu.runtime.profiler import KernelLog  # imported only for a profile

    return KernelLog(compiled, threads)
