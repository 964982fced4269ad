"""Functions that remove, add, merge, move, repeat and split axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wholestep.compiler.frontend.functions.primitives import concat
from wholestep.compiler.frontend.functions.reductions import axis_and_size
from wholestep.compiler.frontend.shape.sequences import split
from wholestep.compiler.frontend.tensor import Axes, Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product, shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = [
    "chunk", "flatten", "movedim", "permute", "repeat", "reshape", "roll", "squeeze", "transpose", "unbind",
    "unflatten", "unsqueeze",
]  # fmt: skip


def reshape(x: Tensor, shape: Sequence[Extent | str]) -> Tensor:
    """The same elements in another shape, as `x.reshape(shape)`.  Example: `ws.reshape(x, (-1, 784))`."""
    return x.reshape(shape)


def permute(x: Tensor, order: Sequence[int]) -> Tensor:
    """The axes in another order, as `x.permute(order)`.  Example: `ws.permute(images, (0, 2, 3, 1))`."""
    return x.permute(order)


def transpose(x: Tensor, first: int, second: int) -> Tensor:
    """Swaps two axes, as `x.transpose(first, second)`.  Example: `ws.transpose(x, 1, 2)`."""
    return x.transpose(first, second)


def squeeze(x: Tensor, axis: Axes = None) -> Tensor:
    """x without its axes of size 1, or without those among the given axes.  Example: `ws.squeeze(x, -1)`."""
    axes = x._axes(axis)
    return x.reshape(tuple(e for d, e in enumerate(x.shape) if d not in axes or e != 1))


def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """x with a new axis of size 1, at `axis` of the result.  Example: `ws.unsqueeze(x, 1)` is `x[:, None]`."""
    if not -x.ndim - 1 <= axis <= x.ndim:
        fail(
            ShapeError,
            f"unsqueeze: axis {axis} is not one of the {x.ndim + 1} axes of the result.",
        )
    position = axis % (x.ndim + 1)
    return x.reshape((*x.shape[:position], 1, *x.shape[position:]))


def flatten(x: Tensor, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Merges the axes from `start_axis` to `end_axis`, inclusive.  Example: `ws.flatten(images, 1)` keeps the batch."""
    if x.ndim == 0:
        return x.reshape((1,))
    (first,), (last,) = x._axes(start_axis), x._axes(end_axis)
    if first > last:
        fail(ShapeError, f"flatten: axis {start_axis} comes after axis {end_axis} in {shape_text(x.shape)}.")
    return x.reshape((*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def unflatten(x: Tensor, axis: int, sizes: Sequence[Extent]) -> Tensor:
    """Splits one axis into several, of which one may be -1.  Example: `ws.unflatten(x, -1, (heads, -1))`."""
    (position,) = x._axes(axis)
    fixed = math.prod(s for s in sizes if isinstance(s, int) and s != -1)
    length = x.shape[position]
    if -1 in sizes and (not isinstance(length, int) or fixed == 0 or length % fixed):
        fail(ShapeError, f"unflatten: axis {axis} of {shape_text(x.shape)} cannot be split into {tuple(sizes)}.")
    extents = [length // fixed if s == -1 and isinstance(length, int) else s for s in sizes]
    return x.reshape((*x.shape[:position], *extents, *x.shape[position + 1 :]))


def movedim(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Moves axes to other positions; the other axes keep their order.  Example: `ws.movedim(images, 1, -1)` is NHWC."""
    sources = [x._axes(a)[0] for a in ([source] if isinstance(source, int) else source)]
    targets = [x._axes(a)[0] for a in ([destination] if isinstance(destination, int) else destination)]
    if len(sources) != len(targets) or len({*sources}) < len(sources) or len({*targets}) < len(targets):
        fail(ShapeError, f"movedim: each axis needs a destination of its own; received {source!r}, {destination!r}.")
    order = [d for d in range(x.ndim) if d not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return x.permute(order)


def chunk(x: Tensor, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
    """x in that many pieces along an axis, or fewer if it is short.  Example: `q, k, v = ws.chunk(qkv, 3, -1)`."""
    position, length = axis_and_size("chunk", x, axis)
    if not isinstance(chunks, int) or chunks < 1:
        fail(OptionError, f"chunk: chunks must be an integer of at least 1; received {chunks!r}.")
    return split(x, max(1, -(-length // chunks)), position)


def unbind(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without it.  Example: `q, k, v = ws.unbind(qkv, 2)`."""
    position, length = axis_and_size("unbind", x, axis)
    return tuple(x[(*(slice(None),) * position, i)] for i in range(length))


def repeat(x: Tensor, *times: int | Sequence[int]) -> Tensor:
    """x repeated along its axes, one count per axis, as torch's `repeat` and NumPy's `tile`.

    More counts than axes add new leading axes.  Example: `ws.repeat(x, 2, 1)` has all rows of x twice.
    """
    counts = [n for item in times for n in ([item] if isinstance(item, int) else item)]
    if len(counts) < x.ndim or any(not isinstance(n, int) or n < 1 for n in counts):
        fail(
            OptionError,
            f"repeat: {shape_text(x.shape)} needs a count of at least 1 per axis; received {(*counts,)}.",
        )
    new = len(counts) - x.ndim
    out = x.reshape((*[1] * new, *x.shape))
    with_unit_axes = tuple(e for extent in out.shape for e in (1, extent))
    expanded = tuple(e for n, extent in zip(counts, out.shape, strict=True) for e in (n, extent))
    shape = tuple(n * extent for n, extent in zip(counts, out.shape, strict=True))
    return out.reshape(with_unit_axes).expand(expanded).reshape(shape)


def roll(x: Tensor, shifts: int | Sequence[int], axis: Axes = None) -> Tensor:
    """x shifted cyclically along axes, or as a flat array if no axis is given.

    Example: `ws.roll(tokens, -1, axis=1)` has at each position the token that comes next.
    """
    if axis is None:
        if not isinstance(shifts, int):
            fail(OptionError, f"roll: a sequence of shifts needs one axis per shift; received {shifts!r} and no axis.")
        return roll(x.reshape(-1), shifts, 0).reshape(x.shape)
    amounts, axes = ([v] if isinstance(v, int) else list(v) for v in (shifts, axis))
    if len(amounts) != len(axes):
        fail(OptionError, f"roll needs one shift per axis; received {shifts!r} and {axis!r}.")
    for shift, a in zip(amounts, axes, strict=True):
        position, length = axis_and_size("roll", x, a)
        if shift % length:
            last, first = split(x, [length - shift % length, shift % length], position)
            x = concat([first, last], position)
    return x
