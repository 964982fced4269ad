"""The gradient rule of `write_rows` (dynamic update slice)."""

from __future__ import annotations

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import TensorType, int64
from wholestep.compiler.passes.autodiff.pointwise import Gradients


# y = x with rows start ... start+n-1 replaced by r:  dx = g with zeros there;  dr = those rows of g, 0 if out of range
def write_rows_rule(y: Node, g: Node) -> Gradients:
    x, rows, start = y.inputs
    count = rows.type.shape[0]
    index_type = TensorType((count,), int64)
    index = b.add(b.iota((count,), 0, int64), b.expand_to(b.cast(start, int64), (count,), ()))
    length = b.expand_to(b.count(x.type.shape[0], int64), (count,), ())
    inside = b.make("logical_and", (b.make("less_equal", (b.full(0, index_type), index)), b.less(index, length)))
    zeros = b.zeros_like(rows)
    return (
        b.write_rows(g, zeros, start),
        b.where(b.expand_to(inside, rows.type.shape, (0,)), b.gather(g, index, 0), zeros),
        None,
    )
