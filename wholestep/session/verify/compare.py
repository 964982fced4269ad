"""Compares the results of a step with expected ones: by tensor, relative to the tensor's scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.ir.semantics.interpret import Result
from wholestep.compiler.ir.types import TensorType, TupleType, as_dtype, bfloat16, float16, float32, float64, letter_of
from wholestep.session.verify.random_inputs import scale
from wholestep.session.verify.state_samples import is_large, positions

Array = np.ndarray[Any, Any]

# Of a tensor's scale.  Sums of thousands of terms and chains of dozens of layers stay below it, a wrong term does not.
# Of half types it is one rounding up where the interpreter rounds down: a float32 sum may lie on either side of a tie.
TOLERANCE = {float64: 1e-9, float32: 1e-4, float16: 2 * float16.eps, bfloat16: 2 * bfloat16.eps}
WIDENED = {"bitwise": 1.0, "reassociating": 1.0, "approximate": 10.0}
TF32_TOLERANCE = 8 * float16.eps  # for products that round float32 operands to 10 bits, without a cast in the graph
ROUNDINGS = 8.0  # that the last operations on a state may lose, in units of the state's own scale
SHAKEN = 4.0  # times the dtype's rounding: what a node's value is off by, in the noisy evaluation
DRAWN = (
    65521  # random numbers, taken over and over, each time from another one on: one for every value takes as long as
)
# half of the step.  A prime: rows and columns of no tensor meet the same ones
PIECE = 1 << 16  # positions that are compared at a time: what is made of them on the way stays in the cache
NOISE = 10.0  # times what rounding does there is no mismatch
# These copy values, unrounded: what picks the largest keeps the equality that its gradient asks for.
MOVES = ops_with(Trait.VIEW | Trait.GATHERS) | {"item", "max", "maximum", "minimum", "relu"}


@dataclass(frozen=True)
class Mismatch:
    """The worst position of one output or state."""

    what: str  # "the output 'loss'"
    position: tuple[int, ...]
    got: float
    wanted: float
    error: float

    def __str__(self) -> str:
        at = f" at position {', '.join(map(str, self.position))}" if self.position else ""
        return f"{self.what} is {self.got:.9g}{at}, and should be {self.wanted:.9g}"


@dataclass
class Comparison:
    """All outputs and states of a step."""

    tolerance: float
    worst: float = 0.0
    where: str = ""
    not_finite: dict[str, int] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    def add(self, tensor: ComparedTensor) -> None:
        """Compare one tensor."""
        both = ~np.isfinite(tensor.got) & ~np.isfinite(tensor.wanted)
        if both.any():
            self.not_finite[tensor.what] = int(both.sum())
        error = tensor.error(self.tolerance)
        error[both] = 0.0
        if not error.size:
            return
        position = np.unravel_index(int(error.argmax()), error.shape)
        largest = float(error[position])
        if largest > self.worst:
            self.worst, self.where = largest, tensor.what
        if largest > self.tolerance:
            values = float(tensor.got[position]), float(tensor.wanted[position])
            self.mismatches.append(Mismatch(tensor.what, tensor.place(position), *values, largest))


@dataclass(frozen=True)
class ComparedTensor:
    """One output or state: what came out, what should have, what a state was before."""

    what: str
    got: Array
    wanted: Array
    before: Array | None = None
    noise: Array | None = None  # what rounding alone may change
    shape: tuple[int, ...] = ()  # a state's own, of which a grid may be looked at

    def place(self, position: Sequence[Any]) -> tuple[int, ...]:
        """Where in the whole tensor something is that was found at a position of what was looked at."""
        if not is_large(self.shape):
            return tuple(map(int, position))
        return tuple(int(positions(n)[i]) for n, i in zip(self.shape, position, strict=True))

    def error(self, tolerance: float) -> Array:
        """The error at every position relative to the tensor's scale; infinite where one value alone is finite."""
        is_float, dtype = letter_of(self.got.dtype) == "f", self.got.dtype
        got, wanted = self.got.reshape(-1), self.wanted.reshape(-1)
        out = np.empty(got.size)
        with np.errstate(all="ignore"):
            size = max(self._scale(self.wanted.astype(dtype), tolerance), 1e-30) if is_float else 1.0
            for start in range(0, out.size, PIECE):
                part = slice(start, start + PIECE)
                # What the dtype cannot hold is infinite in both.
                meant = wanted[part].astype(dtype) if is_float else wanted[part]
                off = np.abs(got[part].astype(np.float64) - meant.astype(np.float64))
                out[part] = (np.nan_to_num(off, nan=np.inf) if is_float else off) / size
            if self.noise is not None:  # the part that rounding does not explain; none where it alone may give NaN
                rough = NOISE * scale(self.noise) / size
                out = np.where(np.isfinite(self.noise.reshape(-1)), np.maximum(out - rough, 0.0), 0.0)
        return out.reshape(self.got.shape)

    def _scale(self, wanted: Array, tolerance: float) -> float:
        """Of an output, its size; of a state, how far the step moves it, and a few roundings of its size."""
        if self.before is None:
            return scale(wanted)
        moved = scale(wanted.astype(np.float64) - self.before)
        rounding = ROUNDINGS * as_dtype(self.got.dtype).eps
        return moved + rounding / tolerance * max(scale(wanted), scale(self.before))


def tolerance_of(graph: IRGraph, exactness: str, tf32: bool = False) -> float:
    """By the coarsest dtype that the graph computes in, or its products do."""
    types = [t for n in graph.nodes if not n.host for t in n.results]
    coarse = max((t.dtype for t in types if t.dtype.is_float), key=lambda d: d.eps, default=float64)
    return max(TOLERANCE[coarse], TF32_TOLERANCE if tf32 else 0.0) * WIDENED[exactness]


def compare_step(
    shapes: Mapping[str, tuple[int, ...]],
    before: Mapping[str, Array],
    got: Result,
    wanted: Result,
    tolerance: float,
    noise: Result | None = None,
) -> Comparison:
    """A step against its meaning; given the noise of rounding, only what it cannot explain is a mismatch."""
    out = Comparison(tolerance)
    for name, value in got.outputs.items():
        rough = None if noise is None else noise.outputs[name]
        out.add(ComparedTensor(f"the output {name!r}", value, wanted.outputs[name], None, rough))
    for name, value in got.state.items():
        rough = None if noise is None else noise.state[name]
        out.add(ComparedTensor(f"the state {name!r}", value, wanted.state[name], before[name], rough, shapes[name]))
    return out


# -- what rounding alone may do ----------------------------------------------------------------------------------


def perturb_by_rounding(seed: int, tf32: bool = False) -> Callable[[Node, Any], Any]:
    """Changes a node's value by a few roundings of its dtype, or of what its products read.

    How far outputs and states move by that is what rounding may do to them.
    """
    rng = np.random.default_rng(seed)
    numbers = np.tile(rng.uniform(-1.0, 1.0, DRAWN), 2)

    def shake(node: Node, value: Any) -> Any:
        first = rng.integers(DRAWN)
        some = numbers[first : first + DRAWN]
        if isinstance(node.result, TupleType):
            return tuple(_shaken(node, t, v, some, tf32) for t, v in zip(node.results, value, strict=True))
        return _shaken(node, node.type, value, some, tf32)

    return shake


def distances(a: Result, b: Result) -> Result:
    """How far two steps are apart, position by position."""
    return Result(_distances(a.outputs, b.outputs), _distances(a.state, b.state))


def _distances(a: dict[str, Array], b: dict[str, Array]) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        return {name: np.abs(a[name].astype(np.float64) - b[name].astype(np.float64)) for name in a}


def _shaken(node: Node, type: TensorType, value: Array, numbers: Array, tf32: bool) -> Array:
    if node.host or not type.dtype.is_float or node.op in MOVES:
        return value
    rounding = type.dtype.eps * (1.0 if type.dtype.is_half else SHAKEN)  # a half type is one rounding off at most
    if tf32 and type.dtype == float32 and OPS[node.op].family in (Family.CONTRACTION, Family.WINDOW):
        rounding = float16.eps
    shaken: Array = np.array(value.astype(type.dtype.numpy), np.float64, order="C")
    flat = shaken.reshape(-1)
    factors = 1.0 + rounding * numbers[: flat.size]
    for start in range(0, flat.size, factors.size or 1):
        part = flat[start : start + factors.size]
        part *= factors[: part.size]
    return shaken
