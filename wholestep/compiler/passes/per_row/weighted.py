"""Gradients with a weight for every row, such as a clipping factor, without a second backward pass.

A gradient is a linear function of sums over rows, and each of these sums is computed again with the weights multiplied
into one operand: Σᵢ cᵢ·aᵢ⊗δᵢ is the product of a and c·δ, where a and δ come from the only backward pass (book-keeping,
arXiv:2210.00038).
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Dim, divide
from wholestep.compiler.passes.distribute.placement.placements import Partial, Replicated, Sharded
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS
from wholestep.compiler.passes.per_row.contributions import Contributions
from wholestep.compiler.passes.per_row.terms import static_size


class WeightedSums:
    """Sums over the rows of a batch with a weight for each row, (batch,)."""

    def __init__(self, rows: Contributions, weights: Node, batch: str) -> None:
        self._rows, self._weights, self._batch = rows, weights, batch
        self._new: dict[Node, Node] = {}

    def of(self, node: Node) -> Node:
        """A gradient, or another linear function of sums over rows, with the weights."""
        if node not in self._new:
            with b.origin(node):
                self._new[node] = self._with_weights(node)
        return self._new[node]

    def _with_weights(self, node: Node) -> Node:
        rows = self._rows
        if rows.placement(node) == Replicated():
            return node
        if node.op == "item":
            return self.of(rows.parts_of(node.inputs[0])[attrs_of(node, at.ItemAttrs).index])
        if node in rows.explicit:
            values = rows.explicit[node]
            factors = b.cast(b.expand_to(self._weights, values.type.shape, (0,)), values.type.dtype)
            return b.cast(b.sum_axes(b.mul(values, factors), (0,)), node.type.dtype)
        if node.op in DECOMPOSITIONS:
            return self.of(rows.parts_of(node)[0])
        if rows.placement(node) != Partial():
            rows.refuse(node)
        placements = [rows.placement(i) for i in node.inputs]
        if Partial() in placements:
            linear = zip(node.inputs, placements, strict=True)
            return node.with_inputs([self.of(i) if p == Partial() else i for i, p in linear])
        sharded = [i for i, p in enumerate(placements) if isinstance(p, Sharded) and _is_float(node.inputs[i])]
        which = min(sharded, key=lambda i: (static_size(node.inputs[i].type.shape), -i))
        return node.with_inputs([self._scale(x) if i == which else x for i, x in enumerate(node.inputs)])

    def _scale(self, x: Node) -> Node:
        """A row-wise value with every row times its weight."""
        placement, shape = self._rows.placement(x), x.type.shape
        assert isinstance(placement, Sharded)
        batch = Dim.symbol(self._batch)
        blocks = divide(shape[placement.axis], placement.outer * batch)
        assert blocks is not None, f"{x!r} has no whole number of rows"
        split = (placement.outer, batch, blocks)
        along = b.reshape(b.expand_to(self._weights, split, (1,)), (shape[placement.axis],))
        return b.mul(x, b.cast(b.expand_to(along, shape, (placement.axis,)), x.type.dtype))


def _is_float(x: Node) -> bool:
    return x.type.dtype.is_float
