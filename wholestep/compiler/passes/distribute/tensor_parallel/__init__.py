"""Layers divided among ranks: the step of one rank of the model axis, made out of the whole one.

A value is held as a whole, as a part along an axis, or as a term of a sum over ranks.  A state that is marked is held
as a part; what follows from it is found node by node, gradients and updates included, which are nodes as others are.
Where a value is needed otherwise than it is held, its terms are summed (`all_reduce`), its parts put together
(`all_gather`), or a part is cut out of what a rank has.  What no rule is for is computed of whole values: always right.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.state_partition import Cut


def split(graph: IRGraph) -> IRGraph:
    """The step of a rank that has its part of the states which are marked; a graph without them as it is."""
    states = [attrs_of(n, at.StateAttrs) for n in graph.nodes if n.is_state]
    cuts = [Cut.of(a.split) for a in states if a.split]
    if not cuts:
        return graph
    from wholestep.compiler.passes.distribute.tensor_parallel.propagate import ShardingPropagation
    from wholestep.compiler.passes.distribute.tensor_parallel.rules import rule_of  # few steps are divided so

    if any(cut.widths for cut in cuts):
        from wholestep.compiler.passes.distribute.tensor_parallel.slice_gradients import put_side_by_side

        graph = put_side_by_side(graph)
    (ranks,) = {cut.ranks for cut in cuts}
    return ShardingPropagation(rule_of, ranks).on_a_rank(graph)
