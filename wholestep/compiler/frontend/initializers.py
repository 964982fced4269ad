"""Initialisers: the initial value of a parameter or state.

A constructor only describes; `materialize` draws the numbers, a function of (seed, network, name) alone.  "fan-in"
counts all axes but the last, "fan-out" is the last: weights multiply from the right, `x @ w`.  Layers store weights as
torch does, (outputs, inputs, ...); `outputs_first` converts a description for this layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from wholestep.compiler.frontend.trace import fail, locate
from wholestep.compiler.ir.attrs import Initializer
from wholestep.compiler.ir.semantics import random
from wholestep.compiler.ir.types import DType, Shape, float32
from wholestep.errors import OptionError, ShapeError
from wholestep.records import dataclass

__all__ = [  # the public names of `ws.init`; all other names are for the compiler
    "constant", "kaiming_normal", "kaiming_uniform", "lecun_normal", "lecun_uniform", "normal", "ones", "orthogonal",
    "trunc_normal", "uniform", "values", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip

NumpyArray = np.ndarray[Any, Any]
StaticShape = tuple[int, ...]

PIECE = 1 << 16  # elements drawn at a time: few enough for the caches, enough for threads to work in parallel


def zeros() -> Initializer:
    """All zeros.  Example: `g.parameter("b", (10,), init=ws.init.zeros())`."""
    return Initializer("constant", (0.0,))


def ones() -> Initializer:
    """All ones.  Example: `g.parameter("gain", (10,), init=ws.init.ones())`."""
    return Initializer("constant", (1.0,))


def constant(value: float) -> Initializer:
    """One number everywhere.  Example: `ws.init.constant(0.1)`."""
    return Initializer("constant", (float(value),))


def values(array: object) -> Initializer:
    """Given numbers.  Example: `ws.init.values([[1.0, 2.0], [3.0, 4.0]])` for a (2, 2) parameter."""
    return Initializer("values", tuple(np.asarray(array, np.float64).ravel().tolist()))


def normal(mean: float = 0.0, std: float = 1.0) -> Initializer:
    """Normal numbers.  Example: `ws.init.normal(std=0.02)`."""
    return Initializer("normal", (float(mean), _positive("std", std)))


def trunc_normal(mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0) -> Initializer:
    """Normal numbers truncated to [low, high]; the bounds are absolute, not multiples of std, as in torch.

    Example: `ws.init.trunc_normal(std=0.02, low=-0.04, high=0.04)`.
    """
    from wholestep.compiler.ir.semantics.random import normal_cdf  # imported lazily: rarely needed

    if not low < high:
        fail(OptionError, f"trunc_normal: low must be below high; received low={low}, high={high}.")
    spread = _positive("std", std)
    if not normal_cdf((low - mean) / spread) < normal_cdf((high - mean) / spread):
        fail(
            OptionError,
            f"trunc_normal: the probability of [{low:g}, {high:g}] is 0 for mean {mean:g} and std {std:g}; choose a "
            f"range nearer to the mean.",
        )
    return Initializer("trunc_normal", (float(mean), spread, float(low), float(high)))


def uniform(low: float = 0.0, high: float = 1.0) -> Initializer:
    """Uniform numbers in [low, high).  Example: `ws.init.uniform(-0.1, 0.1)`."""
    if not low < high:
        fail(OptionError, f"uniform: low must be below high; received low={low}, high={high}.")
    return Initializer("uniform", (float(low), float(high)))


def xavier_uniform(gain: float = 1.0) -> Initializer:
    """Uniform in ±gain·√(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010).  Example: `ws.init.xavier_uniform()`."""
    return Initializer("xavier_uniform", (_positive("gain", gain),))


def xavier_normal(gain: float = 1.0) -> Initializer:
    """Normal with std gain·√(2 / (fan_in + fan_out)) (Glorot and Bengio, 2010).  Example: `ws.init.xavier_normal()`."""
    return Initializer("xavier_normal", (_positive("gain", gain),))


def kaiming_uniform(a: float = 0.0, mode: str = "fan_in") -> Initializer:
    """Uniform in ±√(6 / ((1 + a²)·fan_in)), a the slope of a leaky relu (arXiv:1502.01852).

    Args:
        mode: "fan_in" preserves the variance of activations, "fan_out" the variance of gradients.

    Example: `ws.init.kaiming_uniform(a=5**0.5)` is ±1/√fan_in.
    """
    return Initializer("kaiming_uniform", _kaiming(a, mode))


def kaiming_normal(a: float = 0.0, mode: str = "fan_in") -> Initializer:
    """Normal with std √(2 / ((1 + a²)·fan_in)) (arXiv:1502.01852); `mode` as in `kaiming_uniform`.

    Example: `ws.nn.Conv2d(3, 16, 3, init=ws.init.kaiming_normal(mode="fan_out"))`.
    """
    return Initializer("kaiming_normal", _kaiming(a, mode))


def lecun_normal() -> Initializer:
    """Normal with std √(1 / fan_in) (LeCun et al., 1998): what SELU wants.  Example: `ws.init.lecun_normal()`."""
    return Initializer("lecun_normal", ())


def lecun_uniform() -> Initializer:
    """Uniform in ±√(3 / fan_in) (LeCun et al., 1998).  Example: `ws.init.lecun_uniform()`."""
    return Initializer("lecun_uniform", ())


def _kaiming(a: float, mode: str) -> tuple[float, ...]:
    if mode not in ("fan_in", "fan_out"):
        fail(OptionError, f"mode={mode!r}: expected 'fan_in' or 'fan_out'.")
    return (float(a),) if mode == "fan_in" else (float(a), 1.0)


def orthogonal(gain: float = 1.0) -> Initializer:
    """Orthonormal rows or columns, times gain (arXiv:1312.6120).  Example: `ws.init.orthogonal()`."""
    return Initializer("orthogonal", (_positive("gain", gain),))


def default(shape: Shape) -> Initializer:
    """The default of `g.parameter`: Kaiming-uniform for two or more axes, else zeros."""
    return kaiming_uniform() if len(shape) >= 2 else zeros()


def as_initializer(init: object) -> Initializer:
    """The initialiser for a user's argument: an initialiser, a number or an array of values."""
    if isinstance(init, Initializer):
        return init
    if isinstance(init, int | float | np.integer | np.floating):
        return constant(float(init))
    if isinstance(init, np.ndarray | list):
        return values(init)
    raise locate(OptionError(f"init={init!r} is no initialiser; use ws.init.normal(std=0.02), a number or an array."))


def outputs_first(init: Initializer, shape: StaticShape) -> Initializer:
    """The initialiser for a weight (outputs, inputs, ...): fans are computed as in torch, and rows are orthogonal."""
    if init.kind not in _MATRIX_KINDS or len(shape) < 2:
        return init
    if init.kind == "orthogonal":
        return Initializer("orthogonal_rows", init.args)
    spread = _SPREADS[init.kind](Fans(math.prod(shape[1:]), shape[0] * math.prod(shape[2:])), *init.args)
    return uniform(-spread, spread) if init.kind.endswith("uniform") else normal(0.0, spread)


@dataclass(frozen=True)
class InitialValue:
    """The initial value of the state `name`, before it is drawn."""

    init: Initializer
    shape: StaticShape
    dtype: DType
    seed: int
    name: str
    network: int = 0  # number of its network among the networks of this process that have no seed of their own

    @property
    def key(self) -> str:
        """The key of the value's random numbers; key and seed together determine them."""
        return _key_of(self.name, self.network)

    @property
    def formula(self) -> random.Formula | None:
        """The formula that maps one random number to each element; None if an element depends on more than that."""
        how = _FORMULAS.get(self.init.kind)
        return None if how is None else how(fans_of(self.shape), *self.init.args)

    def array(self) -> NumpyArray:
        """The numbers."""
        return materialize(self.init, self.shape, self.dtype, self.seed, self.name, self.network)

    def rows(self, least: int) -> Iterator[NumpyArray]:
        """The values of a matrix in blocks whose row count is a multiple of `least`, to bound the memory in use."""
        count, columns = self.shape
        if self.init.kind in _WHOLE_KINDS or self.init.kind.endswith(ZERO_ROW):
            yield self.array()
            return
        rows_per_piece = max(1, PIECE // max(1, least * columns)) * least  # a matrix may have no columns
        for first in range(0, count, rows_per_piece):
            out = np.empty(min(rows_per_piece, count - first) * columns, self.dtype.numpy)
            _draw_piece(out, first * columns, self)
            yield out.reshape(min(rows_per_piece, count - first), columns)


def _key_of(name: str, network: int) -> str:
    return f"init {network}/{name}" if network else f"init/{name}"


def is_random(init: Initializer) -> bool:
    """Does the initial value depend on the seed?"""
    return init.kind not in ("constant", "values")


def materialize(
    init: Initializer, shape: StaticShape, dtype: DType, seed: int, name: str, network: int = 0
) -> NumpyArray:
    """The initial value of the state called `name`.

    Drawn piece by piece: the intermediate values of all elements would take twenty times the bytes of the weight.
    """
    key, count = _key_of(name, network), math.prod(shape)
    if init.kind.endswith(ZERO_ROW):
        plain = Initializer(init.kind.removesuffix(ZERO_ROW), init.args[:-1])
        out = materialize(plain, shape, dtype, seed, name, network)
        out[int(init.args[-1])] = 0
        return out
    if init.kind in _WHOLE_KINDS:
        return _DRAWS[init.kind](_Draw(seed, key, shape), *init.args).astype(dtype.numpy)
    out = np.empty(count, dtype.numpy)
    for first in range(0, count, PIECE):
        _draw_piece(out[first : first + PIECE], first, InitialValue(init, shape, dtype, seed, name, network))
    return out.reshape(shape)


def _draw_piece(out: NumpyArray, first: int, value: InitialValue) -> None:
    """Fills `out` with the elements of an initial value, from element `first` on."""
    formula, init = value.formula, value.init
    if formula is not None and formula.normal and value.dtype == float32:
        random.write_normals(out, value.seed, value.key, first, formula)
    else:
        piece = _Draw(value.seed, value.key, value.shape, slice(first, first + len(out)))
        out[:] = _DRAWS[init.kind](piece, *init.args)


ZERO_ROW = "_but_a_row"  # suffix of the kind; the row is the last argument


def with_zero_row(init: Initializer, row: int) -> Initializer:
    """The same description with one row of zeros."""
    return Initializer(init.kind + ZERO_ROW, (*init.args, float(row)))


def is_zero(init: Initializer) -> bool:
    """Is every element 0?"""
    return init.kind == "constant" and init.args == (0.0,)


def check_fits(init: Initializer, shape: StaticShape, name: str) -> None:
    """Raise an error if a description cannot initialise a shape."""
    if init.kind == "values" and len(init.args) != math.prod(shape):
        fail(ShapeError, f"{name!r} has {math.prod(shape)} elements, shape {shape}; init has {len(init.args)} values.")
    if init.kind in _MATRIX_KINDS and len(shape) < 2:
        fail(ShapeError, f"{init.kind} needs at least two axes; {name!r} has shape {shape}. Use normal or zeros.")


def is_valid_for(init: Initializer, shape: StaticShape) -> bool:
    """Is a description read from a file valid for this shape: a known kind with the right arguments?"""
    if init.kind.endswith(ZERO_ROW):
        plain = Initializer(init.kind.removesuffix(ZERO_ROW), init.args[:-1])
        return bool(shape) and init.args[-1:] in [(float(r),) for r in range(shape[0])] and is_valid_for(plain, shape)
    if init.kind not in _DRAWS:
        return False
    if init.kind == "values":
        return len(init.args) == math.prod(shape)
    if len(shape) < 2 and (init.kind in _MATRIX_KINDS or init.kind == "orthogonal_rows"):
        return False
    try:
        _DRAWS[init.kind](_Draw(0, "", (1,) * len(shape)), *init.args)
    except (TypeError, ValueError, ArithmeticError, LookupError):
        return False
    return True


def _positive(what: str, value: float) -> float:
    if not value > 0:
        fail(OptionError, f"{what} must be above 0; received {value}.")
    return float(value)


@dataclass(frozen=True)
class Fans:
    """Fan-in and fan-out of a weight: the number of terms per output, and of outputs per input."""

    into: int
    out: int


def _kaiming_scale(fans: Fans, a: float, out: float = 0.0) -> float:
    return 1.0 / ((1.0 + a * a) * (fans.out if out else fans.into))


# The bound of uniform distributions, the standard deviation of normal distributions.
_SPREADS: dict[str, Callable[..., float]] = {
    "xavier_uniform": lambda fans, gain: gain * math.sqrt(6.0 / (fans.into + fans.out)),
    "xavier_normal": lambda fans, gain: gain * math.sqrt(2.0 / (fans.into + fans.out)),
    "kaiming_uniform": lambda fans, *args: math.sqrt(6.0 * _kaiming_scale(fans, *args)),
    "kaiming_normal": lambda fans, *args: math.sqrt(2.0 * _kaiming_scale(fans, *args)),
    "lecun_uniform": lambda fans: math.sqrt(3.0 / fans.into),
    "lecun_normal": lambda fans: math.sqrt(1.0 / fans.into),
}


def fans_of(shape: StaticShape) -> Fans:
    """The fans of a weight that multiplies from the right."""
    return Fans(max(1, math.prod(shape[:-1])), shape[-1] if shape else 1)


def _spread_formula(kind: str) -> Callable[..., random.Formula]:
    spread, normal = _SPREADS[kind], kind.endswith("normal")

    def formula(fans: Fans, *args: float) -> random.Formula:
        size = spread(fans, *args)
        return random.Formula(normal, size) if normal else random.Formula(normal, 2.0 * size, lift=-0.5)

    return formula


# The kinds in which each element is an affine function of one random number.
_FORMULAS: dict[str, Callable[..., random.Formula]] = {
    "normal": lambda fans, mean, std: random.Formula(True, std, mean),
    "uniform": lambda fans, low, high: random.Formula(False, high - low, low),
    **{kind: _spread_formula(kind) for kind in _SPREADS},
}


# -- drawing -----------------------------------------------------------------------------------------------------


class _Draw:
    """The random numbers of one state, or of a consecutive range of its elements."""

    def __init__(self, seed: int, key: str, shape: StaticShape, piece: slice | None = None) -> None:
        self.seed, self.key, self.shape = seed, key, shape
        self.first: int = 0 if piece is None else piece.start
        self.part = shape if piece is None else (piece.stop - piece.start,)

    def unit(self) -> NumpyArray:
        return random.uniform(self.seed, self.key, 0, self.part, self.first)

    def normal(self) -> NumpyArray:
        return random.normal(self.seed, self.key, 0, self.part, self.first)

    def by(self, formula: random.Formula) -> NumpyArray:
        return formula.of(self.normal() if formula.normal else self.unit())


def _values(d: _Draw, *args: float) -> NumpyArray:
    return np.array(args).reshape(d.shape)


def _by_formula(kind: str) -> Callable[..., NumpyArray]:
    return lambda d, *args: d.by(_FORMULAS[kind](fans_of(d.shape), *args))


def _trunc_normal(d: _Draw, mean: float, std: float, low: float, high: float) -> NumpyArray:
    from wholestep.compiler.ir.semantics.random import normal_cdf, normal_quantile

    low_probability, high_probability = normal_cdf((low - mean) / std), normal_cdf((high - mean) / std)
    samples = mean + std * normal_quantile(low_probability + (high_probability - low_probability) * d.unit())
    return np.clip(samples, low, high)


def _orthogonal(d: _Draw, gain: float, rows: int = -1, columns: int = -1) -> NumpyArray:
    matrix = d.normal().reshape(rows, columns)
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    q, r = np.linalg.qr(tall)
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)  # makes the factorization unique: r has a positive diagonal
    return gain * (q if tall is matrix else q.T).reshape(d.shape)


_DRAWS: dict[str, Callable[..., NumpyArray]] = {
    "constant": lambda d, value: np.full(d.part, value),
    "values": _values,
    **{kind: _by_formula(kind) for kind in _FORMULAS},
    "trunc_normal": _trunc_normal,
    "orthogonal": lambda d, gain: _orthogonal(d, gain, columns=d.shape[-1]),
    "orthogonal_rows": lambda d, gain: _orthogonal(d, gain, rows=d.shape[0]),
}
_MATRIX_KINDS = frozenset({*_SPREADS, "orthogonal"})
_WHOLE_KINDS = frozenset({"values", "orthogonal", "orthogonal_rows"})
