"""The loss of each row of a batch: the row's part of the numerator, divided by its part of the denominator."""

from __future__ import annotations

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import Dim
from wholestep.compiler.passes.distribute.placement.placements import Partial
from wholestep.compiler.passes.per_row import terms as t
from wholestep.compiler.passes.per_row.contributions import Contributions
from wholestep.errors import GraphError


def row_losses(loss: Node, rows: Contributions, batch: str) -> Node:
    """The loss of each row, (batch,); 0 for a row of weight 0.  Terms independent of the rows are left out."""
    value = _row_losses(loss, rows, batch)
    if value is None:
        raise GraphError("per_row: the loss does not depend on the rows of the batch.")
    return value


def unaffected_terms(node: Node, rows: Contributions) -> Node | None:
    """The terms of a loss that `row_losses` leaves out, such as a weight penalty; None if there are none."""
    if not rows.is_affected(node):
        return node
    if node.op == "cast" and (part := unaffected_terms(node.inputs[0], rows)) is not None:
        return node.with_inputs([part])
    if node.op == "add":
        parts = [part for x in node.inputs if (part := unaffected_terms(x, rows)) is not None]
        return b.add(*parts) if len(parts) == 2 else parts[0] if parts else None
    if node.op == "mul":
        for x, factor in (node.inputs, node.inputs[::-1]):
            if factor.host and (part := unaffected_terms(x, rows)) is not None:
                return b.mul(part, factor)
    return None


def _row_losses(node: Node, rows: Contributions, batch: str) -> Node | None:
    if not rows.is_affected(node):
        return None
    if node.op in ops_with(Trait.QUOTIENT) and rows.placement(node.inputs[0]) == Partial():
        return _quotient(node, rows, batch)
    if node.op == "cast":
        return _row_losses(node.inputs[0], rows, batch)
    if node.op == "add":
        parts = [part for x in node.inputs if (part := _row_losses(x, rows, batch)) is not None]
        return b.add(*parts) if len(parts) == 2 else parts[0] if parts else None
    if node.op == "mul":
        for x, factor in (node.inputs, node.inputs[::-1]):
            if factor.host and (part := _row_losses(x, rows, batch)) is not None:
                return b.mul(part, b.expand_to(b.cast(factor, part.type.dtype), part.type.shape, ()))
    if rows.placement(node) == Partial():
        return _sum(node, rows)
    line = "" if node.line is None else node.line.error_note
    raise GraphError(
        f"per_row: a loss is a weighted sum of means or sums over the rows; this one ends in `{node.op}`. Train with a "
        f"mean, or leave 'loss' out of per_row=.{line}"
    )


def _quotient(node: Node, rows: Contributions, batch: str) -> Node:
    above, divisor = _sum(node.inputs[0], rows), node.inputs[1]
    if rows.placement(divisor) == Partial():
        below = b.cast(_sum(divisor, rows), above.type.dtype)
    else:  # elements, divided evenly among the rows
        each = b.div(b.cast(divisor, above.type.dtype), b.count(Dim.symbol(batch), above.type.dtype))
        below = b.expand_to(each, above.type.shape, ())
    empty = b.equal(below, b.zeros_like(below))
    return b.where(empty, b.zeros_like(above), b.div(above, b.where(empty, b.full_like(below, 1), below)))


def _sum(node: Node, rows: Contributions) -> Node:
    """The contributions of the rows to a scalar sum: (batch,)."""
    return t.total([t.explicit(term) for term in rows.terms(node)])
