"""`Tensor`: what user code holds while a program is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wholestep.compat.arguments import takes_their_words
from wholestep.compiler.frontend import contraction, indexing
from wholestep.compiler.frontend.habits import Unreadable
from wholestep.compiler.frontend.promote import Literal, align, constant, expand, natural_dtype, promote, reshape, size
from wholestep.compiler.frontend.trace import fail, locate, located, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import (
    Dim,
    DType,
    Extent,
    Shape,
    as_dtype,
    as_shape,
    boolean,
    divide,
    product,
    shape_text,
    uint8,
)
from wholestep.errors import DTypeError, GraphError, HabitError, ShapeError, UsageError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.graph import Graph

Axes = int | Sequence[int] | None
Operand: TypeAlias = "Tensor | Literal"


class Tensor(Unreadable):
    """A value of the program being recorded: a node and the graph it belongs to.

    `graph` is None for values that belong to no graph yet (constants, sizes); they join the first one they meet.
    """

    __slots__ = ("graph", "node")

    def __init__(self, node: Node, graph: Graph | None = None) -> None:
        if not isinstance(node, Node):
            fail(HabitError, "tensors are made by functions: ws.zeros((3, 4)); a parameter by ws.nn.Parameter((3, 4)).")
        self.node, self.graph = node, graph

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Tensor:
        """`array + tensor`: NumPy leaves the operation to us, as it does `np.exp(tensor)`."""
        from wholestep.compat.ufuncs import applied

        return applied(function, method, inputs, options)

    @property
    def shape(self) -> Shape:
        """Ints, and Dims for symbolic dimensions."""
        return self.node.type.shape

    @property
    def dtype(self) -> DType:
        return self.node.type.dtype

    @property
    def device(self) -> None:
        """None, that of the session, as of every tensor: `ws.arange(n, device=x.device)` says nothing new."""

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def ndim(self) -> int:
        return self.node.type.rank

    def __repr__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        return f"<Tensor{label} {self.dtype}{shape_text(self.shape)} from {self.node.op}>"

    def _unary(self, op: str, attrs: at.Attrs = at.NONE) -> Tensor:
        return Tensor(record(op, [self.node], attrs), self.graph)

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def __add__(self, other: Operand) -> Tensor:
        return pointwise("add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return pointwise("add", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return pointwise("sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return pointwise("sub", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return pointwise("mul", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return pointwise("mul", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return pointwise("div", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return pointwise("div", other, self)

    def __mod__(self, other: Operand) -> Tensor:
        return pointwise("mod", self, other)

    def __rmod__(self, other: Operand) -> Tensor:
        return pointwise("mod", other, self)

    def __floordiv__(self, other: Operand) -> Tensor:
        from wholestep.compiler.frontend.elementwise import floor_divide

        return floor_divide(self, other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        from wholestep.compiler.frontend.elementwise import floor_divide

        return floor_divide(as_tensor(other), self)

    def __pow__(self, exponent: Operand) -> Tensor:
        """Powers with a cheaper name get it: x*x, x*x*x, sqrt, recip."""
        if isinstance(exponent, int | float):
            if exponent in (1, 2, 3):
                return {1: self, 2: self * self, 3: self * self * self}[int(exponent)]
            if exponent in (0.5, -1):
                return self._unary("sqrt" if exponent == 0.5 else "recip")
        return pointwise("pow", self, exponent)

    def __rpow__(self, base: Operand) -> Tensor:
        return pointwise("pow", base, self)

    def __neg__(self) -> Tensor:
        return self._unary("neg")

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return self._unary("abs")

    def __matmul__(self, other: Operand) -> Tensor:
        return matmul(self, other)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return matmul(other, self)

    # -- comparisons and logic: bool tensors ---------------------------------------------------------------------

    def __lt__(self, other: Operand) -> Tensor:
        return pointwise("less", self, other)

    def __le__(self, other: Operand) -> Tensor:
        return pointwise("less_equal", self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return pointwise("less", other, self)

    def __ge__(self, other: Operand) -> Tensor:
        return pointwise("less_equal", other, self)

    def __eq__(self, other: Operand) -> Tensor:  # type: ignore[override]
        return pointwise("equal", self, other)

    def __ne__(self, other: Operand) -> Tensor:  # type: ignore[override]
        return pointwise("not_equal", self, other)

    __hash__ = object.__hash__

    def __and__(self, other: Operand) -> Tensor:
        return pointwise("bitwise_and" if self.dtype.is_integer else "logical_and", self, other)

    def __or__(self, other: Operand) -> Tensor:
        return pointwise("bitwise_or" if self.dtype.is_integer else "logical_or", self, other)

    def __xor__(self, other: Operand) -> Tensor:
        return pointwise("not_equal" if self.dtype == boolean else "bitwise_xor", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Tensor:
        return self ^ (255 if self.dtype == uint8 else -1) if self.dtype.is_integer else self._unary("logical_not")

    def __lshift__(self, other: Operand) -> Tensor:
        return pointwise("left_shift", self, other)

    def __rlshift__(self, other: Operand) -> Tensor:
        return pointwise("left_shift", other, self)

    def __rshift__(self, other: Operand) -> Tensor:
        return pointwise("right_shift", self, other)

    def __rrshift__(self, other: Operand) -> Tensor:
        return pointwise("right_shift", other, self)

    # -- reductions ----------------------------------------------------------------------------------------------

    def _axes(self, axis: Axes) -> tuple[int, ...]:
        given = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        for a in given:
            if not -self.ndim <= a < self.ndim:
                fail(ShapeError, f"axis {a} does not exist in shape {shape_text(self.shape)}.")
        out = tuple(sorted(a % self.ndim for a in given))
        if len(set(out)) < len(out):
            fail(ShapeError, f"axes {tuple(given)} name an axis of {shape_text(self.shape)} twice.")
        return out

    def _reduced(self, op: str, axes: tuple[int, ...], attrs: at.Attrs, keepdims: bool) -> Tensor:
        if not axes:
            return self
        out = self._unary(op, attrs)
        return out.reshape(tuple(1 if d in axes else e for d, e in enumerate(self.shape))) if keepdims else out

    @takes_their_words
    def sum(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Σ x over the axes (all of them when none is given); of a half type added in float32, then rounded."""
        axes = self._axes(axis)
        return self._reduced("sum", axes, at.SumAttrs(axes, self.dtype.accumulate), keepdims).astype(self.dtype)

    @takes_their_words
    def mean(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """Σ x / n over the axes: a ratio node, so that a loss ending in it can be cut into micro-batches."""
        if not self.dtype.is_float:
            fail(
                DTypeError, f"mean needs a float tensor; received {self.node.type}. Cast it first: x.astype('float32')."
            )
        axes = self._axes(axis)
        count = product(self.shape[d] for d in axes)
        return ratio(self.astype(self.dtype.accumulate).sum(axes, keepdims), count).astype(self.dtype)

    @takes_their_words
    def max(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """The largest element; its gradient is split evenly among tied elements."""
        axes = self._axes(axis)
        return self._reduced("max", axes, at.MaxAttrs(axes), keepdims)

    @takes_their_words
    def min(self, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """The smallest element; its gradient is split evenly among tied elements."""
        if self.dtype == boolean:
            fail(DTypeError, f"min needs numbers; received {self.node.type}. Cast it first: x.astype('float32').")
        return self._mirrored().max(axis, keepdims)._mirrored()

    def _mirrored(self) -> Tensor:
        """The same numbers in the opposite order.  An integer's negative is no such thing: 0 and the lowest stay."""
        if self.dtype.is_float:
            return -self
        return (255 if self.dtype == uint8 else -1) - self

    @takes_their_words
    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The int32 index of the first largest element (of the flattened tensor when no axis is given)."""
        if axis is None:
            return self.reshape(-1).argmax(0)
        axes = self._axes(axis)
        return self._reduced("argmax", axes, at.ArgmaxAttrs(axes[0]), keepdims)

    def sum_reduce(self, axis: Axes = None) -> Tensor:
        """`sum` under its name in a primitive instruction set."""
        return self.sum(axis)

    def max_reduce(self, axis: Axes = None) -> Tensor:
        """`max` under its name in a primitive instruction set."""
        return self.max(axis)

    # -- movement ------------------------------------------------------------------------------------------------

    def reshape(self, *shape: Extent | str | Sequence[Extent | str]) -> Tensor:
        """The same elements in another shape; one extent may be -1."""
        given = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else list(shape)
        if given.count(-1) > 1:
            fail(ShapeError, f"reshape: only one extent can be -1; received {tuple(given)}.")
        with located():
            known = as_shape([1 if e == -1 else e for e in given])
        if -1 not in given:
            return Tensor(reshape(self.node, known), self.graph)
        rest = divide(self.node.type.elements, product(known)) if product(known) != 0 else None
        if rest is None:
            text = shape_text(self.shape)
            fail(
                ShapeError,
                f"reshape: {text} does not divide into {tuple(given)}: {self.node.type.elements} / {product(known)}.",
            )
        position = given.index(-1)
        return Tensor(reshape(self.node, (*known[:position], rest, *known[position + 1 :])), self.graph)

    def permute(self, *order: int | Sequence[int]) -> Tensor:
        """The axes in another order."""
        axes = [a for item in order for a in ([item] if isinstance(item, int) else item)]
        return self._unary("permute", at.PermuteAttrs(tuple(a + self.ndim if a < 0 else a for a in axes)))

    def transpose(self, *axes: int) -> Tensor:
        """Swap two axes; without arguments reverse them all."""
        if not axes:
            return self.permute(tuple(reversed(range(self.ndim))))
        if len(axes) != 2:
            return self.permute(axes)
        a, b = (self._axes(axis)[0] for axis in axes)
        order = list(range(self.ndim))
        order[a], order[b] = b, a
        return self.permute(order)

    @property
    def T(self) -> Tensor:
        """The transposed matrix."""
        return self.transpose()

    @property
    def mT(self) -> Tensor:
        """The last two axes in each other's place."""
        return self.transpose(-2, -1)

    def __len__(self) -> int:
        first = self.shape[0] if self.shape else None
        if not isinstance(first, int):
            what = "a single number has none" if first is None else f"{first} is not a number yet; write x.shape[0]"
            fail(UsageError, f"len() of {self!r}: it is the size of the first axis, and {what}.")
        return first

    def expand(self, *shape: Extent | str | Sequence[Extent | str]) -> Tensor:
        """Broadcast to a shape; -1 keeps an axis as it is."""
        given = list(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)
        new = len(given) - self.ndim
        with located():
            wanted = as_shape([self.shape[d - new] if e == -1 and d >= new else e for d, e in enumerate(given)])
        return Tensor(expand(self.node, wanted), self.graph)

    broadcast_to = expand

    def astype(self, dtype: object) -> Tensor:
        """The same values as another dtype, rounded to the nearest where it has fewer digits.

        A float becomes an integer by cutting off its fraction; outside of the integer's range it becomes the nearest
        end of it, and NaN becomes 0.  An integer that is too large for another integer dtype wraps, as in NumPy.
        """
        with located():
            wanted = as_dtype(dtype)
        return self if wanted == self.dtype else self._unary("cast", at.CastAttrs(wanted))

    def __getitem__(self, key: object) -> Tensor:
        if isinstance(key, Tensor):
            return Tensor(indexing.index(self.node, key.node), common_graph(self, key))
        if isinstance(key, tuple) and any(isinstance(item, Tensor | np.ndarray | list) for item in key):
            from wholestep.compiler.frontend.selection import pick  # few programs do

            return pick(self, key)
        return Tensor(indexing.index(self.node, key), self.graph)

    # -- pointwise methods ---------------------------------------------------------------------------------------

    def exp(self) -> Tensor:
        return self._unary("exp")

    def exp2(self) -> Tensor:
        return self._unary("exp2")

    def log(self) -> Tensor:
        return self._unary("log")

    def log2(self) -> Tensor:
        return self._unary("log2")

    def sin(self) -> Tensor:
        return self._unary("sin")

    def cos(self) -> Tensor:
        return self._unary("cos")

    def sqrt(self) -> Tensor:
        return self._unary("sqrt")

    def recip(self) -> Tensor:
        return self._unary("recip")

    def abs(self) -> Tensor:
        return self._unary("abs")

    def relu(self) -> Tensor:
        return self._unary("relu")

    def sigmoid(self) -> Tensor:
        return self._unary("sigmoid")

    def tanh(self) -> Tensor:
        return self._unary("tanh")

    add, mul, mod = __add__, __mul__, __mod__
    less_than = __lt__

    def keep(self, name: str | None = None) -> Tensor:
        """Make the value readable by name after a step; a kept parameter's gradient is too, as `"<name>.grad"`."""
        if self.graph is None:
            fail(GraphError, "keep: this value belongs to no graph yet. Make it with g.constant(...).")
        self.graph.keep(self, name)
        return self


# -- building blocks of everything above -------------------------------------------------------------------------


def common_graph(*operands: object) -> Graph | None:
    """The one graph that the tensors among the operands belong to."""
    owners = {id(o.graph): o for o in operands if isinstance(o, Tensor) and o.graph is not None}
    if len(owners) > 1:
        a, b = list(owners.values())[:2]
        fail(GraphError, f"{a!r} and {b!r} belong to two different graphs; record both in one.")
    return next(iter(owners.values())).graph if owners else None


def _unwrap(operand: object) -> Node | Literal:
    if isinstance(operand, Tensor):
        return operand.node
    if isinstance(operand, int | float | Dim | np.ndarray | np.generic | list | tuple):
        return operand
    fix = " Make it an array: .numpy()." if hasattr(operand, "numpy") else ""
    raise locate(UsageError(f"{operand!r} cannot meet a tensor; use tensors, numbers or arrays.{fix}"))


def as_tensor(value: Operand) -> Tensor:
    """A tensor as it is; a number, an array or a Dim as a constant or size that belongs to no graph yet."""
    if isinstance(value, Tensor):
        return value
    literal = _unwrap(value)
    assert not isinstance(literal, Node)
    if isinstance(literal, Dim):
        return Tensor(size(literal))
    with located():
        return Tensor(constant(literal, natural_dtype(literal)))


def pointwise(op: str, *operands: Operand) -> Tensor:
    """An elementwise op over operands brought to one dtype and one shape."""
    nodes = promote(op, [_unwrap(o) for o in operands])
    return Tensor(record(op, align(op, nodes)), common_graph(*operands))


def where(condition: Operand, x: Operand, y: Operand) -> Tensor:
    """x where the condition holds, y elsewhere.

    Example: `ws.where(x > 0, x, 0.1 * x)` is a leaky relu.
    """
    chosen = promote("where", [_unwrap(x), _unwrap(y)])
    test = as_tensor(condition).node
    if test.type.dtype != boolean:
        fail(DTypeError, f"where needs a bool condition; received {test.type}. Compare it first: c != 0.")
    return Tensor(record("where", align("where", [test, *chosen])), common_graph(condition, x, y))


def matmul(a: Operand, b: Operand, dtype: object = None) -> Tensor:
    """The matrix product, for all of NumPy's ranks: (..., m, k) @ (..., k, n) -> (..., m, n).

    Args:
        dtype: of the result; that of the operands unless given.  Products of half types are added up in float32:
            `dtype="float32"` keeps all of its digits.

    Example: `ws.matmul(x, w)` is `x @ w`.
    """
    left, right = promote("@", [_unwrap(a), _unwrap(b)])
    out = Tensor(contraction.matmul(left, right), common_graph(a, b))
    return out.astype(left.type.dtype if dtype is None else dtype)


def ratio(numerator: Tensor, denominator: Tensor | Extent) -> Tensor:
    """numerator / denominator as the quotient that a loss is cut along: see `Tensor.mean`.

    Example: `ws.ratio((errors * weights).sum(), weights.sum())` is a weighted mean.
    """
    return pointwise("ratio", numerator, denominator)
