"""Methods of `Tensor` that change its shape or the order of its axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wholestep.compiler.frontend import type_promotion
from wholestep.compiler.frontend.trace import fail, located
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import Extent, as_shape, divide, product, shape_text
from wholestep.errors import ShapeError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.tensor import Tensor


def reshape(self: Tensor, *shape: Extent | str | Sequence[Extent | str]) -> Tensor:
    """The same elements in another shape; one extent may be -1."""
    extents = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else list(shape)
    if extents.count(-1) > 1:
        fail(ShapeError, f"reshape: only one extent can be -1; received {tuple(extents)}.")
    with located():
        fixed = as_shape([1 if e == -1 else e for e in extents])
    if -1 not in extents:
        return type(self)(type_promotion.reshape(self.node, fixed), self.graph)
    rest = divide(self.node.type.elements, product(fixed)) if product(fixed) != 0 else None
    if rest is None:
        text = shape_text(self.shape)
        fail(
            ShapeError,
            f"reshape: {text} cannot become {tuple(extents)}: {self.node.type.elements} elements are not divisible by "
            f"{product(fixed)}.",
        )
    position = extents.index(-1)
    return type(self)(type_promotion.reshape(self.node, (*fixed[:position], rest, *fixed[position + 1 :])), self.graph)


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
    """Broadcast to a shape; -1 keeps an axis as it is."""
    extents = list(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)
    new = len(extents) - self.ndim
    with located():
        target = as_shape([self.shape[d - new] if e == -1 and d >= new else e for d, e in enumerate(extents)])
    return type(self)(type_promotion.expand(self.node, target), self.graph)
