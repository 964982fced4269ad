"""Windows on the CPU: several programs over one state, run for the parts of a large batch in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass

from wholestep.compiler.backend import Epoch, IndexBound, Place, WindowShape
from wholestep.compiler.backends.cpu import library as native
from wholestep.compiler.backends.cpu.program import SLICE_SECONDS, CpuProgram
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import Region

POINTER = ctypes.sizeof(c_void_p)


@dataclass(frozen=True)
class Phase:
    """A program of a window and its inputs: those it takes row by row, those it is given whole."""

    program: CpuProgram
    rows: tuple[str, ...]
    whole: tuple[str, ...]
    inputs: ctypes.Array[native.LoopInput]


class WindowProgram:
    """The programs of a window as one program.  `plan` is what callers see: inputs as large as a window."""

    def __init__(self, plan: Plan, programs: Sequence[CpuProgram], place: Place, shape: WindowShape) -> None:
        self.plan, self.shape, self._place, self._state = plan, shape, place, place.state
        self._library = programs[0].library
        types = {name: plan.buffers[id].type for name, id in plan.inputs}
        self._cut = {name for name, type in types.items() if shape.is_cut(type.shape)}
        self._types = types
        self._phases = [self._phase(p) for p in programs]
        self._native = (native.Phase * len(programs))(*(self._as_native(p) for p in self._phases))
        self.addresses = (c_void_p * max(1, len(types)))()
        self.slots = {name: i for i, name in enumerate(types)}
        self.dims: list[int] = list(plan.capacity)
        self.outputs: Mapping[str, AnyArray] = programs[-1].outputs
        self._stage()
        self.mapped_bytes = self._region.size + sum(p.mapped_bytes for p in programs)
        self._bounds = (native.Bound * 0)()
        self.count_steps(True)

    def _phase(self, program: CpuProgram) -> Phase:
        names = [name for name, _ in program.plan.inputs]
        rows = tuple(n for n in names if n in self._cut)
        return Phase(program, rows, tuple(n for n in names if n not in self._cut), program.rows_of_inputs(rows))

    def _as_native(self, phase: Phase) -> native.Phase:
        made = phase.program.as_phase(self.shape.dims, once=phase is self._phases[-1])
        made.inputs, made.input_count = phase.inputs, len(phase.rows)
        return made

    def _stage(self) -> None:
        """Room for what a step is given in another dtype or layout than it is read in."""
        sizes = {n: t.bytes(self.plan.sizes) for n, t in self._types.items()}
        self._region, offset = Region(sum(-(-s // 64) * 64 for s in sizes.values())), 0
        self.staging: dict[str, AnyArray] = {}
        for name, type in self._types.items():
            self.staging[name] = self._region.view(offset, sizes[name] // type.dtype.size, type.dtype.numpy)
            offset += -(-sizes[name] // 64) * 64

    @property
    def source(self) -> str:
        """The C that runs, program after program."""
        return "\n".join(p.program.source for p in self._phases)

    def bind(self) -> None:
        """Read the scratch memory's addresses again."""
        for phase in self._phases:
            phase.program.bind()

    def set_scalar(self, name: str, value: float) -> bool:
        """Set a runtime scalar; False where no program uses it."""
        used = [phase.program.set_scalar(name, value) for phase in self._phases]
        return any(used)

    def set_bounds(self, bounds: Sequence[IndexBound]) -> None:
        """Which inputs hold indices, how many, and below what, from now on."""
        base = ctypes.addressof(self.addresses)
        found = [native.Bound(base + self.slots[b.input] * POINTER, b.count, b.limit, b.bytes) for b in bounds]
        self._bounds = (native.Bound * len(found))(*found)

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Is a window an update?  Not where the output `unless` is not 0; `stop` ends an epoch there."""
        self._advances, self._stops = advances, stop
        self._refused = None if unless is None else self.outputs[unless][:1]

    # -- running -------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """One window over what `addresses` and `dims` say; False, with nothing run, where an index is out of bounds."""
        sizes = dict(zip(self.plan.symbols, self.dims, strict=True))
        self._place_whole(sizes)
        for phase in self._phases:
            for item, name in zip(phase.inputs, phase.rows, strict=False):
                type = self._types[name]
                item.source = self.addresses[self.slots[name]]
                item.row_bytes = type.bytes(sizes) // sizes[self.shape.batch]
        rows = sizes[self.shape.batch]
        windows = self._windows(rows, rows)
        windows.steps, windows.bounds, windows.bound_count = 1, ctypes.addressof(self._bounds), len(self._bounds)
        return self._advance(windows) is not None

    def _place_whole(self, sizes: Mapping[str, int]) -> None:
        for phase in self._phases:
            program = phase.program
            for i, symbol in enumerate(program.plan.symbols):
                if symbol in sizes:
                    program.dims[i] = sizes[symbol]
            for name in phase.whole:
                program.addresses[program.slots[name]] = self.addresses[self.slots[name]]
            program.set_epoch()

    def run_epoch(self, epoch: Epoch) -> Iterator[None]:
        """Windows until the epoch's end, in slices of about 50 ms; yields after each."""
        windows = self._windows(epoch.rows, epoch.batch)
        windows.seconds = SLICE_SECONDS
        if epoch.order is not None:
            windows.order_kind, windows.order_epoch, windows.order_seed = native.SHUFFLED, epoch.order, epoch.seed
        while epoch.position < epoch.rows:
            self._place_sources(epoch)  # whoever looked between two slices may have made steps of other rows
            left = len(epoch.losses) - epoch.done
            windows.position, windows.steps = epoch.position, min(left, epoch.most or left)
            windows.losses = epoch.losses.ctypes.data + epoch.done * epoch.losses.itemsize
            done = self._advance(windows)
            assert done is not None, "an epoch's indices were checked before"
            epoch.position, epoch.done = windows.position, epoch.done + done
            yield

    def _place_sources(self, epoch: Epoch) -> None:
        self._place_whole(dict(zip(self.plan.symbols, self.dims, strict=True)))
        for phase in self._phases:
            for item, name in zip(phase.inputs, phase.rows, strict=False):
                source = epoch.sources[name]
                item.source, item.row_bytes = source.ctypes.data, source.nbytes // len(source)

    def _windows(self, rows: int, window: int) -> native.Windows:
        last = self._phases[-1].program.plan
        loss = last.buffers[last.outputs[0][1]]
        self._loss = (ctypes.c_double * 1)()
        part = min(self.shape.part, window)
        return native.Windows(
            phases=self._native,
            phase_count=len(self._phases),
            loss=self.outputs[last.outputs[0][0]].ctypes.data,
            refused=None if self._refused is None else self._refused.ctypes.data,
            losses=ctypes.addressof(self._loss),
            rows=rows,
            window=window,
            part=part,
            order_kind=native.SEQUENTIAL,
            loss_is_double=loss.type.dtype.size == 8,
            stop_on_refusal=self._stops,
            threads=self._place.threads,
        )

    def _advance(self, windows: native.Windows) -> int | None:
        state = self._state
        windows.step = state.step
        done = self._library.run_windows(windows)
        if done is not None and self._advances:
            state.step = windows.step
            state.family.version += max(done, 1)
        return done
