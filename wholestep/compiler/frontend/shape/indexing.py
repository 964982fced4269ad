"""`x[...]`, NumPy's basic indexing and gathers, and the methods of `Tensor` that change its shape or order of axes."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING

import numpy as np

from wholestep.compiler.frontend.trace import fail, located, record
from wholestep.compiler.frontend.type_promotion import constant
from wholestep.compiler.frontend.type_promotion import expand as expand_node
from wholestep.compiler.frontend.type_promotion import reshape as reshape_node
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Dim, Extent, TensorType, as_shape, divide, int32, letter_of, product, shape_text
from wholestep.errors import DTypeError, ShapeError, UsageError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.tensor import Tensor

Item = int | slice | None | EllipsisType | Dim


def index(node: Node, key: object) -> Node:
    """NumPy's basic indexing; an integer tensor or array gathers along the first axis."""
    if isinstance(key, Node | np.ndarray | list):
        return gather(node, key, 0)
    items = _fill_ellipsis(node, key if isinstance(key, tuple) else (key,))
    node = _gather_symbolic_prefixes(node, items)
    starts: list[Extent] = []
    stops: list[Extent] = []
    steps: list[int] = []
    shape: list[Extent] = []
    for item in items:
        if item is None:
            shape.append(1)
            continue
        axis = len(starts)
        start, stop, step = _bounds(item, node.type.shape[axis], axis)
        starts.append(start)
        stops.append(stop)
        steps.append(step)
        if isinstance(item, slice):
            length = stop - start
            shape.append(length if isinstance(length, Dim) else -(-length // step))
    sliced = node
    if (*starts,) != (0,) * len(starts) or (*stops,) != node.type.shape or max(steps, default=1) > 1:
        sliced = record("slice", [node], at.SliceAttrs(tuple(starts), tuple(stops), tuple(steps)))
    return reshape_node(sliced, tuple(shape))


def _gather_symbolic_prefixes(node: Node, items: list[Item]) -> Node:
    """`table[:t]` with a symbolic stop t on an axis of fixed size: a gather of the first t rows.

    Such items are replaced by `:` in `items`.
    """
    axis = -1
    for i, item in enumerate(items):
        axis += item is not None
        if not isinstance(item, slice) or not isinstance(item.stop, Dim) or isinstance(node.type.shape[axis], Dim):
            continue
        if item.start not in (None, 0) or item.step not in (None, 1):
            fail(
                ShapeError,
                f"{_text(item)} at axis {axis}: a slice with a symbolic stop must start at 0 with a step of 1. "
                f"For others use a gather: x[ws.arange({item.stop}) + 3].",
            )
        node = gather(node, record("iota", (), at.IotaAttrs(TensorType((item.stop,), int32), 0)), axis)
        items[i] = slice(None)
    return node


def gather(node: Node, key: Node | np.ndarray | list[int], axis: int) -> Node:
    """The slices of `node` along `axis` at the indices."""
    indices = key if isinstance(key, Node) else _constant_indices(np.asarray(key), node, axis)
    if not indices.type.dtype.is_integer:
        fail(DTypeError, f"an index must be an integer tensor; received {indices.type}. For a mask use ws.where.")
    return record("gather", [node, indices], at.GatherAttrs(axis))


def _constant_indices(key: np.ndarray, node: Node, axis: int) -> Node:
    extent = node.type.shape[axis]
    if letter_of(key.dtype) not in "iu":
        fail(DTypeError, f"an index array must hold integers; received {key.dtype}. For a mask use ws.where.")
    if isinstance(extent, Dim):
        fail(ShapeError, f"constant indices into the symbolic {extent} may be out of range; pass them as an input.")
    if key.size and (key.min() < -extent or key.max() >= extent):
        fail(
            ShapeError, f"indices {key.min()} to {key.max()} are outside axis {axis} of {shape_text(node.type.shape)}."
        )
    return constant(np.where(key < 0, key + extent, key), int32)


def _fill_ellipsis(node: Node, key: tuple[object, ...]) -> list[Item]:
    """The key with the ellipsis expanded: one item per axis, plus None for each new axis."""
    items: list[Item] = []
    for item in key:
        if isinstance(item, np.integer):
            item = int(item)
        if isinstance(item, bool) or not isinstance(item, int | slice | None | EllipsisType | Dim):
            fail(UsageError, f"{item!r} cannot index a tensor; use ints, slices, None, ..., integer tensors and lists.")
        items.append(item)
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    rank = node.type.rank
    if used > rank or items.count(Ellipsis) > 1:
        fail(ShapeError, f"{used} indices and {items.count(Ellipsis)} '...' for {shape_text(node.type.shape)}.")
    rest: list[Item] = [slice(None)] * (rank - used)
    at_ellipsis = items.index(Ellipsis) if Ellipsis in items else len(items)
    return [*items[:at_ellipsis], *rest, *items[at_ellipsis + 1 :]]


def _bounds(item: Item, extent: Extent, axis: int) -> tuple[Extent, Extent, int]:
    """(start, stop, step) along one axis, valid for every run-time size of it."""
    if isinstance(extent, Dim):
        return _symbolic_bounds(item, extent, axis)
    if isinstance(item, slice):
        if item.step is not None and item.step <= 0:
            fail(ShapeError, f"a slice's step must be positive; received {item.step} at axis {axis}.")
        start, stop, step = item.indices(extent)
        return start, max(start, stop), step
    assert isinstance(item, int)
    if not -extent <= item < extent:
        fail(ShapeError, f"index {item} is outside axis {axis} of size {extent}.")
    return item % extent, item % extent + 1, 1


def _symbolic_bounds(item: Item, extent: Dim, axis: int) -> tuple[Extent, Extent, int]:
    """A symbolic dimension has at least one element at run time: only bounds that are valid for every size pass."""
    if isinstance(item, slice):
        if item.step not in (None, 1):
            fail(ShapeError, f"a step of {item.step} along the symbolic dimension {extent} is not supported.")
        start = _offset(item.start, extent, 0)
        stop = _offset(item.stop, extent, extent)
        margin = start + (extent - stop)
        drops_at_most_one = isinstance(margin, int) and 0 <= margin <= 1 and isinstance(start, int)
        safe = drops_at_most_one or (start, stop) in ((0, 1), (extent - 1, extent))
    else:
        start = _offset(item, extent, 0)
        stop = start + 1
        safe = start in (0, extent - 1)
    if not safe:
        fail(
            ShapeError,
            f"{_text(item)} may be out of range at axis {axis}: the symbolic dimension {extent} may have only one "
            "element ([0], [-1], [:1], [-1:], [1:], [:-1] are possible). Give the dimension a fixed size.",
        )
    return start, stop, 1


def _offset(value: object, extent: Dim, default: Extent) -> Extent:
    if value is None:
        return default
    assert isinstance(value, int | Dim)
    return extent + value if isinstance(value, int) and value < 0 else value


def _text(item: Item) -> str:
    if not isinstance(item, slice):
        return f"[{item}]"
    return "[" + ":".join("" if v is None else str(v) for v in (item.start, item.stop)) + "]"


# -- methods of Tensor -------------------------------------------------------------------------------------------


def reshape(self: Tensor, *shape: Extent | str | Sequence[Extent | str]) -> Tensor:
    """The same elements in another shape; one extent may be -1."""
    extents = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else list(shape)
    if extents.count(-1) > 1:
        fail(ShapeError, f"reshape: only one extent can be -1; received {tuple(extents)}.")
    with located():
        fixed = as_shape([1 if e == -1 else e for e in extents])
    if -1 not in extents:
        return type(self)(reshape_node(self.node, fixed), self.graph)
    rest = divide(self.node.type.elements, product(fixed)) if product(fixed) != 0 else None
    if rest is None:
        text = shape_text(self.shape)
        fail(
            ShapeError,
            f"reshape: {text} cannot become {tuple(extents)}: {self.node.type.elements} elements are not divisible by "
            f"{product(fixed)}.",
        )
    position = extents.index(-1)
    return type(self)(reshape_node(self.node, (*fixed[:position], rest, *fixed[position + 1 :])), self.graph)


def permute(self: Tensor, *order: int | Sequence[int]) -> Tensor:
    """The axes in another order."""
    axes = [a for item in order for a in ([item] if isinstance(item, int) else item)]
    return self._unary("permute", at.PermuteAttrs(tuple(a + self.ndim if a < 0 else a for a in axes)))


def transpose(self: Tensor, *axes: int) -> Tensor:
    """Swap two axes; without arguments reverse them all."""
    if not axes:
        return self.permute(tuple(reversed(range(self.ndim))))
    if len(axes) != 2:
        return self.permute(axes)
    a, b = (self._axes(axis)[0] for axis in axes)
    order = list(range(self.ndim))
    order[a], order[b] = b, a
    return self.permute(order)


def expand(self: Tensor, *shape: Extent | str | Sequence[Extent | str]) -> Tensor:
    """Broadcast to a shape; -1 leaves an axis unchanged."""
    extents = list(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)
    new = len(extents) - self.ndim
    with located():
        target = as_shape([self.shape[d - new] if e == -1 and d >= new else e for d, e in enumerate(extents)])
    return type(self)(expand_node(self.node, target), self.graph)
