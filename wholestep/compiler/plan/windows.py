"""Cluster -> window kernel: operands, workspace, and the epilogue of every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, Extent, TensorType, evaluate
from wholestep.compiler.ir.windows import index_dtype, window_products
from wholestep.compiler.plan import winograd
from wholestep.compiler.plan.access import identity, linear, resolve
from wholestep.compiler.plan.buffers import Buffers
from wholestep.compiler.plan.emitter import Emitter
from wholestep.compiler.plan.frames import (
    SLACK,
    TILE_OUTPUTS,
    backward_taps,
    columns_of,
    forward_margin,
    rounded,
    runs,
)
from wholestep.compiler.plan.fuse import Cluster
from wholestep.compiler.plan.kernel import LANES, Index, Instr, Kernel, Kind, Level, Load, Operand, Store, Window
from wholestep.compiler.plan.window_ops import POOLED, POOLS, WEIGHTS

VECTOR_BYTES = 32  # of the kernels that go through a pool, on every target


class Draft:
    """A window kernel while it is put together: its axes, operands and workspace."""

    def __init__(self, head: Node, buffers: Buffers, axes: Sequence[Extent]) -> None:
        self.head, self.buffers = head, buffers
        self.axes: list[Extent] = list(axes)
        self.operands: list[Operand] = []
        self.work: list[tuple[str, int]] = []
        self.pool: tuple[int, ...] = (1, 1)  # the window of a pool in this kernel

    def images(self, name: str, node: Node, batch: int | None) -> tuple[int, int, int]:
        """Images that are read whole, over axes of their own but for the batch; gives (H, W, C)."""
        n = self.new_axis(node.type.shape[0]) if batch is None else batch
        return self._whole(name, node, n)

    def weight(self, node: Node) -> tuple[int, int, int]:
        """A weight; gives (KH, KW, C / groups)."""
        return self._whole("weight", node, self.new_axis(node.type.shape[0]))

    def _whole(self, name: str, node: Node, first: int) -> tuple[int, int, int]:
        axes = (first, *(self.new_axis(e) for e in node.type.shape[1:]))
        access = resolve(node, tuple(Index.axis(a) for a in axes))
        self.operands.append(Operand(name, Load(self.buffers.of(access.base), access.shape, access.index), axes))
        height, width, channels = node.type.shape[1:]
        assert isinstance(height, int), "type rules ask for numbers"
        assert isinstance(width, int), "type rules ask for numbers"
        assert isinstance(channels, int), "type rules ask for numbers"
        return height, width, channels

    def new_axis(self, extent: Extent) -> int:
        self.axes.append(extent)
        return len(self.axes) - 1

    def room(self, name: str, elements: int, dtype: DType | None = None) -> None:
        """A piece of workspace."""
        of = dtype or self.head.type.dtype
        self.work.append((name, self.buffers.work(TensorType((elements,), of))))

    def is_dense(self, operand: Operand) -> bool:
        """Do the rows of images lie in memory as a frame's would?"""
        steps = dict(linear(operand.load.index, operand.load.shape).terms)
        _, _, column, channel = (steps.get(a, 0) for a in operand.axes)
        channels = self.axes[operand.axes[3]]
        return (channels == 1 or channel == 1) and column == channels

    def flops_of_tiles(self, batch: Extent, size: Sequence[int], pair: int) -> int:
        """Multiplies and adds of the products of tiles, for so many pairs of channels."""
        down, across = winograd.tiles_of(size)
        return evaluate(batch * (2 * winograd.POSITIONS * down * across * pair), self.buffers.sizes)

    def window(self, **fields: object) -> Window:
        types, last = tuple(i.type for i in self.head.inputs), True
        products = window_products(self.head.op, types, self.head.type, last)
        flops = evaluate(products * (1 if self.head.op.startswith("max_pool2d") else 2), self.buffers.sizes)
        return replace(Window(self.head.op, tuple(self.operands), work=tuple(self.work), flops=flops), **fields)  # type: ignore[arg-type]


def emit_window(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    head = cluster.nodes[0]
    return _emit_weight(id, head, buffers) if head.op in WEIGHTS else _emit_images(id, cluster, buffers)


# -- gradients of weights ----------------------------------------------------------------------------------------------


def _emit_weight(id: int, head: Node, buffers: Buffers) -> Kernel:
    draft = Draft(head, buffers, head.type.shape)
    outputs, height, width, _ = (e for e in head.type.shape if isinstance(e, int))
    fields = _pooled_weight(draft) if head.op == "pooled_grad_weight" else _plain_weight(draft)
    if fields.get("tile_rows"):
        return _finish_weight(id, draft, fields)
    runs_of_row = runs(width, _dilation(head)[1], draft.axes[draft.operands[0].axes[3]], head.type.shape[3])  # type: ignore[arg-type]
    draft.room("sums", outputs * height * runs_of_row.count * rounded(runs_of_row.length) + SLACK)
    return _finish_weight(id, draft, fields)


def _finish_weight(id: int, draft: Draft, fields: dict[str, object]) -> Kernel:
    (target,) = draft.buffers.targets(draft.head)
    window = draft.window(results=(Operand("result", target, (0, 1, 2, 3)),), **fields)
    return Kernel(id, Kind.WINDOW, tuple(draft.axes), (0,), None, (), window=window)


def _dilation(head: Node) -> tuple[int, ...]:
    return getattr(head.attrs, "dilation", (1, 1))


def _plain_weight(draft: Draft) -> dict[str, object]:
    x, g = draft.head.inputs
    a = attrs_of(draft.head, at.ConvGradAttrs)
    height, width, channels = draft.images("x", x, None)
    rows, columns, outputs = draft.images("g", g, None)
    kernel = (outputs, *a.size, channels // a.groups)
    if winograd.takes(kernel, g.type.dtype, (rows, columns), a.stride, a.dilation, a.groups):
        return _weight_by_tiles(draft, a)
    margins = [
        forward_margin(*of)
        for of in zip((height, width), (rows, columns), a.size, a.stride, a.low, a.dilation, strict=True)
    ]
    draft.room("frame", _area((height, width), a.low, margins) * channels + SLACK)
    tile = TILE_OUTPUTS
    while (outputs // a.groups) % tile and a.groups > 1:
        tile //= 2
    return {"stride": a.stride, "low": a.low, "dilation": a.dilation, "groups": a.groups, "granule": tile}


def _weight_by_tiles(draft: Draft, a: at.ConvGradAttrs) -> dict[str, object]:
    (batch, height, width, channels), (_, rows, columns, outputs) = (i.type.shape for i in draft.head.inputs)
    assert isinstance(height, int) and isinstance(width, int) and isinstance(channels, int)  # noqa: PT018
    assert isinstance(rows, int) and isinstance(columns, int) and isinstance(outputs, int)  # noqa: PT018
    even = rounded(rows, 2), rounded(columns, 2)
    margins = [
        forward_margin(*of) for of in zip((height, width), even, a.size, a.stride, a.low, a.dilation, strict=True)
    ]
    draft.room("frame", _area((height, width), a.low, margins) * channels + SLACK)
    if even != (rows, columns) or outputs % LANES or not draft.is_dense(draft.operands[1]):
        draft.room("around", even[0] * even[1] * outputs + SLACK)
    tile_rows = winograd.reserve_weight(draft.room, (rows, columns), channels, outputs)
    flops = draft.flops_of_tiles(batch, (rows, columns), channels * outputs)
    return {"low": a.low, "granule": winograd.TILE_OUTPUTS, "tile_rows": tile_rows, "flops": flops}


def _pooled_weight(draft: Draft) -> dict[str, object]:
    x, g, index = draft.head.inputs
    a = attrs_of(draft.head, at.PooledConvAttrs)
    height, width, channels = draft.images("x", x, None)
    draft.images("g", g, None)
    draft.images("index", index, None)
    draft.room("frame", _area((height, width), a.low, a.high) * channels + SLACK)
    return {"low": a.low, "pool": a.window, "granule": 1}


def _area(size: Sequence[int], low: Sequence[int], high: Sequence[int]) -> int:
    (height, top, bottom), (width, left, right) = zip(size, low, high, strict=True)
    return (height + top + bottom) * (width + left + right)


# -- images ------------------------------------------------------------------------------------------------------------


def _emit_images(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    head = cluster.nodes[0]
    if head.op in POOLED and any(n.op in POOLS for n in cluster.nodes):
        return _emit_pooled(id, cluster, buffers)
    draft = Draft(head, buffers, head.type.shape)
    fields = _FRAMES[head.op](draft)
    emitter = _epilogue(cluster, cluster.nodes, [n for n in cluster.nodes if n is head or n.op in POOLS], buffers)
    window = draft.window(**fields)
    return Kernel(id, Kind.WINDOW, tuple(draft.axes), (0, 1, 2), 3, emitter.levels(), window=window)


def _emit_pooled(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    """A convolution and the pool behind it: what is pooled never leaves the workspace."""
    head = cluster.nodes[0]
    pools = [n for n in cluster.nodes if n.op in POOLS]
    size, shape = attrs_of(pools[0], at.PoolAttrs).window, pools[0].type.shape
    draft = Draft(head, buffers, (*shape, *size))
    draft.pool = size
    fields = _FRAMES[head.op](draft)
    before = [n for n in cluster.nodes if n.type.shape == head.type.shape]
    behind = [n for n in cluster.nodes if n not in before]
    full = Cluster(Kind.WINDOW, head.type.shape[:-1], head.type.shape[-1], before)
    first = _epilogue(full, before, [head], buffers)
    value = first.body_values[0][resolve(pools[0].inputs[0], identity(4)).base]
    first.drafts[0].stores.append(Store(Load(-1, (), ()), value))  # the pool is its reader
    (level,) = first.levels()
    second = _epilogue(cluster, behind, pools, buffers, first.count)
    levels = (_unpooled(level, size), *second.levels())
    window = draft.window(pool=size, pooled=value, **fields)
    return Kernel(id, Kind.WINDOW, tuple(draft.axes), (0, 1, 2), 3, levels, window=window)


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


def _conv2d(draft: Draft) -> dict[str, object]:
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
    spills = by_tiles and channels % LANES > 0  # whole vectors are read
    if max(*a.low, *margins) > 0 or not draft.is_dense(draft.operands[0]) or spills:
        draft.room("frame", _area((height, width), a.low, margins) * channels + SLACK)
    _pack(draft, a.groups, outputs, kernel_height * kernel_width * inner)
    fields: dict[str, object] = {"stride": a.stride, "low": a.low, "dilation": a.dilation, "groups": a.groups}
    if by_tiles:
        size = rows // draft.pool[0] * draft.pool[0], columns // draft.pool[1] * draft.pool[1]
        return fields | _by_tiles(draft, batch, size, channels, outputs)
    draft.room("block", draft.pool[0] * columns * columns_of(outputs // a.groups))
    return fields


def _by_tiles(draft: Draft, batch: Extent, size: Sequence[int], depth: int, outputs: int) -> dict[str, object]:
    rows = winograd.reserve(draft.room, size, depth, outputs, draft.pool[0])
    return {"tile_rows": rows, "flops": draft.flops_of_tiles(batch, size, depth * outputs)}


def _pack(draft: Draft, groups: int, channels: int, depth: int) -> None:
    """Room for a weight in panels of output channels."""
    panel = columns_of(channels // groups)
    draft.room("packed", groups * rounded(channels // groups, panel) * depth)


def _conv2d_grad_input(draft: Draft) -> dict[str, object]:
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
    spills = by_tiles and outputs % LANES > 0  # whole vectors are read
    if max(*before, *behind) > 0 or not draft.is_dense(draft.operands[0]) or spills:
        draft.room("frame", _area((rows, columns), before, behind) * outputs + SLACK)
    _pack(draft, a.groups, channels, kernel_height * kernel_width * (outputs // a.groups))
    fields: dict[str, object] = {"stride": a.stride, "low": a.low, "dilation": a.dilation, "groups": a.groups}
    if by_tiles:
        return fields | _by_tiles(draft, g.type.shape[0], a.size, outputs, channels)
    draft.room("block", a.size[1] * columns_of(inner))
    return fields


def _pooled_grad_input(draft: Draft) -> dict[str, object]:
    g, index, weight = draft.head.inputs
    a = attrs_of(draft.head, at.PooledConvAttrs)
    _, _, outputs = draft.images("g", g, 0)
    draft.images("index", index, 0)
    kernel_height, _, channels = draft.weight(weight)
    draft.room("image", _area(a.size, a.low, a.high) * channels + framed_row(draft.head) + SLACK)
    draft.room("packed", outputs * (kernel_height + 2 * a.window[0] - 2) * framed_row(draft.head) + SLACK)
    return {"low": a.low, "pool": a.window}


def framed_row(head: Node) -> int:
    """Elements of a row of a kernel with zeros around it, wide enough to be moved within a pool's window."""
    a, weight = attrs_of(head, at.PooledConvAttrs), head.inputs[2].type
    _, _, width, channels = (e for e in weight.shape if isinstance(e, int))
    return framed_length(width, channels, a.window[1], VECTOR_BYTES // weight.dtype.size)


def framed_length(width: int, channels: int, window: int, lanes: int) -> int:
    return (window - 1) * channels + rounded((width + window - 1) * channels, lanes)


def _pool(draft: Draft) -> dict[str, object]:
    a = attrs_of(draft.head, at.PoolAttrs)
    _, _, channels = draft.images("x", draft.head.inputs[0], 0)
    draft.room("best", channels, draft.head.inputs[0].type.dtype)
    draft.room("positions", channels, index_dtype(a.window))
    return {"stride": a.stride, "low": a.low, "pool": a.window}


def _pool_grad(draft: Draft) -> dict[str, object]:
    a = attrs_of(draft.head, at.PoolGradAttrs)
    _, _, channels = draft.images("g", draft.head.inputs[0], 0)
    draft.images("index", draft.head.inputs[1], 0)
    draft.room("image", a.size[0] * a.size[1] * channels)
    return {"stride": a.stride, "low": a.low, "pool": a.window}


def _pool_pick(draft: Draft) -> dict[str, object]:
    a = attrs_of(draft.head, at.PoolAttrs)
    _, _, channels = draft.images("x", draft.head.inputs[0], 0)
    draft.images("index", draft.head.inputs[1], 0)
    draft.room("best", channels)
    return {"stride": a.stride, "low": a.low, "pool": a.window}


_FRAMES = {
    "conv2d": _conv2d,
    "conv2d_grad_input": _conv2d_grad_input,
    "pooled_grad_input": _pooled_grad_input,
    "max_pool2d": _pool,
    "max_pool2d_index": _pool,
    "max_pool2d_grad": _pool_grad,
    "max_pool2d_pick": _pool_pick,
}
