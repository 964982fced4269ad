"""`pad`: constant, reflect, replicate and circular padding; all but the first by concatenation of slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.frontend.functions.primitives import concat
from wholestep.compiler.frontend.shape.sequences import flip
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["pad"]


def pad(x: Tensor, amounts: Sequence[tuple[int, int]], value: float = 0.0, mode: str = "constant") -> Tensor:
    """Adds (low, high) elements around each axis.

    Args:
        mode: "constant": `value`; "reflect": the tensor mirrored at its edge, without repeating the edge; "replicate":
            the edge repeated; "circular": the elements of the opposite end.

    Example: `ws.pad(x, [(0, 0), (1, 1)], mode="reflect")`.
    """
    pairs = [tuple(a) if isinstance(a, tuple | list) else () for a in amounts]
    if len(pairs) != x.ndim or any(len(a) != 2 or not all(isinstance(e, int) for e in a) for a in pairs):
        fail(
            OptionError,
            f"pad needs one pair (low, high) for each of the {x.ndim} axes of {shape_text(x.shape)}, e.g. "
            f"{[(0, 0)] * max(x.ndim - 1, 0) + [(1, 1)]}; received {amounts!r}.",
        )
    if mode == "constant":
        attrs = at.PadAttrs(tuple(a for a, _ in pairs), tuple(b for _, b in pairs), float(value))
        return Tensor(record("pad", [x.node], attrs), x.graph)
    if mode not in _PADDING:
        fail(OptionError, f"pad: mode is 'constant' or one of {', '.join(map(repr, _PADDING))}; received {mode!r}.")
    for axis, (low, high) in enumerate(pairs):
        if low or high:
            x = _pad_axis(x, axis, low, high, mode)
    return x


def _pad_axis(x: Tensor, axis: int, low: int, high: int, mode: str) -> Tensor:
    size = x.shape[axis]
    excluded = {"reflect": 1, "circular": 0}.get(mode)
    if not isinstance(size, int) or min(low, high) < 0 or (excluded is not None and max(low, high) > size - excluded):
        bound = (
            "0" if excluded is None else f"0 and at most {size} - {excluded}" if excluded else f"0 and at most {size}"
        )
        fail(
            ShapeError,
            f"pad: mode={mode!r} needs amounts of at least {bound} at axis {axis} of {shape_text(x.shape)}, whose size "
            f"must be an integer; received ({low}, {high}).",
        )
    before, after = _PADDING[mode]
    parts = ([before(x, axis, size, low)] if low else []) + [x] + ([after(x, axis, size, high)] if high else [])
    return concat(parts, axis)


def _slice_axis(x: Tensor, axis: int, first: int, last: int) -> Tensor:
    return x[(*(slice(None),) * axis, slice(first, last))]


def _repeat_slice(x: Tensor, axis: int, at_index: int, times: int) -> Tensor:
    edge = _slice_axis(x, axis, at_index, at_index + 1)
    return edge.expand(*(times if d == axis else e for d, e in enumerate(edge.shape)))


Side = Callable[[Tensor, int, int, int], Tensor]  # (x, axis, size of the axis, number of elements) -> padding

_PADDING: dict[str, tuple[Side, Side]] = {
    "reflect": (
        lambda x, axis, size, n: flip(_slice_axis(x, axis, 1, n + 1), axis),
        lambda x, axis, size, n: flip(_slice_axis(x, axis, size - n - 1, size - 1), axis),
    ),
    "replicate": (
        lambda x, axis, size, n: _repeat_slice(x, axis, 0, n),
        lambda x, axis, size, n: _repeat_slice(x, axis, size - 1, n),
    ),
    "circular": (
        lambda x, axis, size, n: _slice_axis(x, axis, size - n, size),
        lambda x, axis, size, n: _slice_axis(x, axis, 0, n),
    ),
}
