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

# Relative to a tensor's scale.  Rounding errors of sums of thousands of terms and of dozens of layers stay below this
# tolerance, a wrong term does not.  For half types it is one rounding up instead of down: the float32 sum may be on
# either side of a tie.
TOLERANCE = {float64: 1e-9, float32: 1e-4, float16: 2 * float16.eps, bfloat16: 2 * bfloat16.eps}
WIDENED = {"bitwise": 1.0, "reassociating": 1.0, "approximate": 10.0}
TF32_TOLERANCE = 8 * float16.eps  # for products that round float32 operands to 10 bits, without a cast in the graph
ROUNDINGS = 8.0  # roundings that the last operations on a state may lose, relative to the state's own scale
SHAKEN = 4.0  # the error of a node's value in the noisy evaluation, in units of the dtype's rounding
# Random numbers, which are used repeatedly, each time from another offset: one per value would take half as long as the
# step.  A prime, so that rows and columns of a tensor get different numbers.
DRAWN = 65521
PIECE = 1 << 16  # positions that are compared at a time, so that intermediate arrays stay in the cache
NOISE = 10.0  # an error below this multiple of the rounding noise is no mismatch
# These ops copy values without rounding.  Noise is not added to them: the gradient of max tests x == max(x).
MOVES = ops_with(Trait.VIEW | Trait.GATHERS) | {"item", "max", "maximum", "minimum", "relu"}


@dataclass(frozen=True)
class Mismatch:
    """The position of one output or state with the largest error."""

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
    """The comparison of all outputs and states of a step."""

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
    """One output or state: the actual value, the expected one, and a state's value before the step."""

    what: str
    got: Array
    wanted: Array
    before: Array | None = None
    noise: Array | None = None  # the change that rounding alone may cause
    shape: tuple[int, ...] = ()  # shape of the whole state, if only a grid of it is compared

    def place(self, position: Sequence[Any]) -> tuple[int, ...]:
        """The position in the whole tensor of a position in the compared part."""
        if not is_large(self.shape):
            return tuple(map(int, position))
        return tuple(int(positions(n)[i]) for n, i in zip(self.shape, position, strict=True))

    def error(self, tolerance: float) -> Array:
        """The error at every position relative to the tensor's scale; infinite where only one value is finite."""
        is_float, dtype = letter_of(self.got.dtype) == "f", self.got.dtype
        got, wanted = self.got.reshape(-1), self.wanted.reshape(-1)
        out = np.empty(got.size)
        with np.errstate(all="ignore"):
            size = max(self._scale(self.wanted.astype(dtype), tolerance), 1e-30) if is_float else 1.0
            for start in range(0, out.size, PIECE):
                part = slice(start, start + PIECE)
                # Values beyond the dtype's range are infinite in both.
                meant = wanted[part].astype(dtype) if is_float else wanted[part]
                off = np.abs(got[part].astype(np.float64) - meant.astype(np.float64))
                out[part] = (np.nan_to_num(off, nan=np.inf) if is_float else off) / size
            # the part of the error that rounding does not explain; 0 where rounding alone may give NaN
            if self.noise is not None:
                rough = NOISE * scale(self.noise) / size
                out = np.where(np.isfinite(self.noise.reshape(-1)), np.maximum(out - rough, 0.0), 0.0)
        return out.reshape(self.got.shape)

    def _scale(self, wanted: Array, tolerance: float) -> float:
        """The scale of an output is its magnitude; that of a state is its change in the step, and a few roundings of
        its magnitude.
        """
        if self.before is None:
            return scale(wanted)
        moved = scale(wanted.astype(np.float64) - self.before)
        rounding = ROUNDINGS * as_dtype(self.got.dtype).eps
        return moved + rounding / tolerance * max(scale(wanted), scale(self.before))


def tolerance_of(graph: IRGraph, exactness: str, tf32: bool = False) -> float:
    """The tolerance for the coarsest dtype in which the graph, or its products, compute."""
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
    """Compare a step with its expected values; given the rounding noise, only errors beyond it are mismatches."""
    out = Comparison(tolerance)
    for name, value in got.outputs.items():
        rough = None if noise is None else noise.outputs[name]
        out.add(ComparedTensor(f"the output {name!r}", value, wanted.outputs[name], None, rough))
    for name, value in got.state.items():
        rough = None if noise is None else noise.state[name]
        out.add(ComparedTensor(f"the state {name!r}", value, wanted.state[name], before[name], rough, shapes[name]))
    return out


# -- what rounding alone may do ----------------------------------------------------------------------------------


def perturb_by_rounding(seed: int, tf32: frozenset[Family] = frozenset()) -> Callable[[Node, Any], Any]:
    """Change a node's value by a few roundings of its dtype, or of the dtype that its products read.

    tf32: ops of these families read float32 operands that are rounded to tf32.

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
    """The differences between the results of two steps, elementwise."""
    return Result(_distances(a.outputs, b.outputs), _distances(a.state, b.state))


def _distances(a: dict[str, Array], b: dict[str, Array]) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        return {name: np.abs(a[name].astype(np.float64) - b[name].astype(np.float64)) for name in a}


def _shaken(node: Node, type: TensorType, value: Array, numbers: Array, tf32: frozenset[Family]) -> Array:
    if node.host or not type.dtype.is_float or node.op in MOVES:
        return value
    rounding = type.dtype.eps * (1.0 if type.dtype.is_half else SHAKEN)  # for a half type, at most one rounding
    if type.dtype == float32 and OPS[node.op].family in tf32:
        rounding = float16.eps
    # Large states and their half copies are in float32, whose rounding is a fraction of the shake.
    wide = np.float32 if value.dtype == np.float32 else np.float64
    shaken: Array = np.array(value if wide is np.float32 else value.astype(type.dtype.numpy), wide, order="C")
    flat = shaken.reshape(-1)
    factors = (1.0 + rounding * numbers[: flat.size]).astype(wide)
    for start in range(0, flat.size, factors.size or 1):
        part = flat[start : start + factors.size]
        part *= factors[: part.size]
    return shaken
