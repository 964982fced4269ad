"""Lowers a cluster to a kernel: one function per kind of kernel, or per routine of a call (see routine_ops.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.plan.fusion.clusters import Cluster, reduced_axis
from wholestep.compiler.plan.lower.attention import emit_attention, emit_attention_grad
from wholestep.compiler.plan.lower.convolution import emit_window
from wholestep.compiler.plan.lower.nest_builder import NestBuilder
from wholestep.compiler.plan.lower.rewrite_loads import renumber_level
from wholestep.compiler.plan.lower.routine_ops import ROUTINES
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.model.access import identity, resolve
from wholestep.compiler.plan.model.bodies import Columns, Dot, Exchange, Nest, Scatter
from wholestep.compiler.plan.model.kernel import Index, Instr, Kernel, Kind, Load, Reduce


def emit_nest(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    rank = len(cluster.rows)
    vector = None if cluster.vector is None else rank
    builder = NestBuilder(cluster, buffers, vector)
    for node in cluster.nodes:
        builder.place(node)
    return Kernel(id, cluster.shape, Nest(tuple(range(rank)), vector, builder.levels()))


def emit_columns(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    """Level 0 accumulates all sums of the cluster in one loop; level 1 is the epilogue."""
    heads = cluster.heads
    first, rank = heads[0], heads[0].type.rank
    builder = NestBuilder(cluster, buffers, rank - 1)
    axis, (source,) = reduced_axis(first), first.inputs
    indices = [Index.axis(d) for d in range(rank)]
    indices.insert(axis, Index.axis(rank))
    builder.grow(1)
    for head in heads:
        value = builder.summand(resolve(head.inputs[0], tuple(indices)))
        result = builder.count
        builder.count += 1
        builder.drafts[0].reduces.append(Reduce(result, head.op, value, head.type.dtype))
        builder.body_values[1][head] = result
        builder.level_of[head] = 0
        for load in buffers.targets(head):
            builder.store(1, head, load)
    for node in cluster.nodes:
        if node not in heads:
            builder.place(node)
    axes = (*cluster.shape, source.type.shape[axis])
    body = Columns(tuple(range(rank - 1)), rank - 1, rank, builder.levels())
    return Kernel(id, axes, body)


def _dot_operand(node: Node, axes: list[int], transposed: bool, buffers: Buffers) -> Load:
    if transposed:
        axes = [*axes[:-2], axes[-1], axes[-2]]
    access, dtype = resolve(node, tuple(Index.axis(a) for a in axes)), node.type.dtype
    same = dtype == access.base.type.dtype
    buffer = buffers.of(access.base) if same else buffers.half(access.base, dtype)
    return Load(buffer, access.shape, access.index)


def emit_dot(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    head, *rest = cluster.nodes
    attrs, rank = head.attrs, head.type.rank
    assert isinstance(attrs, at.MatmulAttrs)
    batch, m, n, k = list(range(rank - 2)), rank - 2, rank - 1, rank
    a = _dot_operand(head.inputs[0], [*batch, m, k], attrs.transpose_a, buffers)
    b = _dot_operand(head.inputs[1], [*batch, k, n], attrs.transpose_b, buffers)
    builder = NestBuilder(cluster, buffers, n)
    builder.add(0, False, head, lambda i: Instr(i, "acc", head.type.dtype))
    builder.level_of[head] = 0
    for load in buffers.targets(head):
        builder.store(0, head, load)
    for node in rest:
        builder.place(node)
    depth = head.inputs[0].type.shape[rank - 2 if attrs.transpose_a else rank - 1]
    levels = builder.levels()
    if cluster.sums is not None:  # the sums have axes (n, k), the product (m, n, k): renumber by 1
        levels += tuple(
            renumber_level(level, 1, builder.count) for level in emit_columns(id, cluster.sums, buffers).levels
        )
    return Kernel(id, (*head.type.shape, depth), Dot(a, b, tuple(batch), m, n, k, levels))


def emit_scatter(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    (node,) = cluster.nodes
    updates, index = node.inputs
    axis = node.attrs.axis  # type: ignore[attr-defined]
    # The kernel iterates over the axes of the updates.
    indices = identity(updates.type.rank)
    over = tuple(range(axis, axis + index.type.rank))
    (target,) = buffers.targets(node)
    at_target = (*indices[:axis], Index(), *indices[axis + index.type.rank :])
    scatter = Scatter(
        Load(target.buffer, target.shape, at_target),
        Load(buffers.of(updates), updates.type.shape, indices),
        Load(buffers.of(index), index.type.shape, tuple(indices[a] for a in over)),
        over,
        axis,
    )
    return Kernel(id, updates.type.shape, scatter)


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


EMIT_CALL: Mapping[str, Callable[[int, Cluster, Buffers], Kernel]] = {
    "attention": emit_attention,
    "attention_grad": emit_attention_grad,
    "exchange": emit_exchange,
}


def emit_call(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    return EMIT_CALL[ROUTINES[cluster.nodes[0].op]](id, cluster, buffers)


EMIT: dict[Kind, Callable[[int, Cluster, Buffers], Kernel]] = {
    Kind.NEST: emit_nest,
    Kind.COLUMNS: emit_columns,
    Kind.DOT: emit_dot,
    Kind.SCATTER: emit_scatter,
    Kind.CALL: emit_call,
    Kind.WINDOW: emit_window,
}
