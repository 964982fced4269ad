"""`Tensor`: a symbolic value that user code computes with while a program is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wholestep.compiler.frontend.functions import reductions
from wholestep.compiler.frontend.shape import indexing
from wholestep.compiler.frontend.trace import TracedValue, fail, locate, located, record
from wholestep.compiler.frontend.type_promotion import Literal, align, constant, natural_dtype, promote, size
from wholestep.compiler.frontend.type_promotion import matmul as matmul_node
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Dim, DType, Extent, Shape, as_dtype, boolean, shape_text, uint8
from wholestep.errors import DTypeError, GraphError, HabitError, UsageError
from wholestep.lazy import interop

if TYPE_CHECKING:
    from wholestep.compiler.frontend.graph import Graph

Axes = int | Sequence[int] | None
Operand: TypeAlias = "Tensor | Literal"


def _operator(op: str) -> tuple[Callable[[Tensor, Operand], Tensor], Callable[[Tensor, Operand], Tensor]]:
    """An elementwise op as the methods `x ∘ y` and, with the operands swapped, `y ∘ x`."""

    def forward(self: Tensor, other: Operand) -> Tensor:
        return pointwise(op, self, other)

    def right_hand(self: Tensor, other: Operand) -> Tensor:
        return pointwise(op, other, self)

    return forward, right_hand


def _method(op: str) -> Callable[[Tensor], Tensor]:
    """An elementwise op of one tensor as a method of its name."""

    def method(self: Tensor) -> Tensor:
        return self._unary(op)

    method.__name__, method.__qualname__ = op, f"Tensor.{op}"
    return method


class Tensor(TracedValue):
    """A value of the program being recorded: a node and the graph it belongs to.

    `graph` is None for values that belong to no graph yet (constants, sizes); they join the graph of the other
    operands.
    """

    __slots__ = ("graph", "node")

    def __init__(self, node: Node, graph: Graph | None = None) -> None:
        if not isinstance(node, Node):
            fail(HabitError, "functions create tensors: ws.zeros((3, 4)); a parameter is ws.nn.Parameter((3, 4)).")
        self.node, self.graph = node, graph

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Tensor:
        """`array + tensor` and `np.exp(tensor)`: NumPy dispatches to this method."""
        return interop.apply_ufunc(function, method, inputs, options)

    @property
    def shape(self) -> Shape:
        """Ints, and Dims for symbolic dimensions."""
        return self.node.type.shape

    @property
    def dtype(self) -> DType:
        return self.node.type.dtype

    @property
    def device(self) -> None:
        """Always None, for the device of the session, so that `ws.arange(n, device=x.device)` works unchanged."""

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

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub")
    __mul__, __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("div")
    __mod__, __rmod__ = _operator("mod")
    __lshift__, __rlshift__ = _operator("left_shift")
    __rshift__, __rrshift__ = _operator("right_shift")

    def __floordiv__(self, other: Operand) -> Tensor:
        from wholestep.compiler.frontend.functions.elementwise import floor_divide

        return floor_divide(self, other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        from wholestep.compiler.frontend.functions.elementwise import floor_divide

        return floor_divide(as_tensor(other), self)

    def __pow__(self, exponent: Operand) -> Tensor:
        """Powers with a cheaper form use it: x*x, x*x*x, sqrt, recip."""
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

    __lt__, __gt__ = _operator("less")
    __le__, __ge__ = _operator("less_equal")
    __eq__, __ne__ = _operator("equal")[0], _operator("not_equal")[0]  # type: ignore[assignment]
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

    # -- reductions: functions/reductions.py -----------------------------------------------------------------------

    _axes, _mirrored = reductions.axes_of, reductions.order_reversed
    sum = reductions.sum
    mean = reductions.mean
    max = reductions.max
    min = reductions.min
    argmax = reductions.argmax
    sum_reduce = reductions.sum_reduce
    max_reduce = reductions.max_reduce

    # -- movement: shape/indexing.py -----------------------------------------------------------------------------

    reshape = indexing.reshape
    permute = indexing.permute
    transpose = indexing.transpose

    @property
    def T(self) -> Tensor:
        """The transposed matrix."""
        return self.transpose()

    @property
    def mT(self) -> Tensor:
        """The tensor with its last two axes swapped."""
        return self.transpose(-2, -1)

    def __len__(self) -> int:
        first = self.shape[0] if self.shape else None
        if not isinstance(first, int):
            what = "a scalar has none" if first is None else f"{first} is symbolic; write x.shape[0]"
            fail(UsageError, f"len() of {self!r} would be the size of the first axis, and {what}.")
        return first

    expand = broadcast_to = indexing.expand

    def astype(self, dtype: object) -> Tensor:
        """The same values in another dtype, rounded to nearest if it has less precision.

        Floats are truncated towards 0 when cast to integers and saturate at the limits of the integer type; NaN becomes
        0.  An integer that is too large for another integer dtype wraps around, as in NumPy.
        """
        with located():
            target = as_dtype(dtype)
        return self if target == self.dtype else self._unary("cast", at.CastAttrs(target))

    def __getitem__(self, key: object) -> Tensor:
        if isinstance(key, Tensor):
            return Tensor(indexing.index(self.node, key.node), common_graph(self, key))
        if isinstance(key, tuple) and any(isinstance(item, Tensor | np.ndarray | list) for item in key):
            from wholestep.compiler.frontend.shape.sort_topk import advanced_index  # imported lazily: rarely needed

            return advanced_index(self, key)
        return Tensor(indexing.index(self.node, key), self.graph)

    # -- pointwise methods ---------------------------------------------------------------------------------------

    exp, exp2, log, log2 = _method("exp"), _method("exp2"), _method("log"), _method("log2")
    sin, cos, sqrt, recip = _method("sin"), _method("cos"), _method("sqrt"), _method("recip")
    abs, relu, sigmoid, tanh = _method("abs"), _method("relu"), _method("sigmoid"), _method("tanh")

    add, mul, mod = __add__, __mul__, __mod__
    less_than = __lt__

    def keep(self, name: str | None = None) -> Tensor:
        """Makes the value readable by name after a step; a kept parameter's gradient is too, as `"<name>.grad"`."""
        if self.graph is None:
            fail(GraphError, "keep: this value belongs to no graph yet. Create it with g.constant(...).")
        self.graph.keep(self, name)
        return self


# -- building blocks ---------------------------------------------------------------------------------------------


def common_graph(*operands: object) -> Graph | None:
    """The graph that all tensors among the operands belong to; an error if there are two."""
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
    fix = " Convert it to an array: .numpy()." if hasattr(operand, "numpy") else ""
    if isinstance(operand, Mapping) and operand:
        fix = f" Take one out of the dict: [{next(iter(operand))!r}]."
    raise locate(UsageError(f"{operand!r} cannot be an operand of a tensor; use tensors, numbers or arrays.{fix}"))


def as_tensor(value: Operand) -> Tensor:
    """A tensor unchanged; a number, an array or a Dim as a constant or size that belongs to no graph yet."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
        fail(
            UsageError,
            f"a tensor is expected; received a {type(value).__name__} with {len(value)} of them. Take one out, (x,) = "
            "tensors, or make one of all: ws.stack(tensors).",
        )
    literal = _unwrap(value)
    assert not isinstance(literal, Node)
    if isinstance(literal, Dim):
        return Tensor(size(literal))
    with located():
        return Tensor(constant(literal, natural_dtype(literal)))


def pointwise(op: str, *operands: Operand) -> Tensor:
    """An elementwise op over operands promoted to a common dtype and broadcast to a common shape."""
    nodes = promote(op, [_unwrap(o) for o in operands])
    return Tensor(record(op, align(op, nodes)), common_graph(*operands))


def where(condition: Operand, x: Operand, y: Operand) -> Tensor:
    """x where the condition holds, y elsewhere.

    Example: `ws.where(x > 0, x, 0.1 * x)` is a leaky relu.
    """
    branches = promote("where", [_unwrap(x), _unwrap(y)])
    predicate = as_tensor(condition).node
    if predicate.type.dtype != boolean:
        fail(DTypeError, f"where needs a bool condition; received {predicate.type}. Compare it first: c != 0.")
    return Tensor(record("where", align("where", [predicate, *branches])), common_graph(condition, x, y))


def matmul(a: Operand, b: Operand, dtype: object = None) -> Tensor:
    """The matrix product, for all of NumPy's ranks: (..., m, k) @ (..., k, n) -> (..., m, n).

    Args:
        dtype: of the result; by default the dtype of the operands.  Products of half types accumulate in float32:
            `dtype="float32"` returns the accumulator unrounded.

    Example: `ws.matmul(x, w)` is `x @ w`.
    """
    left, right = promote("@", [_unwrap(a), _unwrap(b)])
    out = Tensor(matmul_node(left, right), common_graph(a, b))
    return out.astype(left.type.dtype if dtype is None else dtype)


def ratio(numerator: Tensor, denominator: Tensor | Extent) -> Tensor:
    """numerator / denominator as a mean that micro-batches accumulate separately: see `Tensor.mean`.

    Example: `ws.ratio((errors * weights).sum(), weights.sum())` is a weighted mean.
    """
    return pointwise("ratio", numerator, denominator)
