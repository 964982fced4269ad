"""The gradient of rows written into a tensor."""

from __future__ import annotations

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import TensorType, int64
from wholestep.compiler.passes.autodiff.pointwise import Gradients


# y = x but for rows start ... start+n-1, which are r:  dx = g with zeros there;  dr = those of g, 0 where r was dropped
def write_rows_rule(y: Node, g: Node) -> Gradients:
    x, rows, start = y.inputs
    count = rows.type.shape[0]
    along = TensorType((count,), int64)
    place = b.add(b.iota((count,), 0, int64), b.expand_to(b.cast(start, int64), (count,), ()))
    length = b.expand_to(b.count(x.type.shape[0], int64), (count,), ())
    inside = b.make("logical_and", (b.make("less_equal", (b.full(0, along), place)), b.less(place, length)))
    zeros = b.zeros_like(rows)
    return (
        b.write_rows(g, zeros, start),
        b.where(b.expand_to(inside, rows.type.shape, (0,)), b.gather(g, place, 0), zeros),
        None,
    )
