"""Collectives as kernels: tensors that ranks exchange at once, each from end to end."""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.plan.fusion.clusters import Cluster
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.model.bodies import Exchange
from wholestep.compiler.plan.model.kernel import Index, Kernel, Load


def emit_exchange(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    """Axis i runs along the elements of operand i, as many axes behind them along those of the results."""
    node = cluster.nodes[0]
    items = {attrs_of(n, at.ItemAttrs).index: n for n in cluster.nodes if n.op == "item"}
    assert len(items) == len(node.inputs), "whoever exchanges a tensor reads it"
    given = [i.type.elements for i in node.inputs]
    made = [items[i].type.elements for i in range(len(items))]
    operands = [
        Load(buffers.of(x), (n,), (Index.axis(i),)) for i, (x, n) in enumerate(zip(node.inputs, given, strict=True))
    ]
    results = []
    for i, count in enumerate(made):
        (target,) = buffers.targets(items[i])
        results.append(Load(target.buffer, (count,), (Index.axis(len(given) + i),)))
    a = attrs_of(node, at.ExchangeAttrs)
    body = Exchange(a.kind, node.inputs[0].type.dtype, tuple(operands), tuple(results), a.axis)
    return Kernel(id, (*given, *made), body)
