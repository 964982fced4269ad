"""What a product's epilogue touches, or the next call of a routine, is fetched meanwhile: until then memory is idle."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PANELS
from wholestep.compiler.backends.cpu.render.address import axis_stride
from wholestep.compiler.backends.cpu.render.writer import CWriter
from wholestep.compiler.ir.types import Extent
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Buffer, Layout, Load, Operand

MOST = 64 << 10  # bytes of one operand of a call: more would drive out what the call works on


def operand_start(w: CWriter, load: Load) -> str:
    """The address of the element at which the current block of an operand begins."""
    return f"{w.params[load.buffer]} + {w.scope.offset(load, w.buffers[load.buffer])}"


def ahead_of_epilogue(w: CWriter) -> list[str]:
    """Entries of type `ws_ahead` for the block m0 x n0 of every matrix that the epilogue reads or writes."""
    if not w.schedule.prefetch:
        return []
    level = w.kernel.levels[0]
    touched = [i.load for i in level.body if i.load is not None] + [s.load for s in level.stores]
    first = {load.buffer: load for load in reversed(touched)}  # what is updated in place is fetched once
    entries = [entry(w, load) for load in dict.fromkeys(first[load.buffer] for load in touched)]
    return [text for text in entries if text]


def entry(w: CWriter, load: Load) -> str:
    """The block of one matrix, in pieces as it lies in memory; nothing where it is not a plain matrix of the block."""
    dot, buffer = w.kernel.body, w.buffers[load.buffer]
    assert isinstance(dot, Dot)
    across = {dot.m: "mb", dot.n: "nb"}
    places = [index.plain for index in load.index[-2:]]
    if len(places) != 2 or set(places) != set(across):
        return ""
    rows, columns = (across[p] for p in places if p is not None)
    size = buffer.type.dtype.size
    if buffer.layout != Layout.ROWS:
        count, bytes = f"({columns} + {LANES - 1})/{LANES}", f"{rows}*{LANES * size}"
        step = w.scope.extent(panel_rows(load, buffer) * LANES * size)
    elif places == [dot.m, dot.n]:
        stride, _ = axis_stride(load, dot.m, buffer)
        count, bytes, step = rows, f"{columns}*{size}", w.scope.extent(stride * size)
    else:
        return ""
    return f"{{{operand_start(w, load)}, {count}, {bytes}, {step}}}"


def panel_rows(load: Load, buffer: Buffer) -> Extent:
    """The rows of a panel, the one that fills its last pair among them."""
    rows = load.shape[-2]
    return rows if buffer.layout == PANELS or not isinstance(rows, int) else -(-rows // 2) * 2


def ahead_of_next(w: CWriter, items: Sequence[Operand]) -> list[str]:
    """Declares `ahead`: the matrices that the routine touches at the next point of the kernel's rows; its entries."""
    rows, here = w.kernel.rows, dict(w.scope.axes)
    carry = "1"
    for axis in reversed(rows):  # like an odometer: the last row's next is the first of the row before
        lo, hi = w.span(axis)
        around = "" if axis == rows[0] else f" < {hi} ? i{axis} + {carry} : {lo}"
        w.emit(f"const long n{axis} = i{axis} + {carry}{around};")
        carry = f"(n{axis} < i{axis} + {carry})"
        w.scope.axes[axis] = f"n{axis}"
    entries = [text for item in items if (text := next_operand(w, item))]
    if entries:
        w.emit(f"const ws_ahead ahead[] = {{{', '.join(entries)}}};")
    w.scope.axes.update(here)
    return entries


def next_operand(w: CWriter, item: Operand) -> str:
    """One entry; nothing for a vector, for rows of unknown length, and for what is too large."""
    buffer = w.buffers[item.load.buffer]
    size, inner = buffer.type.dtype.size, item.axes[-2:]
    known = [e for e in (w.kernel.axes[a] for a in inner) if isinstance(e, int)]
    if len(known) < 2 or prod(known) * size > MOST:
        return ""
    (step, _), (_, by_panels) = (axis_stride(item.load, a, buffer) for a in inner)
    rows, columns = known
    count, bytes, apart = rows, columns * size, step * size
    if by_panels:
        count, bytes, apart = -(-columns // LANES), rows * LANES * size, item.load.shape[-2] * LANES * size
    return f"{{{operand_start(w, item.load)}, {count}, {bytes}, {w.scope.extent(apart)}}}"
