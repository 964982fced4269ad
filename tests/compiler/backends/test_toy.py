"""A backend in one file, outside of the package: a target, a program that runs kernels, and a name.

docs/guides/your-own-backend.md tells what each piece is.  It knows what a multi-layer perceptron needs, and refuses
the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.backends.common.numpy_program import HostDevice, HostProgram, LaunchMemory
from wholestep.compiler.backends.reference.target import REFERENCE
from wholestep.compiler.devices import register, unregister
from wholestep.compiler.ir.types import Extent, evaluate
from wholestep.compiler.plan.model.bodies import Columns, Dot, Nest
from wholestep.compiler.plan.model.kernel import Index, Instr, Kernel, Level, Load, Reduce, Space, Store
from wholestep.errors import OptionError

Array = np.ndarray[Any, Any]

# What plans are made for: no composite has a kernel here, so all are decomposed.
TOY = replace(REFERENCE, name="toy", composites=frozenset())

SAME = ("add", "exp", "log", "sqrt", "maximum", "minimum", "equal", "not_equal", "less", "less_equal", "where")
POINTWISE = {name: getattr(np, name) for name in SAME} | {
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "recip": np.reciprocal,
    "cast": np.asarray,
}
REDUCTIONS = {"sum": np.sum, "max": np.max, "argmax": np.argmax}


class ToyProgram(HostProgram):
    """Kernels in the plan's order."""

    def run(self, memory: LaunchMemory) -> None:
        for kernel in self.plan.kernels:
            ToyKernel(kernel, memory).run()


class ToyKernel:
    """A kernel: every value is an array over the kernel's axes, 1 long where it does not vary."""

    def __init__(self, kernel: Kernel, memory: LaunchMemory) -> None:
        self.kernel, self.memory = kernel, memory
        self.grid = np.indices(memory.shape(kernel.axes), sparse=True)
        self.known: dict[int, Array] = {}  # values by number
        self.rows: dict[int, Array] = {}  # workspace that a row carries from one level to the next

    def run(self) -> None:
        body = self.kernel.body
        if isinstance(body, Nest):
            for level in body.levels:
                self.instructions(level.row, level.row_stores)
                self.instructions(level.body, level.stores, level.reduces, body.vector)
        elif isinstance(body, Columns):
            self.columns(body.levels, body.reduced)
        elif isinstance(body, Dot):
            (acc,) = (i.id for i in body.levels[0].body if i.op == "acc")
            self.known[acc] = (self.load(body.a) * self.load(body.b)).sum(axis=body.k, keepdims=True)
            self.instructions(body.levels[0].body, body.levels[0].stores)
            if body.levels[1:]:  # column sums of the right operand
                self.columns(body.levels[1:], body.k)
        else:
            raise NotImplementedError(f"the toy runs no {type(body).__name__}")

    def columns(self, levels: Sequence[Level], along: int) -> None:
        sums, behind = levels
        self.instructions(sums.body, (), sums.reduces, along)
        self.instructions(behind.body, behind.stores)

    def instructions(
        self, instrs: Sequence[Instr], stores: Sequence[Store], reduces: Sequence[Reduce] = (), along: int | None = None
    ) -> None:
        for i in instrs:
            if i.op != "acc":
                self.known[i.id] = np.asarray(self.value(i)).astype(i.dtype.numpy)
        for store in stores:
            self.store(store.load, self.known[store.value])
        for r in reduces:
            value = self.known[r.value]
            self.known[r.id] = REDUCTIONS[r.op](value, axis=along, keepdims=True).astype(r.dtype.numpy)

    def value(self, i: Instr) -> Array | float:
        if i.op == "load":
            assert i.load is not None
            assert not i.guards, "the toy pads nothing"
            return self.load(i.load)
        if i.op == "const":
            return i.const
        if i.op == "scalar":
            return self.memory.slots[i.slot]
        if i.op == "index":
            assert i.index is not None
            return self.place(i.index, 0)
        if i.op not in POINTWISE:
            raise NotImplementedError(f"the toy has no {i.op!r}")
        return POINTWISE[i.op](*(self.known[a] for a in i.args))

    def number(self, extent: Extent) -> int:
        return evaluate(extent, self.memory.sizes)

    def place(self, index: Index, extent: int) -> Array:
        """Where in a dimension: affine in the axes, or computed and clamped."""
        at: Any = self.number(index.offset) + sum(self.number(c) * self.grid[a] for a, c in index.terms)
        if index.value is not None:
            at = at + np.clip(self.known[index.value].astype(np.int64), 0, extent - 1)
        return np.asarray(at) // index.over

    def positions(self, load: Load) -> Array:
        shape = self.memory.shape(load.shape)
        strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
        parts = (self.place(i, e) * s for i, e, s in zip(load.index, shape, strides, strict=True))
        return sum(parts, np.zeros([1] * len(self.grid), np.int64))

    def load(self, load: Load) -> Array:
        if self.memory.plan.buffers[load.buffer].space is Space.WORK:
            return self.rows[load.buffer]
        return self.memory.arrays[load.buffer][self.positions(load)]

    def store(self, load: Load, value: Array) -> None:
        if self.memory.plan.buffers[load.buffer].space is Space.WORK:
            self.rows[load.buffer] = value
        else:
            at, values = np.broadcast_arrays(self.positions(load), value)
            self.memory.arrays[load.buffer][at] = values


# -- it trains -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    register("toy", TOY, lambda target: HostDevice(target, ToyProgram))
    yield
    unregister("toy")


def train(device: str) -> tuple[ws.nn.Module, ws.TrainHistory]:
    """The digits in four epochs; every fifth one is held out."""
    x, y = ws.datasets.digits()
    held = np.arange(len(x)) % 5 == 0
    model = ws.nn.Sequential(ws.nn.Linear(64, 32), ws.nn.ReLU(), ws.nn.Linear(32, 10))
    history = ws.fit(
        model,
        (x[~held], y[~held]),
        validation=(x[held], y[held]),
        loss="cross_entropy",
        optimizer=ws.Adam(lr=1e-2),
        metrics=["accuracy"],
        batch_size=100,
        epochs=4,
        device=device,
        progress=False,
    )
    return model, history


def test_a_backend_outside_the_package_trains_the_digits() -> None:
    _, ours = train("toy")
    _, cpus = train("cpu")
    assert ours["val_accuracy"][-1] > 0.93
    np.testing.assert_allclose(ours["loss"], cpus["loss"], rtol=1e-4)


def test_what_a_backend_cannot_run_is_said_by_it() -> None:
    g = ws.Graph()
    g.set_outputs({"sine": ws.sin(g.input("x", (3,)))})
    session = ws.build_inference_session(g, device="toy", options=ws.CompileOptions(verify=False))
    with pytest.raises(NotImplementedError, match="the toy has no 'sin'"):
        session.step(x=np.zeros(3, np.float32))


def test_a_name_is_taken_once_and_can_be_given_back() -> None:
    with pytest.raises(OptionError, match="must be an unused identifier; received 'cpu'"):
        register("cpu", TOY, lambda target: HostDevice(target, ToyProgram))
    register("other", TOY, lambda target: HostDevice(target, ToyProgram))
    unregister("other")
    with pytest.raises(OptionError, match="device='other': expected one of 'cpu', 'cuda', 'reference', 'null', 'toy'"):
        ws.build_inference_session(ws.Graph(), device="other")
