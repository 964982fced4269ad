"""Lowering of `write_rows` (dynamic update slice): in place if nothing else reads the state, else into a copy.

In place, a kernel stores the new rows alone: a metric that collects the scores of an epoch costs time in proportion to
the batch, not to the epoch.
"""

from __future__ import annotations

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, leaf_name, rewrite
from wholestep.compiler.ir.types import TensorType, boolean, int64


def lower_dynamic_update_slices(graph: IRGraph) -> IRGraph:
    """Keep `write_rows` if it updates a state that nothing else reads; decompose it otherwise."""
    if not any(n.op == "write_rows" for n in graph.nodes):
        return graph
    in_place = _in_place_states(graph)

    def rule(node: Node) -> Node:
        if node.op != "write_rows" or _state_name(node.inputs[0]) in in_place:
            return node
        with b.origin(node):
            return select_rows(node)

    return rewrite(graph, rule)


def _state_name(node: Node) -> str | None:
    return leaf_name(node) if node.is_state else None


def _in_place_states(graph: IRGraph) -> set[str]:
    """The states that a `write_rows` updates and that nothing else reads or returns."""
    readers = graph.consumers()
    outputs = {o.node for o in graph.outputs}
    updates = [u.node for u in graph.updates]
    names: set[str] = set()
    for update in graph.updates:
        node = update.node
        if node.op != "write_rows" or readers[node] or node in outputs or updates.count(node) > 1:
            continue
        leaves = [n for n in graph.nodes if _state_name(n) == update.name]
        is_only_reader = all(readers[leaf] == [node] and leaf not in outputs and leaf not in updates for leaf in leaves)
        if is_only_reader and leaves == [node.inputs[0]] and leaves[0] not in node.inputs[1:]:
            names.add(update.name)
    return names


# where(0 <= i - start < n, rows[i - start], x) in row i
def select_rows(node: Node) -> Node:
    """Out of place: a pass over all rows that selects between new and old rows."""
    x, rows, start = node.inputs
    length, count = x.type.shape[0], b.count(rows.type.shape[0], int64)
    index_type = TensorType((length,), int64)
    offset = b.sub(b.iota((length,), 0, int64), b.expand_to(b.cast(start, int64), (length,), ()))
    is_new = b.make(
        "logical_and",
        (b.make("less_equal", (b.full(0, index_type), offset)), b.less(offset, b.expand_to(count, (length,), ()))),
    )
    assert is_new.type.dtype == boolean
    return b.where(b.expand_to(is_new, x.type.shape, (0,)), b.gather(rows, offset, 0), x)
