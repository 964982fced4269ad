"""Scalar prologue in plain Python floats: step-dependent scalars (learning rate, bias corrections) per launch.

It takes one microsecond, where NumPy scalars take fifty; the results are the same bits.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np

from wholestep.compiler.backends.common.numpy_program import pointwise, prologue
from wholestep.compiler.ir.types import DType, boolean, evaluate, float32, float64, int32, int64
from wholestep.compiler.plan.model.kernel import HostValue, Plan
from wholestep.compiler.runtime.arrays import AnyArray

Function = Callable[..., float]

FUNCTIONS: Mapping[str, Function] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "ratio": operator.truediv,
    "neg": operator.neg,
    "abs": abs,
    "recip": lambda x: 1.0 / x,
    "exp": math.exp,
    "exp2": math.exp2,
    "expm1": math.expm1,
    "log": math.log,
    "log2": math.log2,
    "log1p": math.log1p,
    "sin": math.sin,
    "cos": math.cos,
    "sqrt": math.sqrt,
    "erf": math.erf,
    "floor": math.floor,
    "tanh": math.tanh,
    "atan": math.atan,
    "pow": math.pow,
    "maximum": lambda x, y: x if x >= y or x != x else y,
    "minimum": lambda x, y: x if x <= y or x != x else y,
    "relu": lambda x: 0.0 if x <= 0 else x,
    "less": lambda x, y: float(x < y),
    "less_equal": lambda x, y: float(x <= y),
    "equal": lambda x, y: float(x == y),
    "not_equal": lambda x, y: float(x != y),
    "where": lambda c, x, y: x if c else y,
    "logical_and": lambda x, y: float(bool(x) and bool(y)),
    "logical_or": lambda x, y: float(bool(x) or bool(y)),
    "logical_not": lambda x: float(not x),
    "cast": lambda x: x,
}


def _single(x: float) -> float:
    return ctypes.c_float(x).value


def _integer(x: float) -> float:
    """Truncates to an integer; ValueError if int32 cannot represent it."""
    if not -MOST < x < MOST:
        raise ValueError(x)
    return float(math.trunc(x))


MOST = 2.0**31  # limit of int32
CASTS: Mapping[DType, Function] = {int32: _integer, int64: _integer, boolean: lambda x: float(x != 0)}


@dataclass(frozen=True)
class PrologueOp:
    """One instruction: an op on earlier values, given by position, perhaps rounded to float32."""

    op: str
    args: tuple[int, ...]
    dtype: DType | None
    slot: int | None

    @property
    def single(self) -> bool:
        return self.dtype is float32

    @property
    def function(self) -> Function:
        """The instruction's function on plain floats."""
        cast = CASTS.get(self.dtype) if self.op == "cast" and self.dtype is not None else None
        return cast or FUNCTIONS[self.op]


class Prologue:
    """Computes the slots of a plan from scalars and sizes."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sizes: Mapping[str, int] | None = None
        self._scalar_values: list[tuple[int, HostValue]] = []  # constants, scalars and sizes, by position
        self._computed: list[tuple[int, PrologueOp]] = []
        self._plain = all(map(_is_plain, plan.host))
        position = {v.id: i for i, v in enumerate(plan.host)}
        for i, v in enumerate(plan.host if self._plain else ()):
            if v.op in GIVEN:
                self._scalar_values.append((i, v))
            else:
                args = tuple(position[a] for a in v.args)
                self._computed.append((i, PrologueOp(v.op, args, v.dtype, v.slot)))
        self._current = [0.0] * len(plan.host)
        self._slots = [0.0] * plan.slots

    def slots(self, sizes: Mapping[str, int], scalars: Sequence[float]) -> Sequence[float]:
        """The value of every slot; always the same list object."""
        if not self._plain:
            with np.errstate(all="ignore"):
                return prologue(self._plan, sizes, scalars)
        values, slots = self._current, self._slots
        self._give(sizes, scalars)
        for i, value in self._computed:
            x = _one(value, [values[a] for a in value.args])
            values[i] = x
            if value.slot is not None:
                slots[value.slot] = x
        return slots

    def table(self, sizes: Mapping[str, int], many: AnyArray) -> AnyArray:
        """One row of slots per step, for steps that differ in their scalars: bit for bit the values of `slots`."""
        if not self._plain:
            with np.errstate(all="ignore"):
                rows = [prologue(self._plan, sizes, scalars) for scalars in many.tolist()]
            return np.array(rows).reshape(len(many), -1)
        self._give(sizes, many[0].tolist())
        columns = many.T
        values: list[float | AnyArray] = list(self._current)
        rows_of_slots = np.zeros((len(many), self._plan.slots))
        for i, v in self._scalar_values:
            if v.op == "scalar" and (columns[v.index] != columns[v.index][0]).any():
                values[i] = columns[v.index]
            if v.slot is not None:
                rows_of_slots[:, v.slot] = values[i]
        with np.errstate(all="ignore"):
            for i, value in self._computed:
                values[i] = _several(value, [values[a] for a in value.args], len(many))
                if value.slot is not None:
                    rows_of_slots[:, value.slot] = values[i]
        return rows_of_slots

    def _give(self, sizes: Mapping[str, int], scalars: Sequence[float]) -> None:
        """Sets constants, scalars and sizes; sizes only when they change."""
        values, slots = self._current, self._slots
        for i, v in self._scalar_values:
            if v.op == "scalar":
                values[i] = scalars[v.index]
            elif sizes is not self._sizes:
                values[i] = v.const if v.op == "const" else float(evaluate(v.extent, sizes))
            if v.slot is not None:
                slots[v.slot] = values[i]
        self._sizes = sizes


def _one(value: PrologueOp, args: Sequence[float]) -> float:
    try:
        x = value.function(*args)
    except (ArithmeticError, ValueError):  # NumPy computes infinities and NaN
        dtype = value.dtype if value.op == "cast" and value.dtype is not None else float64
        with np.errstate(all="ignore"):
            x = float(pointwise(value.op, dtype, [np.array(a, np.float64) for a in args]))
    return _single(x) if value.single else x


def _several(value: PrologueOp, args: Sequence[float | AnyArray], count: int) -> float | AnyArray:
    """An instruction for several steps: vectorised if NumPy rounds as Python does, else one by one."""
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    if not arrays:
        return _one(value, [float(a) for a in args])
    if value.op in EXACT and value.function is FUNCTIONS[value.op]:
        x: AnyArray = EXACT[value.op](*args)
        return x.astype(np.float32).astype(np.float64) if value.single else x
    rows = list(zip(*(a.tolist() if isinstance(a, np.ndarray) else [a] * count for a in args), strict=True))
    try:
        results = np.array(list(starmap(value.function, rows)))
    except (ArithmeticError, ValueError):
        return np.array([_one(value, row) for row in rows])
    return results.astype(np.float32).astype(np.float64) if value.single else results


# These ops are correctly rounded in both Python and NumPy.
EXACT: Mapping[str, Callable[..., AnyArray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "ratio": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "recip": np.reciprocal,
    "sqrt": np.sqrt,
    "cast": np.asarray,
}
GIVEN = ("const", "scalar", "size")
TRUTHS = ("less", "less_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_not")


def _is_plain(value: HostValue) -> bool:
    if value.op == "cast" and value.dtype in CASTS:
        return True
    if value.op in TRUTHS:
        return value.dtype in (None, boolean)
    return (value.op in FUNCTIONS or value.op in GIVEN) and value.dtype in (None, float32, float64)


class PrologueScalars:
    """The runtime scalars of a program, and the slots of its steps."""

    def __init__(self, plan: Plan) -> None:
        self._values = {s.name: s.default for s in plan.scalars}  # in the plan's order
        self._step = list(self._values).index("step") if "step" in self._values else None
        self._prologue = Prologue(plan)
        self.version = 0  # incremented by every change
        self._epoch = -1

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch; called in every step."""
        if epoch != self._epoch:
            self._epoch = epoch
            self.set("epoch", float(epoch))

    def set(self, name: str, value: float) -> None:
        """Sets a scalar from the next step on; a scalar that the plan does not use is ignored."""
        if self._values.get(name, value) != value:
            self._values[name] = value
            self.version += 1

    def slots(self, sizes: Mapping[str, int], step: int) -> Sequence[float]:
        """Slots of one step."""
        return self._prologue.slots(sizes, self._scalar_values(step))

    def table(self, sizes: Mapping[str, int], steps: Sequence[int]) -> AnyArray:
        """The scalar slots of several steps, (steps, slots)."""
        many = np.tile(np.array(self._scalar_values(0), np.float64), (len(steps), 1))
        if self._step is not None:
            many[:, self._step] = steps
        return self._prologue.table(sizes, many)

    def _scalar_values(self, step: int) -> list[float]:
        values = list(self._values.values())
        if self._step is not None:
            values[self._step] = float(step)
        return values
