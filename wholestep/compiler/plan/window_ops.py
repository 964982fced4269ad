"""Which ops are window kernels, and which pools may stand in the kernel of what they pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.windows import SMALL_WINDOW

WINDOWS = frozenset(name for name, op in OPS.items() if op.family is Family.WINDOW)
WEIGHTS = frozenset({"conv2d_grad_weight", "pooled_grad_weight"})  # no epilogue: they add up over all images
KERNELS = {"conv2d": 1, "conv2d_grad_input": 1, "pooled_grad_input": 2}  # op -> which input is a weight, not images
POOLS = frozenset({"max_pool2d", "max_pool2d_index"})  # both are results of one pass over the windows
POOLED = frozenset({"conv2d"})  # what a pool may follow in one kernel


def pool_of(node: Node) -> object | None:
    """What the value and the position of one pool have in common; None for other ops."""
    return ("max_pool2d", node.inputs, node.attrs) if node.op in POOLS else None


def tiles(pool: Node) -> bool:
    """Do the windows of a pool, of several pixels each, lie side by side, and is no pixel outside of its input?"""
    a = pool.attrs
    assert isinstance(a, at.PoolAttrs)
    several = 1 < a.window[0] * a.window[1] <= SMALL_WINDOW
    return a.last and a.window == a.stride and max(*a.low, *a.high) == 0 and several


def stays_inside(nodes: Sequence[Node], pool: Node, readers: Mapping[Node, Sequence[Node]], roots: set[Node]) -> bool:
    """Is everything that stands before a pool in its kernel read by that kernel alone?"""
    inside, key = set(nodes), pool_of(pool)
    return all(n not in roots and all(r in inside or pool_of(r) == key for r in readers[n]) for n in nodes)
