"""The CPU: a plan's C, compiled, loaded, and called once per step."""

from __future__ import annotations

import ctypes
import errno
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from ctypes import addressof, byref, c_char, c_double, c_long, c_void_p
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from wholestep.compiler.backend import SLICE_SECONDS, Epoch, IndexRefusedError, MicroBatchShape, Place, Slice, nothing
from wholestep.compiler.backends.cpu import library as native
from wholestep.compiler.backends.cpu.compiler import OBJECT_SUFFIX, Compiler, compile_c, find_compiler
from wholestep.compiler.backends.cpu.layout import PANELS
from wholestep.compiler.backends.cpu.scratch import Scratch
from wholestep.compiler.backends.cpu.states import MEMORY
from wholestep.compiler.backends.cpu.target import TARGETS, detect_target, need_available
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan import serialize
from wholestep.compiler.plan.bodies import Dot
from wholestep.compiler.plan.footprint import footprint, staging_bytes
from wholestep.compiler.plan.kernel import Buffer, Plan, Space
from wholestep.compiler.plan.layout import aligned, unpack
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.cache import key_of
from wholestep.compiler.runtime.memory import Region
from wholestep.compiler.runtime.plans import compiler_version
from wholestep.compiler.runtime.storage import HostArray
from wholestep.compiler.runtime.store import cache_of
from wholestep.compiler.runtime.together import Background
from wholestep.compiler.target import Target
from wholestep.errors import PlanError
from wholestep.options import CompileOptions
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.compiler.backends.cpu.micro_batches import MicroBatchProgram
    from wholestep.compiler.backends.cpu.recorder import Recorder
    from wholestep.compiler.backends.cpu.render.c import Source


class CpuProgram:
    """A plan in this process.  Everything a step needs is laid out here once; `launch` is one native call.

    It is the ticket of its last launch: that one is done, and its outputs are where the next one writes.
    """

    synchronous = True

    def __init__(self, plan: Plan, place: Place, key: str = "", meanwhile: Callable[[], None] = nothing) -> None:
        self.plan, self._place, self._state = plan, place, place.state
        assert isinstance(place.scratch, Scratch), "programs of the CPU share its scratch memory"
        self._scratch = place.scratch
        device = device_for(plan.target)
        device.prepare(place.where.options)  # a cold start compiles the library and the plan side by side
        coming = Background(lambda: self._find_or_compile(key))
        meanwhile()
        compiled = coming.result()
        self.library = device.library(place.where.options)
        if has_half_products(plan):
            native.add_half(self.library, device.name, cache_of(place.where.options), _compiler(place.where.options))
        self._object = PlanObject(compiled)
        self.recorder = _recorder(compiled, place.where.threads) if place.profile else None
        self._seen = -1  # the version of the state that the copies show
        self._lay_out()
        self._make_call()
        self.place_scratch()
        self._scratch.users.add(self)

    @cached_property
    def source(self) -> str:
        """The C that runs."""
        return self._rendered.text

    @cached_property
    def _rendered(self) -> Source:
        from wholestep.compiler.backends.cpu.render.c import (
            source,
        )  # a program found in the cache starts without the renderer

        return source(self.plan, profile=self._place.profile)

    def _find_or_compile(self, key: str) -> Path:
        """The plan's shared object.  Its key is the plan: a hit neither renders nor compiles."""
        options = self._place.where.options
        store, compiler = cache_of(options), _compiler(options)
        key = program_key(self.plan, options, key)
        key = key_of("profiled", key) if self._place.profile else key
        found = store.get(key, OBJECT_SUFFIX)
        if found is not None:
            return found
        source = self._rendered
        compiled = compile_c(source.text, files=source.files, cache=store, compiler=compiler, target=self.plan.target)
        return store.put(key, compiled.read_bytes(), OBJECT_SUFFIX)

    def _lay_out(self) -> None:
        """Place what belongs to this program alone: copies, outputs, constants, staging."""
        plan, parts = self.plan, footprint(self.plan, self._place.where.threads)
        self._region = Region(parts.private_mapped)
        self.mapped_bytes = self._region.size
        self._offset: dict[int, int] = {b.id: b.offset for b in plan.buffers if b.space is Space.COPY}
        end = parts.copies
        for buffer in plan.buffers:
            if buffer.space in (Space.OUTPUT, Space.CONSTANT):
                self._offset[buffer.id] = end
                end += aligned(buffer.bytes)
        for id, data in plan.constants:
            self._region.view(self._offset[id], len(data), np.dtype(np.uint8))[:] = np.frombuffer(data, np.uint8)
        self._staging: dict[str, AnyArray] = {}
        for name, id in plan.inputs:
            size, dtype = staging_bytes(plan, plan.buffers[id]), plan.buffers[id].type.dtype
            self._staging[name] = self._region.view(end, size // dtype.size, dtype.numpy)
            end += size
        self.outputs = {name: plan.buffers[id].type for name, id in plan.outputs}
        self._outlets = {name: self._outlet(plan.buffers[id]) for name, id in plan.outputs}
        first = next(iter(self._outlets.values()), None)
        # The bound method of a one-element view: reading the loss costs one call.
        self.loss: Callable[[], float] = _no_loss if first is None else first.stored[:1].item  # type: ignore[assignment]

    def _outlet(self, buffer: Buffer) -> Outlet:
        stored = self._stored(buffer)
        return Outlet(buffer, stored[:1] if buffer.type.shape == () else stored)  # one number, without what pads it

    def _stored(self, buffer: Buffer) -> AnyArray:
        """The flat array behind a buffer that outlives the step."""
        if buffer.space is Space.STATE:
            return self._held(buffer.name)
        dtype = buffer.type.dtype
        return self._region.view(self._offset[buffer.id], buffer.bytes // dtype.size, dtype.numpy)

    def _held(self, state: str) -> AnyArray:
        """A state's numbers as they are stored, flat."""
        found = self._state.slot(state).on(MEMORY)
        assert isinstance(found, HostArray), "the CPU's memory is the host's"
        return found.flat

    def _make_call(self) -> None:
        plan = self.plan
        pointers = plan.pointer_buffers()
        state_names = {id: name for name, id in plan.states}
        self._addresses = (c_void_p * max(1, len(pointers)))()
        for i, buffer in enumerate(pointers):
            if buffer.space is Space.STATE:
                self._addresses[i] = self._held(state_names[buffer.id]).ctypes.data
            elif buffer.space is not Space.INPUT:
                self._addresses[i] = self._region.address + self._offset[buffer.id]
        place_of = {buffer.id: i for i, buffer in enumerate(pointers)}
        self._slots = {name: place_of[id] for name, id in plan.inputs}
        self._dims = (c_long * max(1, len(plan.symbols)))(*plan.capacity)
        self._sizes: Mapping[str, int] | None = None  # those that the call has; None: an epoch has changed them
        self._scalars = (c_double * max(1, len(plan.scalars)))(*(s.default for s in plan.scalars))
        self._scalar_index = {s.name: i for i, s in enumerate(plan.scalars)}
        self._step_index = self._scalar_index.get("step")
        self._epoch_index = self._scalar_index.get("epoch")
        self._derived = (c_double * max(1, plan.slots))()
        self._call = native.Call(
            api=self.library.api,
            dims=self._dims,
            buffers=self._addresses,
            scalars=self._scalars,
            derived=self._derived,
            seed=self._place.where.seed,
        )
        self._call_reference = byref(self._call)
        self._step = native.Step(
            prologue=self._object.prologue,
            entry=self._object.entry,
            call=ctypes.pointer(self._call),
            threads=self._place.where.threads,
        )
        self._run, self._step_reference = self.library.step, byref(self._step)
        self.count_steps(bool(plan.updated))

    def place_scratch(self) -> None:
        """Read the scratch memory's addresses again."""
        scratch = self._scratch
        self._call.arena, self._call.work, self._call.work_bytes = scratch.arena, scratch.work, scratch.segments.work

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar; one that the plan does not use is ignored."""
        index = self._scalar_index.get(name)
        if index is not None:
            self._scalars[index] = value

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a step count as an update?  Not where the output `unless` is not 0; `stop` ends an epoch there."""
        self._advances, self._stops = advances, stop
        self._refused = None if unless is None else self.stored_output(unless)

    # -- one step ------------------------------------------------------------------------------------------------

    def staging(self, name: str) -> AnyArray:
        """Where an input is converted, held or gathered."""
        return self._staging[name]

    def bind(self, name: str, array: AnyArray) -> None:
        """Let the next step read an input where it lies."""
        try:
            # A quarter of the time of array.ctypes.data; the stubs do not know that arrays are buffers.
            self._addresses[self._slots[name]] = addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
        except (TypeError, ValueError):  # of what is read-only
            self._addresses[self._slots[name]] = array.ctypes.data

    def launch(self, sizes: Mapping[str, int]) -> CpuProgram:
        """One step, to its end."""
        if sizes is not self._sizes:
            self._resize(sizes)
        state = self._state
        family = state.family
        if family.version != self._seen:
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
            self._seen = family.version = family.version + 1
        return self

    def _refuse(self, error: int) -> NoReturn:
        if error == errno.EDOM:
            raise IndexRefusedError
        native.check(error, self._place.where.threads)
        raise AssertionError(f"error {error} of a step means nothing")

    def _resize(self, sizes: Mapping[str, int]) -> None:
        """Write the sizes of the next steps, and how many indices of theirs are below what."""
        self._dims[: len(self.plan.symbols)] = [sizes[s] for s in self.plan.symbols]
        self._bounds = bounds_of(self.plan, sizes, self._addresses, self._slots)
        self._step.bounds, self._step.bound_count = self._bounds, len(self._bounds)
        self._sizes = sizes

    def _refresh(self) -> None:
        """Rewrite the second layouts of states that someone else has changed, perhaps on another device."""
        if self._state.family.spread:
            for name, _ in self.plan.states:
                self._state.slot(name).bring(MEMORY.kind, name in self.plan.updated)
        if self._object.refresh is not None:
            self._object.refresh(self._call_reference)
        self._seen = self._state.family.version

    # -- what it leaves ------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """A step is done when it returns."""

    def read(self, name: str) -> AnyArray:
        """An output of the last step, copied."""
        return self._outlets[name].read(self._sizes_now())

    def keep(self) -> Kept:
        """The outputs of the last step, copied as they are stored."""
        return Kept({name: o.copy() for name, o in self._outlets.items()}, self._sizes_now())

    def _sizes_now(self) -> dict[str, int]:
        return dict(zip(self.plan.symbols, self._dims, strict=False))

    # -- many steps ----------------------------------------------------------------------------------------------

    def epoch(self, epoch: Epoch) -> CpuEpoch:
        """Steps until the epoch's end, in slices of about 50 ms."""
        return CpuEpoch(epoch, partial(self._run_slice, epoch, self._loop(epoch)))

    def _run_slice(self, epoch: Epoch, loop: native.Loop, losses: AnyArray, done: int) -> int:
        """Some steps of an epoch; returns how many.  All that a call reads is set anew: others may have made steps."""
        self.set_sizes(epoch.sizes)
        for name, array in epoch.whole.items():
            self.bind(name, array)
        if self._state.family.version != self._seen:
            self._refresh()
        self.set_epoch()
        self._call.step = self._state.step
        loop.position, loop.steps = (
            (epoch.first + done) * epoch.batch,
            min(len(losses) - done, epoch.every or len(losses)),
        )
        loop.losses = losses.ctypes.data + done * losses.itemsize
        made: int = self.library.run_loop(loop)
        if self._advances:
            self._state.step = self._call.step
            self._state.family.version += made
            self._seen = self._state.family.version
        return made

    def rows_of_inputs(self, names: Sequence[str]) -> ctypes.Array[native.LoopInput]:
        """What the native loop needs to know to take these inputs row by row, but for where their rows are."""
        inputs = (native.LoopInput * max(1, len(names)))()
        for item, name in zip(inputs, names, strict=False):
            item.slot = addressof(self._addresses) + self._slots[name] * ctypes.sizeof(c_void_p)
            item.staging = self._staging[name].ctypes.data
        return inputs

    def as_phase(self, symbols: Mapping[str, str], once: bool) -> native.Phase:
        """This program as a phase of a step over micro-batches; `symbols` says which field holds which dimension."""
        copies = [self._as_copy(b) for b in self.plan.buffers if b.space is Space.COPY]
        self._copies = (native.Copy * max(1, len(copies)))(*copies)
        return native.Phase(
            prologue=self._object.prologue,
            entry=self._object.entry,
            call=ctypes.pointer(self._call),
            step_scalar=self._step_scalar(),
            copies=self._copies,
            copy_count=len(copies),
            once=once,
            **{name: self._dim(symbol) for name, symbol in symbols.items()},
        )

    def _dim(self, symbol: str | None) -> int | None:
        """Where the size of a symbol stands."""
        at = self.plan.symbols.index(symbol) if symbol in self.plan.symbols else None
        return None if at is None else addressof(self._dims) + at * ctypes.sizeof(c_long)

    def _as_copy(self, copy: Buffer) -> native.Copy:
        state = next(b for b in self.plan.buffers if b.id == copy.source)
        rows, columns = (int(e) for e in state.type.shape)
        return native.Copy(
            state=self._held(state.name).ctypes.data,
            copy=self._region.address + self._offset[copy.id],
            rows=rows,
            columns=columns,
            paneled=state.layout == PANELS,
            bytes=state.type.dtype.size,
            half=native.HALF[copy.type.dtype.name] if copy.type.dtype.is_half else native.WHOLE,
            turned=copy.turned,
        )

    def _step_scalar(self) -> int | None:
        at = self._step_index
        return None if at is None else addressof(self._scalars) + at * ctypes.sizeof(c_double)

    def set_sizes(self, sizes: Mapping[str, int]) -> None:
        """Sizes of some symbols, past `launch`."""
        self._sizes = None
        for i, symbol in enumerate(self.plan.symbols):
            self._dims[i] = sizes.get(symbol, self._dims[i])

    def bind_address(self, name: str, address: int | None) -> None:
        """An input where somebody else found it."""
        self._addresses[self._slots[name]] = address

    def stored_output(self, name: str) -> AnyArray:
        """The flat array of an output."""
        return self._outlets[name].stored

    def set_epoch(self) -> None:
        """Tell the program which epoch it is, where it asks."""
        if self._epoch_index is not None:
            self._scalars[self._epoch_index] = self._state.epoch

    def _loop(self, epoch: Epoch) -> native.Loop:
        """What the native loop needs to know of an epoch, but for where a slice begins."""
        inputs = self.rows_of_inputs(list(epoch.sources))
        for item, source in zip(inputs, epoch.sources.values(), strict=False):
            item.source, item.row_bytes = source.ctypes.data, source.nbytes // len(source)
        loss = self.plan.buffers[self.plan.outputs[0][1]]
        return native.Loop(
            prologue=self._object.prologue,
            entry=self._object.entry,
            call=ctypes.pointer(self._call),
            batch_dim=self._dim(epoch.symbol),
            inputs=inputs,
            loss=self._stored(loss).ctypes.data,
            refused=None if self._refused is None else self._refused.ctypes.data,
            step_scalar=self._step_scalar(),
            order_seed=epoch.seed,
            order_epoch=epoch.order or 0,
            rows=epoch.rows,
            capacity=epoch.batch,
            seconds=SLICE_SECONDS,
            input_count=len(epoch.sources),
            order_kind=native.SEQUENTIAL if epoch.order is None else native.SHUFFLED,
            loss_is_double=loss.type.dtype.size == 8,
            stop_on_refusal=self._stops,
            threads=self._place.where.threads,
        )


def bounds_of(
    plan: Plan, sizes: Mapping[str, int], addresses: ctypes.Array[c_void_p], slots: Mapping[str, int]
) -> ctypes.Array[native.Bound]:
    """What a native step checks: how many values of which input are indices, and below what."""
    found = []
    for name, id in plan.inputs:
        type = plan.buffers[id].type
        limits = [evaluate(b.size, sizes) for b in plan.bounds if b.input == name and b.is_plain]
        if limits:
            count = math.prod(evaluate(e, sizes) for e in type.shape)
            slot = addressof(addresses) + slots[name] * ctypes.sizeof(c_void_p)
            found.append(native.Bound(slot, count, min(limits), type.dtype.size))
    return (native.Bound * len(found))(*found)


class CpuEpoch:
    """The slices of an epoch, made when they are asked for."""

    def __init__(self, epoch: Epoch, run: Callable[[AnyArray, int], int]) -> None:
        """`run` makes updates after so many, writes their losses, and says how many there were."""
        self._epoch, self._run, self._done = epoch, run, 0
        self._losses = np.zeros(epoch.end - epoch.first)

    def __iter__(self) -> CpuEpoch:
        return self

    def __next__(self) -> Slice:
        epoch, done = self._epoch, self._done
        if done == len(self._losses):
            raise StopIteration
        self._done += self._run(self._losses, done)
        return Slice.of(epoch, epoch.first + done, self._losses[done : self._done])


@dataclass(frozen=True)
class Outlet:
    """An output: its type, how it is laid out, and its bytes."""

    buffer: Buffer
    stored: AnyArray

    def copy(self) -> Outlet:
        """The same with bytes of its own."""
        return Outlet(self.buffer, self.stored.copy())

    def read(self, sizes: Mapping[str, int]) -> AnyArray:
        """The output as the user sees it, copied."""
        type = self.buffer.type
        return unpack(self.stored, [evaluate(e, sizes) for e in type.shape], self.buffer.layout)


@dataclass(frozen=True)
class Kept:
    """A step whose outputs were put aside."""

    outlets: Mapping[str, Outlet]
    sizes: Mapping[str, int]

    def wait(self) -> None:
        """It is done."""

    def loss(self) -> float:
        """The first output."""
        return float(next(iter(self.outlets.values())).stored[0])

    def read(self, name: str) -> AnyArray:
        """An output, copied."""
        return self.outlets[name].read(self.sizes)

    def keep(self) -> Kept:
        """As it is."""
        return self


def _no_loss() -> NoReturn:
    raise AssertionError("a program without outputs has no loss")


def _recorder(compiled: Path, threads: int) -> Recorder:
    from wholestep.compiler.backends.cpu.recorder import Recorder  # only a profile reads what kernels noted

    return Recorder(compiled, threads)


class PlanObject:
    """A plan's compiled code in this process: the addresses of its functions."""

    def __init__(self, path: Path) -> None:
        self.prologue, self.entry = native.load_plan_object(path)
        code = ctypes.CDLL(os.fspath(path))  # the same handle: an object is loaded once per process
        self.refresh = code.ws_refresh if hasattr(code, "ws_refresh") else None
        if self.refresh is not None:
            self.refresh.restype = None


def program_key(plan: Plan, options: CompileOptions, key: str = "") -> str:
    """What a plan's compiled code depends on: the plan, for which `key` may stand, our version, the C compiler."""
    fingerprint = _compiler(options).fingerprint
    return key_of("program", key or serialize.dump(plan), compiler_version(), fingerprint, plan.target)


def load_library(target: str, options: CompileOptions) -> native.Library:
    """The runtime library of a target in this process."""
    return native.load_library(target, cache_of(options), _compiler(options))


def _compiler(options: CompileOptions) -> Compiler:
    return find_compiler(options.compiler_command)


def has_half_products(plan: Plan) -> bool:
    """Does a plan call the library's products of half elements?"""
    dots = (k.body for k in plan.kernels if isinstance(k.body, Dot))
    return any(plan.buffers[dot.a.buffer].type.dtype.is_half for dot in dots)


class CpuDevice:
    runs = True
    memory = MEMORY

    def __init__(self, target: Target) -> None:
        self.target = target
        self.name = target.name
        self._coming: Background[native.Library] | None = None

    def scratch(self) -> Scratch:
        """The arena and the threads' workspaces."""
        return Scratch()

    def prepare(self, options: CompileOptions) -> None:
        """Find or compile the runtime library on a thread of its own."""
        if self._coming is None and not native.is_loaded(self.name):
            # In no context: its spans are no part of the build that happens to come first.
            self._coming = Background(lambda: Context().run(load_library, self.name, options))

    def library(self, options: CompileOptions) -> native.Library:
        """The library, once it is there.  Where `prepare` failed, perhaps with another compiler, it is tried again."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.wait()
        return load_library(self.name, options)

    def load(self, plan: Plan, place: Place, key: str = "", meanwhile: Callable[[], None] = nothing) -> CpuProgram:
        """The program of a plan, compiled for the target that the plan was made for."""
        if plan.target != self.name:
            if plan.target not in TARGETS:
                raise PlanError(
                    f"the plan is for {plan.target!r} and cannot run on {self.name!r}; plan it again with "
                    f"device={self.name!r}."
                )
            need_available(TARGETS[plan.target])
        return CpuProgram(plan, place, key, meanwhile)

    def load_micro_batches(
        self, plan: Plan, programs: Sequence[CpuProgram], place: Place, shape: MicroBatchShape
    ) -> MicroBatchProgram:
        from wholestep.compiler.backends.cpu.micro_batches import (
            MicroBatchProgram,  # it is made of programs of this module
        )

        return MicroBatchProgram(plan, programs, place, shape)

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        return program_key(plan, options, key)


@cache
def device_for(name: str) -> CpuDevice:
    """The device of a target by name: one in a process, since it has the library coming."""
    return CpuDevice(TARGETS[name])


def default_target() -> Target:
    """What `device="cpu"` means on this machine."""
    return detect_target()


def make_device(target: Target) -> CpuDevice:
    """The CPU as a target; an error where this machine is no such CPU."""
    need_available(target)
    return device_for(target.name) if target == TARGETS[target.name] else CpuDevice(target)
