"""Lowers a convolution, pool or adjoint to a window kernel: operands, geometry, and the epilogue of each pixel.

Each operand has axes of its own; the backend derives which of its pixels a window covers from the geometry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.type_rules.convolution import multiply_adds
from wholestep.compiler.ir.types import DType, Extent, evaluate
from wholestep.compiler.plan.fusion.clusters import Cluster
from wholestep.compiler.plan.lower.convolution_ops import OPERANDS, POOLED, POOLS, WEIGHTS, geometry, operand_axes
from wholestep.compiler.plan.lower.materialize import half_copy_under
from wholestep.compiler.plan.lower.nest_builder import NestBuilder
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.model.access import identity, resolve
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Index, Instr, Kernel, Kind, Level, Load, Operand, Store


def emit_window(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    head = cluster.nodes[0]
    assert getattr(head.attrs, "last", True), f"channels_last() must run before planning: {head.op}"
    if head.op in WEIGHTS:
        (target,) = buffers.targets(cluster.nodes[-1])  # a gradient that is rounded is stored in its rounded form only
        result = Operand("result", target, tuple(range(head.type.rank)))
        return _kernel(id, head, buffers, head.type.shape, {"results": (result,)})
    if head.op in POOLED and any(n.op in POOLS for n in cluster.nodes):
        return _emit_pooled(id, cluster, buffers)
    epilogue = _epilogue(cluster, cluster.nodes, [n for n in cluster.nodes if n is head or n.op in POOLS], buffers)
    return _kernel(id, head, buffers, head.type.shape, {"levels": epilogue.levels()})


def _kernel(id: int, head: Node, buffers: Buffers, axes: Sequence[Extent], fields: Mapping[str, object]) -> Kernel:
    """The kernel over the result's `axes`; `fields` of the body are not determined by the op's attributes."""
    all_axes, operands = [*axes], []
    input_axes_list = operand_axes(head.op, len(axes))
    for name, node, input_axes in zip(OPERANDS[head.op], head.inputs, input_axes_list, strict=True):
        all_axes += node.type.shape[-len([a for a in input_axes if a >= len(axes)]) :]
        access, half = resolve(node, tuple(Index.axis(a) for a in input_axes)), half_copy_under(node)
        buffer = buffers.of(access.base) if half is None else buffers.half(access.base, half.type.dtype)
        operands.append(Operand(name, Load(buffer, access.shape, access.index), input_axes))
    work = flops_of_op(head, buffers.sizes)
    body = Window(head.op, tuple(operands), work=work, **(geometry(head.attrs) | dict(fields)))  # type: ignore[arg-type]
    return Kernel(id, tuple(all_axes), body)


def flops_of_op(head: Node, sizes: Mapping[str, int]) -> int:
    """The multiplications and additions of a convolution or an adjoint; the comparisons of a pool."""
    products = multiply_adds(head.op, tuple(i.type for i in head.inputs), head.type, True)
    return evaluate(products * (1 if head.op.startswith("max_pool2d") else 2), sizes)


def _emit_pooled(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    """A convolution fused with the pool after it: the pooled values are never stored."""
    head = cluster.nodes[0]
    pools = [n for n in cluster.nodes if n.op in POOLS]
    size, shape = attrs_of(pools[0], at.PoolAttrs).window, pools[0].type.shape
    before = [n for n in cluster.nodes if n.type.shape == head.type.shape]
    after = [n for n in cluster.nodes if n not in before]
    full = Cluster(Kind.WINDOW, head.type.shape[:-1], head.type.shape[-1], before)
    first = _epilogue(full, before, [head], buffers)
    value = first.body_values[0][resolve(pools[0].inputs[0], identity(4)).base]
    first.drafts[0].stores.append(
        Store(Load(-1, (), ()), value)
    )  # a placeholder, so that the value which the pool reads is not dropped as unused
    (level,) = first.levels()
    second = _epilogue(cluster, after, pools, buffers, first.count)
    levels = (_over_pool_axes(level, size), *second.levels())
    fields = {"levels": levels, "pool": size, "middle": head.type.shape[1:3], "pooled": value}
    return _kernel(id, head, buffers, (*shape, *size), fields)


def _epilogue(
    cluster: Cluster, nodes: Sequence[Node], heads: Sequence[Node], buffers: Buffers, start: int = 0
) -> NestBuilder:
    """The epilogue: the ops computed for each pixel of the result; ids begin at `start`."""
    builder = NestBuilder(cluster, buffers, 3)
    builder.count = start
    for head in heads:
        op = "position" if head.op == "max_pool2d_index" else "acc"
        builder.add(0, False, head, partial(_source, op, head.type.dtype))
        builder.level_of[head] = 0
        for load in buffers.targets(head):
            builder.store(0, head, load)
    for node in nodes:
        if node not in heads:
            builder.place(node)
    return builder


def _source(op: str, dtype: DType, id: int) -> Instr:
    return Instr(id, op, dtype)


def _over_pool_axes(level: Level, window: Sequence[int]) -> Level:
    """A level over image rows and columns, over the pool's axes: row = pooled row * window + row in the window."""

    def index(i: Index) -> Index:
        terms: list[tuple[int, Extent]] = []
        for axis, c in i.terms:
            terms += [(axis, c * window[axis - 1]), (axis + 3, c)] if axis in (1, 2) else [(axis, c)]
        return replace(i, terms=tuple(terms))

    body = tuple(
        replace(
            i,
            load=None if i.load is None else replace(i.load, index=tuple(index(x) for x in i.load.index)),
            guards=tuple(replace(g, index=index(g.index)) for g in i.guards),
            index=None if i.index is None else index(i.index),
        )
        for i in level.body
    )
    assert len(level.stores) == 1, "values before a pool in its kernel are read in that kernel only"
    return replace(level, body=body, stores=())
