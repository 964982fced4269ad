"""A base for backends whose memory is the host's: programs over NumPy arrays, and their device.

Such a backend is a target, and a program whose `run` gets a flat array for every buffer.  The reference backend is one;
so is the toy of docs/guides/your-own-backend.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from wholestep.compiler.backend import LoadContext, MicroBatchShape, NoScratch, Program, check_indices, do_nothing
from wholestep.compiler.backends.common.micro_batches import LaunchedMicroBatches
from wholestep.compiler.backends.common.program import ProgramBase, staging_arrays
from wholestep.compiler.ir.attrs import NONE, CastAttrs
from wholestep.compiler.ir.semantics.values import VALUES
from wholestep.compiler.ir.types import DType, Shape, evaluate, float64
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.kernel import Buffer, HostValue, Layout, Plan, Space
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.cache.content_store import key_of
from wholestep.compiler.runtime.sources import compiler_version
from wholestep.compiler.runtime.state.storage import HostArray, HostMemory
from wholestep.compiler.target import Target
from wholestep.errors import PlanError, UsageError
from wholestep.options import CompileOptions


@dataclass(frozen=True)
class LaunchMemory:
    """The memory and scalars of one launch, as kernels see them."""

    plan: Plan
    arrays: Mapping[int, AnyArray]  # buffer -> its elements, flat, in dense rows; workspace has none
    sizes: Mapping[str, int]  # symbol -> size
    slots: Sequence[float]  # results of the scalar prologue
    seed: int
    step: int

    def shape(self, shape: Shape) -> tuple[int, ...]:
        return tuple(evaluate(e, self.sizes) for e in shape)


ROWS = HostMemory("rows", lambda type: Layout.ROWS)


@dataclass(frozen=True)
class Launched:
    """A completed launch with its own outputs: the next launch writes to other arrays."""

    outputs: Mapping[str, AnyArray]

    def wait(self) -> None:
        """Returns at once: the launch is complete."""

    def loss(self) -> float:
        """The first output."""
        return float(next(iter(self.outputs.values())))

    def read(self, name: str) -> AnyArray:
        """A copy of an output."""
        return self.outputs[name].copy()

    def keep(self) -> Launched:
        return self


class HostProgram(ProgramBase, ABC):
    """A plan and the state that it changes; a backend implements `run`."""

    def __init__(self, plan: Plan, place: LoadContext, meanwhile: Callable[[], None] = do_nothing) -> None:
        meanwhile()
        super().__init__(plan)
        self._place = place
        self._constants = {id: np.frombuffer(data, plan.buffers[id].type.dtype.numpy) for id, data in plan.constants}
        self._staging = staging_arrays(plan)
        self._scalars = {s.name: s.default for s in plan.scalars}
        self._last = Launched({})
        arrays = (*self._constants.values(), *self._staging.values())
        self.mapped_bytes = sum(array.nbytes for array in arrays)
        self.count_steps(bool(plan.updated))

    @abstractmethod
    def run(self, memory: LaunchMemory) -> None:
        """Run every kernel of the plan; states and outputs are written in place in `memory`."""

    @property
    def source(self) -> str:
        raise UsageError(
            f"a session on the device {self.plan.target!r} interprets its plan and has no source. Look at "
            "session.plan, or build it with device='cpu'."
        )

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar; a scalar that the plan does not use is ignored."""
        if name in self._scalars:
            self._scalars[name] = value

    # -- one step ------------------------------------------------------------------------------------------------

    def launch(self, sizes: Mapping[str, int]) -> Launched:
        """Run one step to completion."""
        plan, state = self.plan, self._place.state
        check_indices(plan, self._inputs, sizes)
        self._sync_states()
        arrays = {b.id: self._array(b) for b in plan.buffers if b.space is not Space.WORK}
        _copy_states(plan, arrays)
        scalars = {**self._scalars, "step": float(state.step), "epoch": float(state.epoch)}
        with np.errstate(all="ignore"):  # infinities and NaN are ordinary values
            slots = prologue(plan, sizes, [scalars[s.name] for s in plan.scalars])
            self.run(LaunchMemory(plan, arrays, sizes, slots, self._place.where.seed, state.step))
        state.family.version += bool(plan.updated)  # other programs then refresh their copies of the state
        shapes = {name: [evaluate(e, sizes) for e in type.shape] for name, type in self.outputs.items()}
        states = {id for _, id in plan.states}  # an output that is a state is copied, as the next launch changes it
        outputs = {n: arrays[id].copy() if id in states else arrays[id] for n, id in plan.outputs}
        launch = self._last = Launched({n: array[: prod(shapes[n])].reshape(shapes[n]) for n, array in outputs.items()})
        state.step += self.counts(launch)
        return launch

    def _array(self, buffer: Buffer) -> AnyArray:
        """The flat array of a buffer for one step; states are changed in place."""
        if buffer.space is Space.INPUT:
            return self._inputs[buffer.name].reshape(-1)
        if buffer.space is Space.CONSTANT:
            return self._constants[buffer.id]
        if buffer.space is Space.STATE:
            return self._state_array(buffer.name).flat
        array = np.empty(evaluate(buffer.type.elements, self.plan.sizes), buffer.type.dtype.numpy)
        array[:] = np.nan if buffer.type.dtype.is_float else 1  # poison: no kernel may rely on the previous content
        return array

    def _state_array(self, state: str) -> HostArray:
        storage = self._place.state.slot(state).on(ROWS)
        assert isinstance(storage, HostArray), "ROWS is host memory"
        return storage

    def _sync_states(self) -> None:
        """Copy states that were changed elsewhere, perhaps on another device, into this memory."""
        for name, _ in self.plan.states:
            self._place.state.slot(name).sync_to(ROWS.kind, name in self.plan.updated)


def _copy_states(plan: Plan, arrays: Mapping[int, AnyArray]) -> None:
    for buffer in plan.buffers:
        if buffer.space is Space.COPY:
            assert buffer.source is not None, "a copy has a source state"
            shape = _numbers(plan.buffers[buffer.source].type.shape)
            state = arrays[buffer.source][: prod(shape)].reshape(shape)
            values = state.T if buffer.transposed else state
            copy = arrays[buffer.id].reshape(_numbers(buffer.type.shape))
            copy[...] = 0  # including the padding, if the copy has any
            copy[tuple(map(slice, values.shape))] = values  # a half copy rounds


def _numbers(shape: Shape) -> tuple[int, ...]:
    """The shape of a state, which has no symbolic sizes."""
    return tuple(evaluate(e, {}) for e in shape)


# -- scalars -----------------------------------------------------------------------------------------------------


def prologue(plan: Plan, sizes: Mapping[str, int], scalars: Sequence[float]) -> list[float]:
    """The value of every slot: expressions of runtime scalars and sizes, in float64."""
    values: dict[int, AnyArray] = {}
    slots = [0.0] * plan.slots
    for value in plan.host:
        values[value.id] = _host_value(value, [values[a] for a in value.args], sizes, scalars)
        if value.slot is not None:
            slots[value.slot] = float(values[value.id])
    return slots


def _host_value(
    value: HostValue, args: Sequence[AnyArray], sizes: Mapping[str, int], scalars: Sequence[float]
) -> AnyArray:
    if value.op == "const":
        return np.array(value.const, np.float64)
    if value.op == "scalar":
        return np.array(scalars[value.index], np.float64)
    if value.op == "size":
        return np.array(evaluate(value.extent, sizes), np.float64)
    casts = value.op == "cast" and value.dtype is not None
    result = pointwise(value.op, value.dtype if casts and value.dtype is not None else float64, args)
    if value.dtype is not None and value.dtype.is_float:
        result = result.astype(value.dtype.numpy)
    return result.astype(np.float64)


def pointwise(op: str, dtype: DType, args: Sequence[AnyArray]) -> AnyArray:
    """An elementwise op of the IR, in the dtype of its result."""
    if op == "cast" and not (args[0].dtype.kind not in "iub" and dtype.is_integer):
        return args[0].astype(dtype.numpy)
    attrs = CastAttrs(dtype) if op == "cast" else NONE
    return np.asarray(VALUES[op](None, attrs, *args)).astype(dtype.numpy, copy=False)


# -- the device --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostDevice:
    """A device that runs the plans of its target with a `HostProgram`."""

    target: Target
    program: type[HostProgram]
    runs = True
    memory = ROWS

    @property
    def name(self) -> str:
        return self.target.family

    def scratch(self) -> NoScratch:
        return NoScratch()

    def prepare(self, options: CompileOptions) -> None:
        """Nothing is compiled."""

    def load(
        self, plan: Plan, place: LoadContext, key: str = "", meanwhile: Callable[[], None] = do_nothing
    ) -> HostProgram:
        """The program of a plan for this target."""
        if plan.target != self.target.name:
            raise PlanError(
                f"the plan is for {plan.target!r} and cannot run on {self.name!r}; plan it again with "
                f"device={self.name!r}."
            )
        return self.program(plan, place, meanwhile)

    def load_micro_batches(
        self, plan: Plan, programs: Sequence[Program], place: LoadContext, shape: MicroBatchShape
    ) -> LaunchedMicroBatches:
        return LaunchedMicroBatches(plan, programs, place.state, shape)

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        """The key of the plan, which is interpreted."""
        return key_of(self.name, key or serialize.dump(plan), compiler_version(self.target.family))

    def notes(self, plan: Plan) -> tuple[str, ...]:
        return plan.notes
