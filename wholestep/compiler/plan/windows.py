"""Cluster -> window kernel: operands, workspace, and the epilogue of every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, Extent
from wholestep.compiler.ir.windows import index_dtype
from wholestep.compiler.plan import winograd
from wholestep.compiler.plan.access import identity, resolve
from wholestep.compiler.plan.buffers import Buffers
from wholestep.compiler.plan.emitter import Emitter
from wholestep.compiler.plan.frames import (
    SLACK,
    backward_taps,
    columns_of,
    forward_margin,
    panel_columns,
    reads_past,
    rounded,
)
from wholestep.compiler.plan.fuse import Cluster
from wholestep.compiler.plan.kernel import Index, Instr, Kernel, Kind, Level, Load, Store
from wholestep.compiler.plan.scheduled import Tiles
from wholestep.compiler.plan.window_draft import Draft, area
from wholestep.compiler.plan.window_ops import POOLED, POOLS, WEIGHTS
from wholestep.compiler.plan.window_weights import emit_weight

VECTOR_BYTES = 32  # of the kernels that go through a pool, on every target


def emit_window(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    head = cluster.nodes[0]
    assert getattr(head.attrs, "last", True), f"channels_last() comes before planning: {head.op}"
    return emit_weight(id, head, buffers) if head.op in WEIGHTS else _emit_images(id, cluster, buffers)


def _emit_images(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    head = cluster.nodes[0]
    if head.op in POOLED and any(n.op in POOLS for n in cluster.nodes):
        return _emit_pooled(id, cluster, buffers)
    draft = Draft(head, buffers, head.type.shape)
    tiles = FRAMES[head.op](draft)
    emitter = _epilogue(cluster, cluster.nodes, [n for n in cluster.nodes if n is head or n.op in POOLS], buffers)
    return draft.kernel(id, tiles, levels=emitter.levels())


def _emit_pooled(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    """A convolution and the pool behind it: what is pooled never leaves the workspace."""
    head = cluster.nodes[0]
    pools = [n for n in cluster.nodes if n.op in POOLS]
    size, shape = attrs_of(pools[0], at.PoolAttrs).window, pools[0].type.shape
    draft = Draft(head, buffers, (*shape, *size))
    draft.pool = size
    tiles = FRAMES[head.op](draft)
    before = [n for n in cluster.nodes if n.type.shape == head.type.shape]
    behind = [n for n in cluster.nodes if n not in before]
    full = Cluster(Kind.WINDOW, head.type.shape[:-1], head.type.shape[-1], before)
    first = _epilogue(full, before, [head], buffers)
    value = first.body_values[0][resolve(pools[0].inputs[0], identity(4)).base]
    first.drafts[0].stores.append(Store(Load(-1, (), ()), value))  # the pool is its reader
    (level,) = first.levels()
    second = _epilogue(cluster, behind, pools, buffers, first.count)
    levels = (_unpooled(level, size), *second.levels())
    return draft.kernel(id, tiles, levels=levels, pool=size, middle=head.type.shape[1:3], pooled=value)


def _epilogue(
    cluster: Cluster, nodes: Sequence[Node], heads: Sequence[Node], buffers: Buffers, start: int = 0
) -> Emitter:
    """What happens to every pixel that the window gives."""
    emitter = Emitter(cluster, buffers, 3)
    emitter.count = start
    for head in heads:
        op = "position" if head.op == "max_pool2d_index" else "acc"
        emitter.add(0, False, head, partial(_source, op, head.type.dtype))
        emitter.level_of[head] = 0
        for load in buffers.targets(head):
            emitter.store(0, head, load)
    for node in nodes:
        if node not in heads:
            emitter.place(node)
    return emitter


def _source(op: str, dtype: DType, id: int) -> Instr:
    return Instr(id, op, dtype)


def _unpooled(level: Level, window: Sequence[int]) -> Level:
    """A level over full rows and columns, over the pool's axes: row = pooled row * window + row in the window."""

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
    assert len(level.stores) == 1, "what stands before a pool in its kernel is read there alone"
    return replace(level, body=body, stores=())


def _conv2d(draft: Draft) -> Tiles:
    x, weight = draft.head.inputs
    a = attrs_of(draft.head, at.ConvAttrs)
    height, width, channels = draft.images("x", x, 0)
    kernel_height, kernel_width, inner = draft.weight(weight)
    batch, rows, columns, outputs = draft.head.type.shape
    assert isinstance(outputs, int), "type rules ask for numbers"
    assert isinstance(rows, int), "type rules ask for numbers"
    assert isinstance(columns, int), "type rules ask for numbers"
    kernel = (outputs, kernel_height, kernel_width, inner)
    by_tiles = winograd.takes(kernel, x.type.dtype, (rows, columns), a.stride, a.dilation, a.groups)
    step = 2 if by_tiles else 1
    margins = [
        forward_margin(*of)
        for of in zip(
            *((height, width), (rounded(rows, step), rounded(columns, step)), (kernel_height, kernel_width)),
            *(a.stride, a.low, a.dilation),
            strict=True,
        )
    ]
    spills = reads_past(channels, a.groups, outputs, inner, by_tiles)
    if max(*a.low, *margins) > 0 or not draft.is_dense(draft.operands[0]) or spills:
        draft.room("frame", area((height, width), a.low, margins) * channels + SLACK)
    _pack(draft, a.groups, outputs, kernel_height * kernel_width * inner)
    if by_tiles:
        size = rows // draft.pool[0] * draft.pool[0], columns // draft.pool[1] * draft.pool[1]
        return _by_tiles(draft, batch, size, channels, outputs)
    draft.room("block", draft.pool[0] * columns * panel_columns(a.groups, outputs, inner))
    return Tiles()


def _by_tiles(draft: Draft, batch: Extent, size: Sequence[int], depth: int, outputs: int) -> Tiles:
    rows = winograd.reserve(draft.room, size, depth, outputs, draft.pool[0])
    draft.flops = draft.flops_of_tiles(batch, size, depth * outputs)
    return Tiles(rows)


def _pack(draft: Draft, groups: int, channels: int, depth: int) -> None:
    """Room for a weight in panels of output channels."""
    panel = columns_of(channels // groups)
    draft.room("packed", groups * rounded(channels // groups, panel) * depth)


def _conv2d_grad_input(draft: Draft) -> Tiles:
    g, weight = draft.head.inputs
    a = attrs_of(draft.head, at.ConvGradAttrs)
    rows, columns, outputs = draft.images("g", g, 0)
    kernel_height, kernel_width, inner = draft.weight(weight)
    channels = inner * a.groups
    kernel = (outputs, kernel_height, kernel_width, inner)
    by_tiles = winograd.takes(kernel, g.type.dtype, a.size, a.stride, a.dilation, a.groups)
    sides = [
        backward_taps(*of)
        for of in zip(a.size, (rows, columns), (kernel_height, kernel_width), a.stride, a.low, a.dilation, strict=True)
    ]
    odd = [by_tiles * size % 2 for size in a.size]  # a tile that reaches over the edge sees one row more
    before, behind = [s[1] for s in sides], [s[2] + more for s, more in zip(sides, odd, strict=True)]
    spills = reads_past(outputs, a.groups, channels, outputs // a.groups, by_tiles)
    if max(*before, *behind) > 0 or not draft.is_dense(draft.operands[0]) or spills:
        draft.room("frame", area((rows, columns), before, behind) * outputs + SLACK)
    _pack(draft, a.groups, channels, kernel_height * kernel_width * (outputs // a.groups))
    if by_tiles:
        return _by_tiles(draft, g.type.shape[0], a.size, outputs, channels)
    draft.room("block", a.size[1] * panel_columns(a.groups, channels, outputs // a.groups))
    return Tiles()


def _pooled_grad_input(draft: Draft) -> Tiles:
    g, index, weight = draft.head.inputs
    a = attrs_of(draft.head, at.PooledConvAttrs)
    _, _, outputs = draft.images("g", g, 0)
    draft.images("index", index, 0)
    kernel_height, _, channels = draft.weight(weight)
    draft.room("image", area(a.size, a.low, a.high) * channels + framed_row(draft.head) + SLACK)
    draft.room("packed", outputs * (kernel_height + 2 * a.window[0] - 2) * framed_row(draft.head) + SLACK)
    return Tiles()


def framed_row(head: Node) -> int:
    """Elements of a row of a kernel with zeros around it, wide enough to be moved within a pool's window."""
    a, weight = attrs_of(head, at.PooledConvAttrs), head.inputs[2].type
    _, _, width, channels = (e for e in weight.shape if isinstance(e, int))
    return framed_length(width, channels, a.window[1], VECTOR_BYTES // weight.dtype.size)


def framed_length(width: int, channels: int, window: int, lanes: int) -> int:
    return (window - 1) * channels + rounded((width + window - 1) * channels, lanes)


def _pool(draft: Draft) -> Tiles:
    a = attrs_of(draft.head, at.PoolAttrs)
    _, _, channels = draft.images("x", draft.head.inputs[0], 0)
    draft.room("best", channels, draft.head.inputs[0].type.dtype)
    draft.room("positions", channels, index_dtype(a.window))
    return Tiles()


def _pool_grad(draft: Draft) -> Tiles:
    a = attrs_of(draft.head, at.PoolGradAttrs)
    _, _, channels = draft.images("g", draft.head.inputs[0], 0)
    draft.images("index", draft.head.inputs[1], 0)
    draft.room("image", a.size[0] * a.size[1] * channels)
    return Tiles()


def _pool_pick(draft: Draft) -> Tiles:
    _, _, channels = draft.images("x", draft.head.inputs[0], 0)
    draft.images("index", draft.head.inputs[1], 0)
    draft.room("best", channels)
    return Tiles()


FRAMES = {
    "conv2d": _conv2d,
    "conv2d_grad_input": _conv2d_grad_input,
    "pooled_grad_input": _pooled_grad_input,
    "max_pool2d": _pool,
    "max_pool2d_index": _pool,
    "max_pool2d_grad": _pool_grad,
    "max_pool2d_pick": _pool_pick,
}
