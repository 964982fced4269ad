"""Functions that record one op each.  Numbers and arrays become constants; broadcasting is NumPy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.functions.reductions import normalize_axis
from wholestep.compiler.frontend.initializers import NumpyArray
from wholestep.compiler.frontend.shape import indexing
from wholestep.compiler.frontend.tensor import (
    Operand,
    Tensor,
    as_tensor,
    common_graph,
    matmul,
    pointwise,
    ratio,
    where,
)
from wholestep.compiler.frontend.trace import fail, located, record
from wholestep.compiler.frontend.type_promotion import promote
from wholestep.compiler.frontend.type_promotion import size as size_node
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import DTYPES, DType, Extent, TensorType, as_dtype, as_shape
from wholestep.errors import DTypeError, OptionError, ShapeError, UsageError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.graph import Graph

__all__ = [
    "matmul", "ratio", "where",
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "sqrt", "recip", "erf", "atan", "floor", "abs",
    "sign", "maximum", "minimum", "mod", "less_than",
    "relu", "sigmoid", "tanh", "gelu", "silu", "softmax", "log_softmax", "logsumexp",
    "concat", "stack", "gather", "take", "scatter_add", "write_rows", "one_hot", "cast",
    "stop_gradient",
    "random_uniform", "random_normal", "arange", "iota", "size",
]  # fmt: skip


def _unary(x: Operand, op: str, attrs: at.Attrs = at.NONE) -> Tensor:
    t = as_tensor(x)
    return Tensor(record(op, [t.node], attrs), t.graph)


# -- pointwise ---------------------------------------------------------------------------------------------------


def exp(x: Operand) -> Tensor:
    """eˣ.  Example: `ws.exp(0.0)` is 1."""
    return _unary(x, "exp")


def exp2(x: Operand) -> Tensor:
    """2ˣ.  Example: `ws.exp2(3.0)` is 8."""
    return _unary(x, "exp2")


def expm1(x: Operand) -> Tensor:
    """eˣ - 1, exact near 0.  Example: `ws.expm1(0.0)` is 0."""
    return _unary(x, "expm1")


def log(x: Operand) -> Tensor:
    """The natural logarithm.  Example: `ws.log(1.0)` is 0."""
    return _unary(x, "log")


def log2(x: Operand) -> Tensor:
    """The logarithm to base 2.  Example: `ws.log2(4.0)` is 2."""
    return _unary(x, "log2")


def log1p(x: Operand) -> Tensor:
    """log(1 + x), exact near 0.  Example: `ws.log1p(0.0)` is 0."""
    return _unary(x, "log1p")


def sin(x: Operand) -> Tensor:
    """The sine of an angle in radians.  Example: `ws.sin(0.0)` is 0."""
    return _unary(x, "sin")


def cos(x: Operand) -> Tensor:
    """The cosine of an angle in radians.  Example: `ws.cos(0.0)` is 1."""
    return _unary(x, "cos")


def sqrt(x: Operand) -> Tensor:
    """√x.  Example: `ws.sqrt(4.0)` is 2."""
    return _unary(x, "sqrt")


def recip(x: Operand) -> Tensor:
    """1 / x.  Example: `ws.recip(4.0)` is 0.25."""
    return _unary(x, "recip")


def erf(x: Operand) -> Tensor:
    """The error function 2/√π ∫₀ˣ e^(-t²) dt.  Example: `ws.erf(0.0)` is 0."""
    return _unary(x, "erf")


def atan(x: Operand) -> Tensor:
    """The angle whose tangent is x, from -π/2 to π/2.  Example: `ws.atan(0.0)` is 0."""
    return _unary(x, "atan")


def floor(x: Operand) -> Tensor:
    """The largest integer that is not greater than x.  Example: `ws.floor(1.5)` is 1."""
    return _unary(x, "floor")


def abs(x: Operand) -> Tensor:
    """|x|; the gradient at 0 is 0.  Example: `ws.abs(-2.0)` is 2."""
    return _unary(x, "abs")


def sign(x: Operand) -> Tensor:
    """-1, 0 or 1.  Example: `ws.sign(-2.0)` is -1."""
    return _unary(x, "sign")


def maximum(x: Operand, y: Operand) -> Tensor:
    """The larger of two values, element by element.  Example: `ws.maximum(1.0, 2.0)` is 2."""
    return pointwise("maximum", x, y)


def minimum(x: Operand, y: Operand) -> Tensor:
    """The smaller of two values, element by element.  Example: `ws.minimum(1.0, 2.0)` is 1."""
    return pointwise("minimum", x, y)


def mod(x: Operand, y: Operand) -> Tensor:
    """The remainder of x / y, with y's sign; for y = 0 it is NaN, or 0 for integers; it has no gradient.

    Example: `ws.mod(5.0, 3.0)` is 2.
    """
    return pointwise("mod", x, y)


def less_than(x: Operand, y: Operand) -> Tensor:
    """x < y as a bool tensor.  Example: `ws.less_than(1.0, 2.0)` is True."""
    return pointwise("less", x, y)


def stop_gradient(x: Tensor) -> Tensor:
    """x, through which no gradient flows.  Example: `ws.stop_gradient(x) * x` has the gradient x."""
    return _unary(x, "stop_gradient")


# -- activations -------------------------------------------------------------------------------------------------


def relu(x: Operand) -> Tensor:
    """max(x, 0); the gradient at 0 is 0.  Example: `ws.relu(-1.0)` is 0."""
    return _unary(x, "relu")


def sigmoid(x: Operand) -> Tensor:
    """1 / (1 + e⁻ˣ).  Example: `ws.sigmoid(0.0)` is 0.5."""
    return _unary(x, "sigmoid")


def tanh(x: Operand) -> Tensor:
    """(eˣ - e⁻ˣ) / (eˣ + e⁻ˣ).  Example: `ws.tanh(0.0)` is 0."""
    return _unary(x, "tanh")


def silu(x: Operand) -> Tensor:
    """x · sigmoid(x).  Example: `ws.silu(0.0)` is 0."""
    return _unary(x, "silu")


def gelu(x: Operand, approximate: str = "none") -> Tensor:
    """x · Φ(x), with Φ by erf, or by tanh when `approximate="tanh"` (arXiv:1606.08415).

    Example: `ws.gelu(0.0)` is 0.
    """
    if approximate not in ("none", "tanh"):
        fail(OptionError, f"gelu: approximate must be 'none' or 'tanh'; received {approximate!r}.")
    return _unary(x, "gelu", at.GeluAttrs(approximate == "tanh"))


def softmax(x: Operand, axis: int = -1) -> Tensor:
    """exp(x - max) / Σ exp(x - max) along an axis.  Example: `ws.softmax([0.0, 0.0])` is [0.5, 0.5]."""
    t = as_tensor(x)
    return _unary(t, "softmax", at.SoftmaxAttrs(normalize_axis("softmax", t, axis)))


def log_softmax(x: Operand, axis: int = -1) -> Tensor:
    """x - max - log Σ exp(x - max) along an axis.  Example: `ws.exp(ws.log_softmax(x))` is `ws.softmax(x)`."""
    t = as_tensor(x)
    return _unary(t, "log_softmax", at.SoftmaxAttrs(normalize_axis("log_softmax", t, axis)))


def logsumexp(x: Operand, axis: int = -1, keepdims: bool = False) -> Tensor:
    """log Σ exp(x) along an axis, finite for every finite x.  Example: `ws.logsumexp([0.0, 0.0])` is log 2."""
    t = as_tensor(x)
    position = normalize_axis("logsumexp", t, axis)
    out = _unary(t, "logsumexp", at.SoftmaxAttrs(position))
    return out.reshape(*t.shape[:position], 1, *t.shape[position + 1 :]) if keepdims else out


# -- movement and indexing ---------------------------------------------------------------------------------------


def concat(tensors: Sequence[Operand], axis: int = 0) -> Tensor:
    """Tensors one after another along an axis.  Example: `ws.concat([a, b], axis=1)`."""
    argument: Any = tensors
    if isinstance(argument, Tensor):
        fail(UsageError, f"concat needs a list of tensors, ws.concat([x, y], axis); received {tensors!r}.")
    if not tensors:
        fail(ShapeError, "concat needs at least one tensor; received none.")
    nodes = promote("concat", [as_tensor(t).node for t in tensors])
    graph = common_graph(*tensors)
    return Tensor(record("concat", nodes, at.ConcatAttrs(normalize_axis("concat", Tensor(nodes[0]), axis))), graph)


def stack(tensors: Sequence[Operand], axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis.  Example: `ws.stack([a, b])` has the shape (2, *a.shape)."""
    parts = [as_tensor(t) for t in tensors]
    position = axis if axis >= 0 else axis + parts[0].ndim + 1 if parts else 0
    return concat([t.reshape((*t.shape[:position], 1, *t.shape[position:])) for t in parts], position)


def gather(x: Tensor, index: Tensor | NumpyArray | list[int], axis: int = 0) -> Tensor:
    """x's slices at integer indices along an axis, as `numpy.take`.  Example: `ws.gather(table, tokens)`."""
    axis_argument: Any = axis
    if isinstance(axis_argument, Tensor):
        fail(
            UsageError,
            "gather(x, axis, index) is torch's, element by element: write ws.take_along_axis(x, index, axis). For "
            "entire slices write ws.gather(x, index, axis).",
        )
    indices = index.node if isinstance(index, Tensor) else index
    return Tensor(indexing.gather(x.node, indices, normalize_axis("gather", x, axis)), common_graph(x, index))


take = gather


def scatter_add(updates: Tensor, index: Tensor, size: Extent, axis: int = 0) -> Tensor:
    """Zeros with `size` slices along an axis, each update added at its index, in order: the adjoint of `gather`.

    Example: `ws.scatter_add(ws.one_hot(i, 3), i, 3)` counts on its diagonal.
    """
    nodes, at_axis = [updates.node, as_tensor(index).node], normalize_axis("scatter_add", updates, axis)
    return Tensor(record("scatter_add", nodes, at.ScatterAddAttrs(at_axis, size)), common_graph(updates, index))


def write_rows(x: Tensor, rows: Operand, start: Operand) -> Tensor:
    """x with its rows from index `start` on replaced by `rows`; rows beyond the end of x are dropped.

    As the update of a state that nothing else in the step reads, it is done in place: a step writes only these rows,
    however many the state has.

    Example: `ws.write_rows(x, x[:1], 2)` has the first row of x as its third.
    """
    parts = [as_tensor(x), as_tensor(rows), as_tensor(start)]
    return Tensor(record("write_rows", [t.node for t in parts]), common_graph(*parts))


def cast(x: Operand, dtype: object) -> Tensor:
    """x as another dtype, as `x.astype(dtype)`.  Example: `ws.cast(x, "bfloat16") @ ws.cast(w, "bfloat16")`."""
    return as_tensor(x).astype(dtype)


def one_hot(index: Operand, classes: int, dtype: object = "float32") -> Tensor:
    """1 at the index and 0 elsewhere, along a new last axis.  Example: `ws.one_hot([1], 3)` is [[0, 1, 0]]."""
    t = as_tensor(index)
    if not t.dtype.is_integer:
        fail(DTypeError, f"one_hot needs integer indices; received {t.node.type}. Cast them: i.astype('int32').")
    columns = iota((*t.shape, classes), axis=-1, dtype=t.dtype)
    return (t.reshape((*t.shape, 1)) == columns).astype(dtype)


# -- leaves ------------------------------------------------------------------------------------------------------


def iota(shape: object, axis: int = 0, dtype: object = "int32") -> Tensor:
    """The index along an axis, at every element.  Example: `ws.iota((2, 3), axis=1)` has the rows [0, 1, 2]."""
    with located():
        kind = TensorType(as_shape(shape), as_dtype(dtype))
    return Tensor(record("iota", (), at.IotaAttrs(kind, axis % len(kind.shape))))


def arange(
    start: Extent | str, stop: Extent | str | DType | None = None, step: int = 1, dtype: object = "int32"
) -> Tensor:
    """Integers from 0 to `start`, or from `start` to `stop`, in steps of `step`; the end is excluded.

    Example: `ws.arange(3)` is [0, 1, 2].
    """
    if isinstance(stop, DType) or (
        isinstance(stop, str) and stop in DTYPES
    ):  # compatibility: dtype was once the second argument
        stop, dtype = None, stop
    count: Any = start if stop is None else stop
    first: Any = 0 if stop is None else start
    if (first, step) != (0, 1):
        if not all(isinstance(x, int) for x in (first, count, step)) or step == 0:
            fail(
                UsageError,
                f"arange: start and step need an integer stop, and step must not be 0; "
                f"received {first!r}, {count!r}, {step!r}. For a symbolic dimension: ws.arange(n) * {step} + {first}.",
            )
        count = len(range(first, count, step))
    indices = iota((count,), 0, "int32" if as_dtype(dtype).is_float else dtype)
    return (indices if (first, step) == (0, 1) else indices * step + first).astype(dtype)


def size(dim: Extent | str) -> Tensor:
    """The run-time size of a dimension as a scalar.  Example: `x.sum() / ws.size("batch")`."""
    with located():
        return Tensor(size_node(as_shape(dim)[0]))


def random_uniform(
    graph: Graph | Tensor, shape: object, low: Operand = 0.0, high: Operand = 1.0, dtype: object = "float32"
) -> Tensor:
    """Uniform numbers in [low, high), drawn anew in every step: a function of (seed, key, step, element).

    The key is the graph's scope and the ordinal of the call in it.
    Example: `noise = ws.random_uniform(g, x.shape)`.
    """
    draw = _random(graph, shape, dtype)
    return draw if _are((low, high), (0.0, 1.0)) else draw * (as_tensor(high) - low) + low


def random_normal(
    graph: Graph | Tensor, shape: object, mean: Operand = 0.0, std: Operand = 1.0, dtype: object = "float32"
) -> Tensor:
    """Normal numbers by the Box-Muller transform, √(-2 log(1 - u)) · cos(2π v), drawn anew in every step.

    Example: `z = ws.random_normal(g, ("batch", 16))`.
    """
    u, v = _random(graph, shape, dtype), _random(graph, shape, dtype)
    standard = sqrt(-2.0 * log(1.0 - u)) * cos(2.0 * math.pi * v)
    return standard if _are((mean, std), (0.0, 1.0)) else standard * std + mean


def _are(operands: tuple[Operand, ...], numbers: tuple[float, ...]) -> bool:
    return all(isinstance(v, int | float) and v == n for v, n in zip(operands, numbers, strict=True))


def _random(graph: Graph | Tensor, shape: object, dtype: object) -> Tensor:
    owner = graph.graph if isinstance(graph, Tensor) else graph
    if owner is None:
        fail(UsageError, "random numbers belong to a graph; pass the graph, or one of its tensors, as first argument.")
    with located():
        kind = TensorType(as_shape(shape), as_dtype(dtype))
    if not kind.dtype.is_float:
        fail(DTypeError, f"random numbers are floats; received dtype {kind.dtype}. Cast the result: .astype('int32').")
    return Tensor(record("random", (), at.RandomAttrs(owner.next_random_key(), kind)), owner)
