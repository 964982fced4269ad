"""Gathers by constant indices are computed in the kernel of the sum that reads them (`lower/sparse_resampling.py`).

A gather is a kernel of its own unless its reader computes it; a weighted sum of gathered rows is then one kernel that
reads each row where it needs it.  It runs after the layout is chosen, since a rebuilt node loses the mark.
"""

from __future__ import annotations

from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.passes.rematerialize.copies import Rematerialized


def gather_in_readers(graph: IRGraph) -> IRGraph:
    """Marks gathers by constant indices, with their factors, for the kernel of the sum that reads them.

    A rounded value is gathered before it is widened, so that no widened copy is stored.
    """
    readers, roots = graph.consumers(), set(graph.roots)
    new: dict[Node, Node] = {}
    marked: set[Node] = set()
    for node in graph.nodes:
        inputs = [new[i] for i in node.inputs]
        follows = node.op in ("cast", "mul") and any(i in marked for i in node.inputs)
        alone = node not in roots and len(readers[node]) == 1 and readers[node][0].is_elementwise
        if not (alone and (_is_tap(node) or follows)):
            new[node] = node.with_inputs(inputs)
            continue
        marked.add(node)
        data = inputs[0]
        if node.op == "gather" and data.op == "cast" and data.inputs[0].type.dtype.is_half:
            half = Rematerialized("gather", (data.inputs[0], inputs[1]), node.attrs, "", node.line)
            new[node] = Rematerialized("cast", (half,), data.attrs, "", node.line)
        else:
            new[node] = Rematerialized.of(node, inputs)
    return graph.with_nodes(new) if marked else graph


def _is_tap(node: Node) -> bool:
    """Is the node a gather by a constant vector of indices?"""
    return node.op == "gather" and node.inputs[1].op == "constant" and node.inputs[1].type.rank == 1
