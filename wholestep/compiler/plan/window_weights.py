"""Gradients of weights -> window kernels."""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Extent
from wholestep.compiler.plan import winograd
from wholestep.compiler.plan.buffers import Buffers
from wholestep.compiler.plan.frames import SLACK, TILE_OUTPUTS, forward_margin, rounded, runs
from wholestep.compiler.plan.kernel import LANES, Kernel, Operand
from wholestep.compiler.plan.scheduled import Tiles
from wholestep.compiler.plan.window_draft import Draft, area


def emit_weight(id: int, head: Node, buffers: Buffers) -> Kernel:
    """The kernel of a weight's gradient: it has no epilogue, since it adds up over all images."""
    draft = Draft(head, buffers, head.type.shape)
    tiles = weight_tiles(draft)
    (target,) = buffers.targets(head)
    return draft.kernel(id, tiles, results=(Operand("result", target, tuple(range(head.type.rank))),))


def weight_tiles(draft: Draft) -> Tiles:
    """Operands and workspace of a weight's gradient; gives how it is computed."""
    head = draft.head
    tiles = _pooled_weight(draft) if head.op == "pooled_grad_weight" else _plain_weight(draft)
    if not tiles.rows:
        draft.room("sums", _sums(head, draft.axes[draft.operands[0].axes[3]]))
    return tiles


def _sums(head: Node, channels: Extent) -> int:
    """Elements of all outputs, in whole vectors."""
    outputs, height, width, inner = (e for e in head.type.shape[-4:] if isinstance(e, int))
    assert isinstance(channels, int), "type rules ask for numbers"
    of = runs(width, getattr(head.attrs, "dilation", (1, 1))[1], channels, inner)
    return outputs * height * of.count * rounded(of.length) + SLACK


def _plain_weight(draft: Draft) -> Tiles:
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
    draft.room("frame", area((height, width), a.low, margins) * channels + SLACK)
    tile = TILE_OUTPUTS
    while (outputs // a.groups) % tile and a.groups > 1:
        tile //= 2
    return Tiles(granule=tile)


def _weight_by_tiles(draft: Draft, a: at.ConvGradAttrs) -> Tiles:
    (batch, height, width, channels), (_, rows, columns, outputs) = (i.type.shape for i in draft.head.inputs)
    assert isinstance(height, int) and isinstance(width, int) and isinstance(channels, int)  # noqa: PT018
    assert isinstance(rows, int) and isinstance(columns, int) and isinstance(outputs, int)  # noqa: PT018
    even = rounded(rows, 2), rounded(columns, 2)
    margins = [
        forward_margin(*of) for of in zip((height, width), even, a.size, a.stride, a.low, a.dilation, strict=True)
    ]
    draft.room("frame", area((height, width), a.low, margins) * channels + SLACK)
    if even != (rows, columns) or outputs % LANES or not draft.is_dense(draft.operands[1]):
        draft.room("around", even[0] * even[1] * outputs + SLACK)
    tile_rows = winograd.reserve_weight(draft.room, (rows, columns), channels, outputs)
    draft.flops = draft.flops_of_tiles(batch, (rows, columns), channels * outputs)
    return Tiles(tile_rows, winograd.TILE_OUTPUTS)


def _pooled_weight(draft: Draft) -> Tiles:
    x, g, index = draft.head.inputs
    a = attrs_of(draft.head, at.PooledConvAttrs)
    height, width, channels = draft.images("x", x, None)
    draft.images("g", g, None)
    draft.images("index", index, None)
    draft.room("frame", area((height, width), a.low, a.high) * channels + SLACK)
    return Tiles(granule=1)
