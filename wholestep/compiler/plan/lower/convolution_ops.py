"""Tables of the window ops (convolutions, pools, their adjoints), and when a pool can be fused into a convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.type_rules.convolution import SMALL_WINDOW
from wholestep.compiler.ir.types import Shape
from wholestep.compiler.plan.model.bodies import Window

WINDOWS = frozenset(name for name, op in OPS.items() if op.family is Family.WINDOW)
WEIGHTS = frozenset(
    {"conv2d_grad_weight", "pooled_grad_weight"}
)  # ops without a pointwise epilogue: their sum over all images is complete only at the end of the kernel
KERNELS = {"conv2d": 1, "conv2d_grad_input": 1, "pooled_grad_input": 2}  # op -> position of the weight among its inputs
POOLS = frozenset({"max_pool2d", "max_pool2d_index"})  # value and position of the maximum: one kernel computes both
OPERANDS = {  # names of the operands in a kernel, in the order of the op's inputs
    "conv2d": ("x", "weight"),
    "conv2d_grad_input": ("g", "weight"),
    "conv2d_grad_weight": ("x", "g"),
    "pooled_grad_weight": ("x", "g", "index"),
    "pooled_grad_input": ("g", "index", "weight"),
    "max_pool2d": ("x",),
    "max_pool2d_index": ("x",),
    "max_pool2d_grad": ("g", "index"),
    "max_pool2d_pick": ("x", "index"),
}
POOLED = frozenset({"conv2d"})  # ops that a pool can be fused into


def pool_of(node: Node) -> object | None:
    """A key that identifies the pool which computes the node, its value or its position; None for other ops."""
    return ("max_pool2d", node.inputs, node.attrs) if node.op in POOLS else None


def tiles(pool: Node) -> bool:
    """Do the windows of a pool tile its input: several pixels each, stride = window, no padding?"""
    a = pool.attrs
    assert isinstance(a, at.PoolAttrs)
    several = 1 < a.window[0] * a.window[1] <= SMALL_WINDOW
    return a.last and a.window == a.stride and max(*a.low, *a.high) == 0 and several


def stays_inside(nodes: Sequence[Node], pool: Node, readers: Mapping[Node, Sequence[Node]], roots: set[Node]) -> bool:
    """Are the ops before a pool in its kernel read by that kernel only, so that they need not be stored?"""
    inside, key = set(nodes), pool_of(pool)
    return all(n not in roots and all(r in inside or pool_of(r) == key for r in readers[n]) for n in nodes)


def geometry(attrs: at.Attrs) -> dict[str, object]:
    """The fields of a window kernel's body that follow from its op's attributes: all but the size of the result."""
    if isinstance(attrs, at.ConvAttrs | at.ConvGradAttrs):
        names = ("stride", "low", "high", "dilation", "groups")
        return {name: getattr(attrs, name) for name in names}
    if isinstance(attrs, at.PooledConvAttrs):
        return {"low": attrs.low, "high": attrs.high, "pool": attrs.window, "middle": attrs.middle}
    assert isinstance(attrs, at.PoolAttrs | at.PoolGradAttrs)
    return {"stride": attrs.stride, "low": attrs.low, "high": attrs.high, "pool": attrs.window}


def window_attrs(window: Window, result_shape: Shape) -> at.Attrs:
    """The attributes of the op that a window kernel computes, given the shape of its result."""
    w = window
    if w.op in POOLS or w.op == "max_pool2d_pick":
        return at.PoolAttrs(w.pool, w.stride, w.low, w.high, True)
    size: tuple[int, ...] = tuple(result_shape[-3:-1])  # type: ignore[arg-type]
    if w.op == "conv2d":
        return at.ConvAttrs(w.stride, w.low, w.high, w.dilation, w.groups, True)
    if w.op == "max_pool2d_grad":
        return at.PoolGradAttrs(w.pool, w.stride, w.low, w.high, True, size)
    if w.op in ("pooled_grad_weight", "pooled_grad_input"):
        parts = result_shape[0] if w.op == "pooled_grad_weight" else 1
        return at.PooledConvAttrs(w.low, w.high, w.pool, w.middle, size, parts)
    return at.ConvGradAttrs(w.stride, w.low, w.high, w.dilation, w.groups, True, size)


def count_output_axes(window: Window) -> int:
    """The number of axes of a window kernel that belong to its result."""
    if window.pooled is not None:
        return 6  # four axes of the result and two of the pool's window
    return 5 if window.op == "pooled_grad_weight" else 4


def operand_axes(op: str, result_rank: int) -> list[tuple[int, ...]]:
    """The axes of each operand, numbered after the axes of the result.

    Images share the kernel's first axis, except in the gradient of a weight, which sums over all images.  A weight has
    axes of its own only.
    """
    axes, first = [], result_rank
    for name in OPERANDS[op]:
        by_image = op not in WEIGHTS and name != "weight"
        rest = range(first, first + (3 if by_image else 4))
        axes.append((0, *rest) if by_image else tuple(rest))
        first = rest.stop
    return axes
