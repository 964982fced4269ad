"""Rows written into a state: in place where nobody else reads the state, otherwise into a copy of it.

In place, a kernel stores the rows and touches nothing else of the state, however long that is: a metric that keeps the
scores of an epoch costs as much as the batch is long.
"""

from __future__ import annotations

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.types import TensorType, boolean, int64


def lower_row_writes(graph: IRGraph) -> IRGraph:
    """Leave `write_rows` where it is the update of a state that it alone reads; decompose it elsewhere."""
    if not any(n.op == "write_rows" for n in graph.nodes):
        return graph
    kept = _in_place_states(graph)

    def rule(node: Node) -> Node:
        if node.op != "write_rows" or _state_name(node.inputs[0]) in kept:
            return node
        with b.origin(node):
            return written(node)

    return rewrite(graph, rule)


def _state_name(node: Node) -> str | None:
    return node.attrs.name if node.is_state else None  # type: ignore[attr-defined]


def _in_place_states(graph: IRGraph) -> set[str]:
    """The states that a write of rows updates, and that nothing else reads or gives."""
    readers = graph.consumers()
    outputs = {o.node for o in graph.outputs}
    updates = [u.node for u in graph.updates]
    found: set[str] = set()
    for update in graph.updates:
        node = update.node
        if node.op != "write_rows" or readers[node] or node in outputs or updates.count(node) > 1:
            continue
        leaves = [n for n in graph.nodes if _state_name(n) == update.name]
        alone = all(readers[leaf] == [node] and leaf not in outputs and leaf not in updates for leaf in leaves)
        if alone and leaves == [node.inputs[0]] and leaves[0] not in node.inputs[1:]:
            found.add(update.name)
    return found


# where(0 <= i - start < n, rows[i - start], x) in row i
def written(node: Node) -> Node:
    """The same as a pass over all rows."""
    x, rows, start = node.inputs
    length, count = x.type.shape[0], b.count(rows.type.shape[0], int64)
    along = TensorType((length,), int64)
    place = b.sub(b.iota((length,), 0, int64), b.expand_to(b.cast(start, int64), (length,), ()))
    mine = b.make(
        "logical_and",
        (b.make("less_equal", (b.full(0, along), place)), b.less(place, b.expand_to(count, (length,), ()))),
    )
    assert mine.type.dtype == boolean
    return b.where(b.expand_to(mine, x.type.shape, (0,)), b.gather(rows, place, 0), x)
