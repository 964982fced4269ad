"""The CPU: a plan's C, compiled, loaded, and called once per step."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Context
from ctypes import byref, c_double, c_long, c_void_p
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wholestep.compiler.backend import Epoch, IndexBound, Place, WindowShape, nothing
from wholestep.compiler.backends.cpu import library as native
from wholestep.compiler.backends.cpu.compiler import OBJECT_SUFFIX, Compiler, compile_c, detect_target, find_compiler
from wholestep.compiler.plan import serialize
from wholestep.compiler.plan.footprint import footprint, staging_bytes
from wholestep.compiler.plan.kernel import Buffer, Layout, Plan, Space
from wholestep.compiler.plan.layout import aligned
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.cache import key_of
from wholestep.compiler.runtime.memory import Region
from wholestep.compiler.runtime.plans import compiler_version
from wholestep.compiler.runtime.store import cache_of
from wholestep.compiler.runtime.together import Background
from wholestep.options import CompileOptions

if TYPE_CHECKING:
    from wholestep.compiler.backends.cpu.micro_batches import WindowProgram
    from wholestep.compiler.backends.cpu.recorder import Recorder
    from wholestep.compiler.backends.cpu.render.c import Source

SLICE_SECONDS = 0.05  # signals, progress and callbacks wait no longer than this


class CpuProgram:
    """A plan in this process.  Everything a step needs is laid out here once; `run` is one native call."""

    def __init__(self, plan: Plan, place: Place, key: str = "", meanwhile: Callable[[], None] = nothing) -> None:
        self.plan, self._place, self._state = plan, place, place.state
        DEVICE.prepare(place.options)  # a cold start compiles the library and the plan side by side
        coming = Background(lambda: self._find_or_compile(key))
        meanwhile()
        compiled = coming.result()
        self.library = DEVICE.library(place.options)
        self._object = PlanObject(compiled)
        self.recorder = _recorder(compiled, place.threads) if place.profile else None
        self._seen = -1  # the version of the state that the copies show
        self._lay_out()
        self._make_call()
        self.bind()

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
        options = self._place.options
        store, compiler, target = cache_of(options), _compiler(options), detect_target()
        key = program_key(self.plan, options, key)
        key = key_of("profiled", key) if self._place.profile else key
        found = store.get(key, OBJECT_SUFFIX)
        if found is not None:
            return found
        source = self._rendered
        compiled = compile_c(source.text, files=source.files, cache=store, compiler=compiler, target=target)
        return store.put(key, compiled.read_bytes(), OBJECT_SUFFIX)

    def _lay_out(self) -> None:
        """Place what belongs to this program alone: copies, outputs, constants, staging."""
        plan, parts = self.plan, footprint(self.plan, self._place.threads)
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
        self.staging: dict[str, AnyArray] = {}
        for name, id in plan.inputs:
            size, dtype = staging_bytes(plan, plan.buffers[id]), plan.buffers[id].type.dtype
            self.staging[name] = self._region.view(end, size // dtype.size, dtype.numpy)
            end += size
        self.outputs = {name: self._stored(plan.buffers[id]) for name, id in plan.outputs}

    def _stored(self, buffer: Buffer) -> AnyArray:
        """The flat array behind a buffer that outlives the step."""
        if buffer.space is Space.STATE:
            return self._state.slot(buffer.name).stored
        dtype = buffer.type.dtype
        return self._region.view(self._offset[buffer.id], buffer.bytes // dtype.size, dtype.numpy)

    def _make_call(self) -> None:
        plan = self.plan
        pointers = plan.pointer_buffers()
        state_names = {id: name for name, id in plan.states}
        self.addresses = (c_void_p * max(1, len(pointers)))()
        for i, buffer in enumerate(pointers):
            if buffer.space is Space.STATE:
                self.addresses[i] = self._state.slot(state_names[buffer.id]).address
            elif buffer.space is not Space.INPUT:
                self.addresses[i] = self._region.address + self._offset[buffer.id]
        place_of = {buffer.id: i for i, buffer in enumerate(pointers)}
        self.slots = {name: place_of[id] for name, id in plan.inputs}
        self.dims = (c_long * max(1, len(plan.symbols)))(*plan.capacity)
        self._scalars = (c_double * max(1, len(plan.scalars)))(*(s.default for s in plan.scalars))
        self._scalar_index = {s.name: i for i, s in enumerate(plan.scalars)}
        self._step_index = self._scalar_index.get("step")
        self._epoch_index = self._scalar_index.get("epoch")
        self._derived = (c_double * max(1, plan.slots))()
        self._call = native.Call(
            api=self.library.api,
            dims=self.dims,
            buffers=self.addresses,
            scalars=self._scalars,
            derived=self._derived,
            seed=self._place.seed,
        )
        self._call_reference = byref(self._call)
        self.set_bounds(())
        self.count_steps(bool(plan.updated))

    def bind(self) -> None:
        """Read the scratch memory's addresses again."""
        scratch = self._place.scratch
        self._call.arena, self._call.work, self._call.work_bytes = scratch.arena, scratch.work, scratch.segments.work

    def set_scalar(self, name: str, value: float) -> bool:
        """Set a runtime scalar; False where the plan does not use it."""
        index = self._scalar_index.get(name)
        if index is not None:
            self._scalars[index] = value
        return index is not None

    def set_bounds(self, bounds: Sequence[IndexBound]) -> None:
        """Which inputs hold indices, how many, and below what, from now on."""
        slot = ctypes.sizeof(c_void_p)
        base = ctypes.addressof(self.addresses)
        found = [native.Bound(base + self.slots[b.input] * slot, b.count, b.limit, b.bytes) for b in bounds]
        self._bounds = (native.Bound * len(found))(*found)

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a step count as an update?  Not where the output `unless` is not 0; `stop` ends an epoch there."""
        self._advances, self._stops = advances, stop
        self._refused = None if unless is None else self.outputs[unless][:1]

    def run(self) -> bool:
        """One step, to its end; False, with nothing run, where an index is out of its bound."""
        state = self._state
        if state.family.version != self._seen:
            self._refresh()
        self._call.step = state.step
        if self._step_index is not None:
            self._scalars[self._step_index] = state.step
        self.set_epoch()
        code = self._object
        bounds = self._bounds
        if not self.library.run_step(
            code.prologue, code.entry, self._call, self._place.threads, ctypes.addressof(bounds), len(bounds)
        ):
            return False
        if self._advances:
            state.step += self._refused is None or not self._refused[0]
            family = state.family
            family.version += 1
            self._seen = family.version
        return True

    def _refresh(self) -> None:
        """Rewrite the second layouts of states that someone else has changed."""
        if self._object.refresh is not None:
            self._object.refresh(self._call_reference)
        self._seen = self._state.family.version

    def run_epoch(self, epoch: Epoch) -> Iterator[None]:
        """Steps until the epoch's end, in slices of about 50 ms; yields after each."""
        loop = self._loop(epoch)
        self.set_epoch()
        while epoch.position < epoch.rows:
            if self._state.family.version != self._seen:
                self._refresh()
            self._call.step = self._state.step
            left = len(epoch.losses) - epoch.done
            loop.position, loop.steps = epoch.position, min(left, epoch.most or left)
            loop.losses = epoch.losses.ctypes.data + epoch.done * epoch.losses.itemsize
            done = self.library.run_loop(loop)
            epoch.position, epoch.done = loop.position, epoch.done + done
            if self._advances:
                self._state.step = self._call.step
                self._state.family.version += done
                self._seen = self._state.family.version
            yield

    def rows_of_inputs(self, names: Sequence[str]) -> ctypes.Array[native.LoopInput]:
        """What the native loop needs to know to take these inputs row by row, but for where their rows are."""
        inputs = (native.LoopInput * max(1, len(names)))()
        for item, name in zip(inputs, names, strict=False):
            item.slot = ctypes.addressof(self.addresses) + self.slots[name] * ctypes.sizeof(c_void_p)
            item.staging = self.staging[name].ctypes.data
        return inputs

    def as_phase(self, symbols: Mapping[str, str], once: bool) -> native.Phase:
        """This program as a phase of a window; `symbols` says which field of the phase holds which dimension."""
        long, base = ctypes.sizeof(c_long), ctypes.addressof(self.dims)
        places = {s: base + i * long for i, s in enumerate(self.plan.symbols)}
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
            **{name: places.get(symbol) for name, symbol in symbols.items()},
        )

    def _as_copy(self, copy: Buffer) -> native.Copy:
        state = next(b for b in self.plan.buffers if b.id == copy.source)
        rows, columns = (int(e) for e in state.type.shape)
        return native.Copy(
            state=self._state.slot(state.name).address,
            copy=self._region.address + self._offset[copy.id],
            rows=rows,
            columns=columns,
            paneled=state.layout is Layout.PANELS,
            bytes=state.type.dtype.size,
        )

    def _step_scalar(self) -> int | None:
        at = self._step_index
        return None if at is None else ctypes.addressof(self._scalars) + at * ctypes.sizeof(c_double)

    def set_epoch(self) -> None:
        """Tell the program which epoch it is, where it asks."""
        if self._epoch_index is not None:
            self._scalars[self._epoch_index] = self._state.epoch

    def _loop(self, epoch: Epoch) -> native.Loop:
        inputs = self.rows_of_inputs(list(epoch.sources))
        for item, source in zip(inputs, epoch.sources.values(), strict=False):
            item.source, item.row_bytes = source.ctypes.data, source.nbytes // len(source)
        loss = self.plan.buffers[self.plan.outputs[0][1]]
        return native.Loop(
            prologue=self._object.prologue,
            entry=self._object.entry,
            call=ctypes.pointer(self._call),
            batch_dim=None
            if epoch.symbol is None
            else ctypes.addressof(self.dims) + epoch.symbol * ctypes.sizeof(c_long),
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
            threads=self._place.threads,
        )


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
    compiler, target = _compiler(options), detect_target()
    return key_of("program", key or serialize.dump(plan), compiler_version(), compiler.fingerprint, target.name)


def load_library(options: CompileOptions) -> native.Library:
    """The runtime library of this process."""
    return native.load_library(cache_of(options), _compiler(options))


def _compiler(options: CompileOptions) -> Compiler:
    return find_compiler(options.compiler_command)


class CpuDevice:
    name = "cpu"
    runs = True

    def __init__(self) -> None:
        self._coming: Background[native.Library] | None = None

    def prepare(self, options: CompileOptions) -> None:
        """Find or compile the runtime library on a thread of its own."""
        if self._coming is None and not native.is_loaded():
            # In no context: its spans are no part of the build that happens to come first.
            self._coming = Background(lambda: Context().run(load_library, options))

    def library(self, options: CompileOptions) -> native.Library:
        """The library, once it is there.  Where `prepare` failed, perhaps with another compiler, it is tried again."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.wait()
        return load_library(options)

    def load(self, plan: Plan, place: Place, key: str = "", meanwhile: Callable[[], None] = nothing) -> CpuProgram:
        return CpuProgram(plan, place, key, meanwhile)

    def load_window(
        self, plan: Plan, programs: Sequence[CpuProgram], place: Place, shape: WindowShape
    ) -> WindowProgram:
        from wholestep.compiler.backends.cpu.micro_batches import WindowProgram  # it is made of programs of this module

        return WindowProgram(plan, programs, place, shape)

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        return program_key(plan, options, key)


DEVICE = CpuDevice()
