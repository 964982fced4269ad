"""Software prefetch of a product's epilogue operands, or of the next routine call's operands, while it computes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PANELS
from wholestep.compiler.backends.cpu.render.address import axis_stride
from wholestep.compiler.backends.cpu.render.writer import CWriter
from wholestep.compiler.ir.types import Extent
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Buffer, Layout, Load, Operand

MOST = 64 << 10  # bytes of one prefetched operand: a larger one would evict the operands of the running call


def prefetch_epilogue(w: CWriter) -> list[str]:
    """Entries of type `ws_ahead` for the block m0 x n0 of every matrix that the epilogue reads or writes."""
    if not w.schedule.prefetch:
        return []
    level = w.kernel.levels[0]
    accesses = [i.load for i in level.body if i.load is not None] + [s.load for s in level.stores]
    first = {load.buffer: load for load in reversed(accesses)}  # a buffer updated in place is prefetched once
    entries = [entry(w, load) for load in dict.fromkeys(first[load.buffer] for load in accesses)]
    return [text for text in entries if text]


def entry(w: CWriter, load: Load) -> str:
    """The prefetch of one matrix's block, in contiguous pieces; empty if it is not a plain matrix over the block."""
    dot, buffer = w.kernel.body, w.plan.buffers[load.buffer]
    assert isinstance(dot, Dot)
    block_sizes = {dot.m: "mb", dot.n: "nb"}
    axes = [index.plain for index in load.index[-2:]]
    if len(axes) != 2 or set(axes) != set(block_sizes):
        return ""
    rows, columns = (block_sizes[p] for p in axes if p is not None)
    size = buffer.type.dtype.size
    if buffer.layout != Layout.ROWS:
        count, bytes = f"({columns} + {LANES - 1})/{LANES}", f"{rows}*{LANES * size}"
        step = w.extent(panel_rows(load, buffer) * LANES * size)
    elif axes == [dot.m, dot.n]:
        stride, _ = axis_stride(load, dot.m, buffer)
        count, bytes, step = rows, f"{columns}*{size}", w.extent(stride * size)
    else:
        return ""
    return f"{{{w.address(load)}, {count}, {bytes}, {step}}}"


def panel_rows(load: Load, buffer: Buffer) -> Extent:
    """The rows of a panel; in the pairs layout rounded up to complete pairs."""
    rows = load.shape[-2]
    return rows if buffer.layout == PANELS or not isinstance(rows, int) else -(-rows // 2) * 2


def prefetch_next_call(w: CWriter, items: Sequence[Operand]) -> list[str]:
    """Declare `ahead`: the matrices that the routine accesses in the kernel's next iteration; returns its entries."""
    rows, saved_axes = w.kernel.rows, dict(w.axes)
    carry = "1"
    for axis in reversed(rows):  # increment with carry: the first index of a row follows the last one of the row before
        lo, hi = w.span(axis)
        wrap = "" if axis == rows[0] else f" < {hi} ? i{axis} + {carry} : {lo}"
        w.emit(f"const long n{axis} = i{axis} + {carry}{wrap};")
        carry = f"(n{axis} < i{axis} + {carry})"
        w.axes[axis] = f"n{axis}"
    entries = [text for item in items if (text := next_operand(w, item))]
    if entries:
        w.emit(f"const ws_ahead ahead[] = {{{', '.join(entries)}}};")
    w.axes.update(saved_axes)
    return entries


def next_operand(w: CWriter, item: Operand) -> str:
    """One prefetch entry; empty for a vector, for rows of unknown length, and for operands that are too large."""
    buffer = w.plan.buffers[item.load.buffer]
    size, inner = buffer.type.dtype.size, item.axes[-2:]
    extents = [e for e in (w.kernel.axes[a] for a in inner) if isinstance(e, int)]
    if len(extents) < 2 or prod(extents) * size > MOST:
        return ""
    (step, _), (_, by_panels) = (axis_stride(item.load, a, buffer) for a in inner)
    rows, columns = extents
    count, bytes, stride = rows, columns * size, step * size
    if by_panels:
        count, bytes, stride = -(-columns // LANES), rows * LANES * size, item.load.shape[-2] * LANES * size
    return f"{{{w.address(item.load)}, {count}, {bytes}, {w.extent(stride)}}}"
