"""`pad`: what stands around a tensor, zeros or the tensor itself again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.functions.primitives import concat
from wholestep.compiler.frontend.shape.sequences import flip
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["pad"]


def pad(x: Tensor, amounts: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> Tensor:
    """(low, high) elements around each axis.

    Args:
        mode: "constant": `value`; "reflect": the elements inside, mirrored at the outermost; "replicate": the outermost
            again and again; "circular": those of the other end.

    Example: `ws.pad(x, [(0, 0), (1, 1)], mode="reflect")`.
    """
    given = [tuple(a) if isinstance(a, tuple | list) else () for a in amounts]
    if len(given) != x.ndim or any(len(a) != 2 or not all(isinstance(e, int) for e in a) for a in given):
        fail(
            OptionError,
            f"pad takes one pair (low, high) for each of the {x.ndim} axes of {shape_text(x.shape)}, e.g. "
            f"{[(0, 0)] * max(x.ndim - 1, 0) + [(1, 1)]}; received {amounts!r}.",
        )
    if mode == "constant":
        attrs = at.PadAttrs(tuple(a for a, _ in given), tuple(b for _, b in given), float(value))
        return Tensor(record("pad", [x.node], attrs), x.graph)
    if mode not in _SIDES:
        fail(OptionError, f'pad: mode is "constant", {", ".join(f"{m!r}" for m in _SIDES)}; received {mode!r}.')
    for axis, (low, high) in enumerate(given):
        if low or high:
            x = _around(x, axis, low, high, mode)
    return x


def _around(x: Tensor, axis: int, low: int, high: int, mode: str) -> Tensor:
    size = x.shape[axis]
    most = {"reflect": 1, "circular": 0}.get(mode)
    if not isinstance(size, int) or min(low, high) < 0 or (most is not None and max(low, high) > size - most):
        bound = "0" if most is None else f"0 and at most {size} - {most}" if most else f"0 and at most {size}"
        fail(
            ShapeError,
            f"pad: mode={mode!r} takes amounts of at least {bound} at axis {axis} of {shape_text(x.shape)}, whose size "
            f"must be a number; received ({low}, {high}).",
        )
    before, behind = _SIDES[mode]
    parts = ([before(x, axis, size, low)] if low else []) + [x] + ([behind(x, axis, size, high)] if high else [])
    return concat(parts, axis)


def _cut(x: Tensor, axis: int, first: int, last: int) -> Tensor:
    return x[(*(slice(None),) * axis, slice(first, last))]


def _again(x: Tensor, axis: int, at_index: int, times: int) -> Tensor:
    edge = _cut(x, axis, at_index, at_index + 1)
    return edge.expand(*(times if d == axis else e for d, e in enumerate(edge.shape)))


Side = Callable[[Tensor, int, int, int], Tensor]  # of (x, axis, its size, how many)

_SIDES: dict[str, tuple[Side, Side]] = {
    "reflect": (
        lambda x, axis, size, n: flip(_cut(x, axis, 1, n + 1), axis),
        lambda x, axis, size, n: flip(_cut(x, axis, size - n - 1, size - 1), axis),
    ),
    "replicate": (
        lambda x, axis, size, n: _again(x, axis, 0, n),
        lambda x, axis, size, n: _again(x, axis, size - 1, n),
    ),
    "circular": (
        lambda x, axis, size, n: _cut(x, axis, size - n, size),
        lambda x, axis, size, n: _cut(x, axis, 0, n),
    ),
}


take_their_words(globals(), __all__)
