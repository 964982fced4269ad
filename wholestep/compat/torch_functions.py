"""Functions of PyTorch's that are an operator, a method or a line here: `ws.mm`, `ws.addmm`, `ws.amax`.

They take PyTorch's arguments and mean what they mean there; nothing else in the package uses them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend import elementwise, functions, scattering, statistics
from wholestep.compiler.frontend.filled import eye, full_like
from wholestep.compiler.frontend.tensor import Axes, Operand, Tensor, as_tensor, pointwise, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, boolean, product, shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = [
    "add", "addcdiv", "addcmul", "addmm", "amax", "amin", "argmax", "baddbmm", "bernoulli", "bmm", "broadcast_to",
    "cdist", "clamp_max", "clamp_min", "cosh", "deg2rad", "diag_embed", "diagonal", "dist", "div", "dot", "eq", "erfc",
    "fmod", "frac", "ge", "gt", "heaviside", "hstack", "hypot", "identity", "index_select", "inner",
    "is_floating_point", "le", "logaddexp", "logical_and", "logical_not", "logical_or", "logit", "lt", "max", "mean",
    "min", "mul", "nan_to_num", "narrow", "ne", "neg", "numel", "outer", "rad2deg", "rand_like", "randn_like",
    "repeat_interleave", "scatter", "scatter_reduce", "select", "select_scatter",
    "sinh", "std_mean", "sub", "sum", "t", "tan", "tensordot", "trace", "var_mean",
    "vstack", "xlogy",
]  # fmt: skip

# -- operators -------------------------------------------------------------------------------------------------------


def add(x: Operand, y: Operand, alpha: float = 1) -> Tensor:
    """x + alpha · y"""
    return as_tensor(x) + (y if alpha == 1 else as_tensor(y) * alpha)


def sub(x: Operand, y: Operand, alpha: float = 1) -> Tensor:
    """x - alpha · y"""
    return as_tensor(x) - (y if alpha == 1 else as_tensor(y) * alpha)


def mul(x: Operand, y: Operand) -> Tensor:
    """x · y"""
    return as_tensor(x) * y


def div(x: Operand, y: Operand, rounding_mode: str | None = None) -> Tensor:
    """x / y; rounded down with "floor", towards 0 with "trunc"."""
    if rounding_mode not in (None, "floor", "trunc"):
        fail(OptionError, f"div: rounding_mode is None, 'floor' or 'trunc'; received {rounding_mode!r}.")
    if rounding_mode is not None and as_tensor(x).dtype.is_integer:
        down = as_tensor(x) // y
        if rounding_mode == "floor":
            return down
        return where((down < 0) & (down * y != x), down + 1, down)
    quotient = as_tensor(x) / y
    if rounding_mode is None:
        return quotient
    return functions.floor(quotient) if rounding_mode == "floor" else elementwise.trunc(quotient)


def neg(x: Operand) -> Tensor:
    """-x"""
    return -as_tensor(x)


def identity(x: Tensor, *_: object, **__: object) -> Tensor:
    """x itself: tensors have no memory of their own and are never changed."""
    return x


def eq(x: Operand, y: Operand) -> Tensor:
    """x == y"""
    return as_tensor(x) == y


def ne(x: Operand, y: Operand) -> Tensor:
    """x != y"""
    return as_tensor(x) != y


def lt(x: Operand, y: Operand) -> Tensor:
    """x < y"""
    return as_tensor(x) < y


def le(x: Operand, y: Operand) -> Tensor:
    """x <= y"""
    return as_tensor(x) <= y


def gt(x: Operand, y: Operand) -> Tensor:
    """x > y"""
    return as_tensor(x) > y


def ge(x: Operand, y: Operand) -> Tensor:
    """x >= y"""
    return as_tensor(x) >= y


def _truth(x: Operand) -> Tensor:
    t = as_tensor(x)
    return t if t.dtype == boolean else t != 0


def logical_and(x: Operand, y: Operand) -> Tensor:
    """Are both not 0?"""
    return _truth(x) & _truth(y)


def logical_or(x: Operand, y: Operand) -> Tensor:
    """Is one of them not 0?"""
    return _truth(x) | _truth(y)


def logical_not(x: Operand) -> Tensor:
    """Is it 0?"""
    return ~_truth(x)


# -- one element at a time -------------------------------------------------------------------------------------------


def tan(x: Operand) -> Tensor:
    """sin x / cos x"""
    return functions.sin(x) / functions.cos(x)


def sinh(x: Operand) -> Tensor:
    """(eˣ - e⁻ˣ) / 2, exact near 0"""
    grown = functions.expm1(x)
    return 0.5 * (grown + grown / (grown + 1.0))


def cosh(x: Operand) -> Tensor:
    """(eˣ + e⁻ˣ) / 2"""
    return 0.5 * (functions.exp(x) + functions.exp(-as_tensor(x)))


def erfc(x: Operand) -> Tensor:
    """1 - erf x"""
    return 1.0 - functions.erf(x)


def logit(x: Operand, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), x held between eps and 1 - eps where one is given"""
    t = as_tensor(x) if eps is None else elementwise.clip(x, eps, 1.0 - eps)
    return functions.log(t) - functions.log1p(-t)


def xlogy(x: Operand, y: Operand) -> Tensor:
    """x · log y, 0 where x is 0"""
    t, u = as_tensor(x), as_tensor(y)
    nothing = (t == 0) & (u <= 0)
    return where(nothing, 0.0, t * functions.log(where(nothing, 1.0, u)))


def logaddexp(x: Operand, y: Operand) -> Tensor:
    """log(eˣ + eʸ), finite for finite numbers"""
    t = as_tensor(x)
    return pointwise("maximum", t, y) + functions.log1p(functions.exp(-abs(t - y)))


def hypot(x: Operand, y: Operand) -> Tensor:
    """√(x² + y²)"""
    return (elementwise.square(x) + elementwise.square(y)).sqrt()


def deg2rad(x: Operand) -> Tensor:
    """Degrees as radians."""
    return as_tensor(x) * (math.pi / 180.0)


def rad2deg(x: Operand) -> Tensor:
    """Radians as degrees."""
    return as_tensor(x) * (180.0 / math.pi)


def frac(x: Operand) -> Tensor:
    """x without its whole part"""
    return as_tensor(x) - elementwise.trunc(x)


def fmod(x: Operand, y: Operand) -> Tensor:
    """The remainder of x / y with x's sign."""
    t = as_tensor(x)
    rest = pointwise("mod", abs(t), abs(as_tensor(y)))
    return where(t < 0, -rest, rest)


def heaviside(x: Operand, values: Operand) -> Tensor:
    """0 below 0, 1 above, `values` at 0"""
    t = as_tensor(x)
    return where(t == 0, values, (t > 0).astype(t.dtype))


def clamp_min(x: Operand, min: Operand) -> Tensor:
    """x, at least min"""
    return elementwise.clip(x, min)


def clamp_max(x: Operand, max: Operand) -> Tensor:
    """x, at most max"""
    return elementwise.clip(x, None, max)


def nan_to_num(x: Operand, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """x with finite numbers in place of NaN and infinities"""
    import numpy as np

    t = as_tensor(x)
    largest = float(np.finfo(t.dtype.numpy).max)
    t = where(elementwise.isnan(t), nan, t)
    t = where(t == math.inf, largest if posinf is None else posinf, t)
    return where(t == -math.inf, -largest if neginf is None else neginf, t)


def addcmul(x: Operand, tensor1: Operand, tensor2: Operand, value: float = 1) -> Tensor:
    """x + value · tensor1 · tensor2"""
    return as_tensor(x) + as_tensor(tensor1) * tensor2 * value


def addcdiv(x: Operand, tensor1: Operand, tensor2: Operand, value: float = 1) -> Tensor:
    """x + value · tensor1 / tensor2"""
    return as_tensor(x) + as_tensor(tensor1) / tensor2 * value


def rand_like(x: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) of x's shape and dtype, new in every step."""
    return functions.random_uniform(x, x.shape, dtype=x.dtype)


def randn_like(x: Tensor) -> Tensor:
    """Normal numbers of x's shape and dtype, new in every step."""
    return functions.random_normal(x, x.shape, dtype=x.dtype)


def bernoulli(x: Tensor) -> Tensor:
    """1 with probability x, else 0, new in every step; no gradient flows to x."""
    return (rand_like(x) < functions.stop_gradient(x)).astype(x.dtype)


# -- products --------------------------------------------------------------------------------------------------------


def _ranks(op: str, a: Operand, b: Operand, left: int, right: int) -> tuple[Tensor, Tensor]:
    t, u = as_tensor(a), as_tensor(b)
    if (t.ndim, u.ndim) != (left, right):
        fail(
            ShapeError,
            f"{op} takes {left} and {right} axes; received {shape_text(t.shape)} and {shape_text(u.shape)}. "
            "`a @ b` takes any.",
        )
    return t, u


def bmm(x: Operand, mat2: Operand) -> Tensor:
    """A stack of products: (b, n, m) @ (b, m, p)"""
    a, b = _ranks("bmm", x, mat2, 3, 3)
    return a @ b


def dot(x: Operand, y: Operand) -> Tensor:
    """Σ x · y of two vectors"""
    a, b = _ranks("dot", x, y, 1, 1)
    return a @ b


def outer(x: Operand, vec2: Operand) -> Tensor:
    """x[i] · vec2[j] of two vectors"""
    a, b = _ranks("outer", x, vec2, 1, 1)
    return a.reshape((a.shape[0], 1)) * b


def inner(x: Operand, y: Operand) -> Tensor:
    """Σ over the last axes of both"""
    t, u = as_tensor(x), as_tensor(y)
    if not t.ndim or not u.ndim:
        return t * u
    return tensordot(t, u, ([-1], [-1]))


def addmm(x: Operand, mat1: Operand, mat2: Operand, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · x + alpha · (mat1 @ mat2)"""
    a, b = _ranks("addmm", mat1, mat2, 2, 2)
    return as_tensor(x) * beta + (a @ b) * alpha


def baddbmm(x: Operand, batch1: Operand, batch2: Operand, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta · x + alpha · (batch1 @ batch2)"""
    return as_tensor(x) * beta + bmm(batch1, batch2) * alpha


def tensordot(a: Operand, b: Operand, dims: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Σ over the last `dims` axes of a and the first of b, or over the axes that are named."""
    t, u = as_tensor(a), as_tensor(b)
    left, right = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    gone, met = ([x._axes(axis)[0] for axis in axes] for x, axes in ((t, left), (u, right)))
    rows, columns = ([d for d in range(x.ndim) if d not in used] for x, used in ((t, gone), (u, met)))
    k: Extent = product(t.shape[d] for d in gone)
    flat = t.permute([*rows, *gone]).reshape((-1, k)) @ u.permute([*met, *columns]).reshape((k, -1))
    return flat.reshape((*(t.shape[d] for d in rows), *(u.shape[d] for d in columns)))


def cdist(x: Operand, y: Operand, p: float = 2.0) -> Tensor:
    """The distance of every row of x from every row of y."""
    t, u = as_tensor(x), as_tensor(y)
    pairs = t.reshape((*t.shape[:-1], 1, t.shape[-1])) - u.reshape((*u.shape[:-2], 1, *u.shape[-2:]))
    return statistics.norm(pairs, p, -1)


def dist(x: Operand, y: Operand, p: float = 2) -> Tensor:
    """‖x - y‖ₚ"""
    return statistics.norm(as_tensor(x) - y, p)


# -- reductions ------------------------------------------------------------------------------------------------------


def sum(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.sum(axis)`"""
    return as_tensor(x).sum(axis, keepdims)


def mean(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.mean(axis)`"""
    return as_tensor(x).mean(axis, keepdims)


def amax(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.max(axis)`"""
    return as_tensor(x).max(axis, keepdims)


def amin(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.min(axis)`"""
    return as_tensor(x).min(axis, keepdims)


_PAIR = "in PyTorch that is a pair of values and indices; write ws.amax(x, axis) and ws.argmax(x, axis)"


def max(x: Operand, y: Operand | None = None) -> Tensor:
    """The largest element of x, or the larger of x and y; along an axis it is `ws.amax`."""
    if isinstance(y, int):
        fail(OptionError, f"max(x, {y!r}): {_PAIR}.")
    return as_tensor(x).max() if y is None else pointwise("maximum", x, y)


def min(x: Operand, y: Operand | None = None) -> Tensor:
    """The smallest element of x, or the smaller of x and y; along an axis it is `ws.amin`."""
    if isinstance(y, int):
        fail(OptionError, f"min(x, {y!r}): {_PAIR.replace('max', 'min')}.")
    return as_tensor(x).min() if y is None else pointwise("minimum", x, y)


def argmax(x: Operand, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """`x.argmax(axis)`"""
    return as_tensor(x).argmax(axis, keepdims)


def var_mean(x: Operand, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Variance and mean."""
    return statistics.var(x, axis, correction, keepdims), as_tensor(x).mean(axis, keepdims)


def std_mean(x: Operand, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean."""
    return statistics.std(x, axis, correction, keepdims), as_tensor(x).mean(axis, keepdims)


def numel(x: Tensor) -> Extent:
    """How many elements: a number, or an expression of the sizes that are not known yet."""
    return x.node.type.elements


def is_floating_point(x: Tensor) -> bool:
    """Is its dtype a float?"""
    return x.dtype.is_float


# -- shapes ----------------------------------------------------------------------------------------------------------


def t(x: Tensor) -> Tensor:
    """The transposed matrix; a vector as it is."""
    if x.ndim > 2:
        fail(ShapeError, f"t takes at most two axes; received {shape_text(x.shape)}. Write x.transpose(-1, -2).")
    return x.transpose() if x.ndim == 2 else x


def broadcast_to(x: Tensor, size: Sequence[Extent | str]) -> Tensor:
    """`x.expand(size)`"""
    return x.expand(size)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Side by side: along axis 1, of vectors along axis 0"""
    return functions.concat(tensors, 0 if as_tensor(tensors[0]).ndim < 2 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """One below the other: vectors as rows"""
    rows = [as_tensor(v) for v in tensors]
    return functions.concat([v.reshape((1, -1)) if v.ndim < 2 else v for v in rows], 0)


def index_select(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """`ws.take(x, index, axis)`"""
    return functions.gather(x, index, axis)


def scatter(x: Tensor, axis: int, index: Tensor, src: Operand, reduce: str | None = None) -> Tensor:
    """x with other elements along an axis: y[index[i, j], j] = src[i, j]"""
    how = {None: "replace", "add": "sum", "multiply": "prod"}.get(reduce)
    if how is None:
        fail(OptionError, f"scatter: reduce is None, 'add' or 'multiply'; received {reduce!r}.")
    return scattering.put_along_axis(x, index, src, axis, how)


def scatter_reduce(x: Tensor, axis: int, index: Tensor, src: Operand, reduce: str, include_self: bool = True) -> Tensor:
    """x joined with other elements along an axis"""
    how = {"amax": "max", "amin": "min"}.get(reduce, reduce)
    return scattering.put_along_axis(x, index, src, axis, how, include_self)


def select_scatter(x: Tensor, src: Tensor, axis: int, index: int) -> Tensor:
    """x with another slice at an index"""
    (at,) = x._axes(axis)
    one = src.reshape((*src.shape[:at], 1, *src.shape[at:]))
    return scattering.scatter_slice(x, one, at, index, None if index == -1 else index + 1)


def select(x: Tensor, axis: int, index: int) -> Tensor:
    """One slice along an axis, without it."""
    (position,) = x._axes(axis)
    return x[(*(slice(None),) * position, index)]


def narrow(x: Tensor, axis: int, start: int, length: int) -> Tensor:
    """`length` slices along an axis from `start` on."""
    (position,) = x._axes(axis)
    return x[(*(slice(None),) * position, slice(start, start + length))]


def repeat_interleave(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Every slice along an axis `repeats` times in a row; of the flat x when no axis is given."""
    if axis is None:
        return repeat_interleave(x.reshape(-1), repeats, 0)
    if not isinstance(repeats, int) or repeats < 1:
        fail(OptionError, f"repeat_interleave: repeats is a whole number of at least 1; received {repeats!r}.")
    (position,) = x._axes(axis)
    before, extent, after = x.shape[:position], x.shape[position], x.shape[position + 1 :]
    wide = x.reshape((*before, extent, 1, *after)).expand((*before, extent, repeats, *after))
    return wide.reshape((*before, extent * repeats, *after))


def diagonal(x: Tensor) -> Tensor:
    """The diagonals of the matrices on the last two axes."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        fail(ShapeError, f"diagonal takes square matrices, on the last two axes; received {shape_text(x.shape)}.")
    return where(eye(x.shape[-2], x.shape[-1], dtype="int32") == 1, x, full_like(x, 0)).sum(-1)


def diag_embed(x: Tensor) -> Tensor:
    """Matrices with the last axis of x on their diagonals."""
    return x.reshape((*x.shape, 1)) * eye(x.shape[-1], dtype=x.dtype)


def trace(x: Tensor) -> Tensor:
    """Σ of the diagonal."""
    return diagonal(x).sum(-1)


take_their_words(globals(), __all__)
