"""Lowers a collective (all-reduce, all-gather ...) to one kernel over several contiguous tensors."""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.plan.fusion.clusters import Cluster
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.model.bodies import Exchange
from wholestep.compiler.plan.model.kernel import Index, Kernel, Load


def emit_exchange(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    """Axis i runs over the elements of operand i; the axes after these run over the elements of the results."""
    node = cluster.nodes[0]
    items = {attrs_of(n, at.ItemAttrs).index: n for n in cluster.nodes if n.op == "item"}
    assert len(items) == len(node.inputs), "every result of a collective has a reader"
    input_sizes = [i.type.elements for i in node.inputs]
    result_sizes = [items[i].type.elements for i in range(len(items))]
    operands = [
        Load(buffers.of(x), (n,), (Index.axis(i),))
        for i, (x, n) in enumerate(zip(node.inputs, input_sizes, strict=True))
    ]
    results = []
    for i, count in enumerate(result_sizes):
        (target,) = buffers.targets(items[i])
        results.append(Load(target.buffer, (count,), (Index.axis(len(input_sizes) + i),)))
    a = attrs_of(node, at.ExchangeAttrs)
    body = Exchange(a.kind, node.inputs[0].type.dtype, tuple(operands), tuple(results), a.axis)
    return Kernel(id, (*input_sizes, *result_sizes), body)
