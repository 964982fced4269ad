"""Tensor parallelism along the model axis, by sharding propagation (GSPMD, arXiv:2105.04663).

Marked states are sharded; the placements of all other values follow node by node (`placement/`), gradients and updates
included.  If an op needs another placement, the value is resharded: `all_reduce` of a partial sum, `all_gather` of
shards, or a local slice of a replicated value.  Invariant: an op that takes no sharded operands (`operands.py`) is
computed from replicated ones, so every marking gives the right result; a bad one costs bytes.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.state_partition import AxisSplit


def split(graph: IRGraph) -> IRGraph:
    """The step of one rank of the model axis, over its shards of the marked states; unchanged if none is marked."""
    states = [attrs_of(n, at.StateAttrs) for n in graph.nodes if n.is_state]
    cuts = [AxisSplit.of(a.split) for a in states if a.split]
    if not cuts:
        return graph
    from wholestep.compiler.passes.distribute.tensor_parallel.propagate import ShardingPropagation  # few steps use it

    if any(cut.widths for cut in cuts):
        graph = rewrite(graph, _concat_of_slice_gradients)
    (ranks,) = {cut.ranks for cut in cuts}
    return ShardingPropagation(ranks).partition(graph)


def _concat_of_slice_gradients(node: Node) -> Node:
    """A sum of zero-padded tensors that tile an axis, the gradient of slices, as their concatenation.

    Needed for blocks of unequal widths (grouped-query attention: queries next to fewer keys and values in one matrix):
    the zeros of a pad carry no block widths, so sharding could not be propagated through the sum.
    """
    from wholestep.compiler.passes.simplify.pad_sum_to_concat import concat_of_pads

    if node.op != "add":
        return node
    with b.origin(node):
        return concat_of_pads(_terms(node)) or node


def _terms(node: Node) -> list[Node]:
    return [term for i in node.inputs for term in _terms(i)] if node.op == "add" else [node]
