"""Tensor parallelism along the model axis, by sharding propagation (GSPMD, arXiv:2105.04663).

Every value is replicated, sharded along an axis, or a partial sum.  Marked states are sharded; the placements of all
other values follow node by node, gradients and updates included.  If an op needs another placement, the value is
resharded: `all_reduce` of a partial sum, `all_gather` of shards, or a local slice of a replicated value.  Invariant: an
op without a rule is computed from replicated inputs, so every marking gives the right result; a bad one costs bytes.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.state_partition import AxisSplit


def split(graph: IRGraph) -> IRGraph:
    """The step of one rank of the model axis, over its shards of the marked states; unchanged if none is marked."""
    states = [attrs_of(n, at.StateAttrs) for n in graph.nodes if n.is_state]
    cuts = [AxisSplit.of(a.split) for a in states if a.split]
    if not cuts:
        return graph
    from wholestep.compiler.passes.distribute.tensor_parallel.propagate import ShardingPropagation
    from wholestep.compiler.passes.distribute.tensor_parallel.rules import rule_of  # imported here: few steps use it

    if any(cut.widths for cut in cuts):
        from wholestep.compiler.passes.distribute.tensor_parallel.slice_gradients import padded_sums_to_concats

        graph = padded_sums_to_concats(graph)
    (ranks,) = {cut.ranks for cut in cuts}
    return ShardingPropagation(rule_of, ranks).partition(graph)
