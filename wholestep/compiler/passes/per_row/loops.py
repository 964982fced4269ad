"""Contributions of rows to an op that has no rule: a `scan` that computes the op for one row at a time.

For an op that sums over the batch, an iteration computes it from one row of its operands; for a linear op over such a
sum, from the contribution of one row.  The stacked results are explicit contributions.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import Extent, TensorType


def map_over_rows(node: Node, operands: Sequence[Node], has_rows: Sequence[bool], batch: Extent) -> Node:
    """(batch, ...): iteration i computes the node from row i of its row-wise operands and from all of the others."""
    sequences = [i for i, each in enumerate(has_rows) if each]
    order = [*sequences, *(i for i, each in enumerate(has_rows) if not each)]
    parameters = {i: _parameter(i, operands[i].type, is_sliced=has_rows[i]) for i in order}
    result = node.with_inputs([parameters[i] for i in range(len(operands))])
    body = IRGraph((Output("row", result),), (), tuple(parameters.values()))
    attrs = at.ScanAttrs(body, 0, len(sequences), batch, reverse=False)
    (rows,) = b.results("scan", [operands[i] for i in order], attrs)
    return rows


def _parameter(index: int, type: TensorType, *, is_sliced: bool) -> Node:
    one = TensorType(type.shape[1:], type.dtype) if is_sliced else type
    return Node("input", (), at.InputAttrs(f"operand{index}", one))
