"""What a product's epilogue touches is fetched while the product runs: until then memory is idle."""

from __future__ import annotations

from wholestep.compiler.plan.kernel import LANES, Layout, Load, Space
from wholestep.compiler.render.address import axis_stride
from wholestep.compiler.render.writer import Writer

# Bytes from which on a step cannot keep its data in the second-level caches: below, there is nothing to fetch.
LARGE = 4 << 20


def operand_start(w: Writer, load: Load) -> str:
    """The address of the element at which the current block of an operand begins."""
    return f"{w.params[load.buffer]} + {w.scope.offset(load, w.buffers[load.buffer])}"


def ahead_of_epilogue(w: Writer) -> list[str]:
    """Entries of type `ws_ahead` for the block m0 x n0 of every matrix that the epilogue reads or writes."""
    if not is_large(w):
        return []
    level = w.kernel.levels[0]
    touched = [i.load for i in level.body if i.load is not None] + [s.load for s in level.stores]
    first = {load.buffer: load for load in reversed(touched)}  # what is updated in place is fetched once
    entries = [entry(w, load) for load in dict.fromkeys(first[load.buffer] for load in touched)]
    return [text for text in entries if text]


def is_large(w: Writer) -> bool:
    """Does a step pass over more memory than caches hold?"""
    kept = sum(b.bytes for b in w.buffers.values() if b.space in (Space.STATE, Space.COPY))
    arena = max((b.offset + b.bytes for b in w.buffers.values() if b.space is Space.ARENA), default=0)
    return kept + arena >= LARGE


def entry(w: Writer, load: Load) -> str:
    """The block of one matrix, in pieces as it lies in memory; nothing where it is not a plain matrix of the block."""
    dot, buffer = w.kernel.dot, w.buffers[load.buffer]
    assert dot is not None
    across = {dot.m: "mb", dot.n: "nb"}
    places = [index.plain for index in load.index[-2:]]
    if len(places) != 2 or set(places) != set(across):
        return ""
    rows, columns = (across[p] for p in places if p is not None)
    size = buffer.type.dtype.size
    if buffer.layout is Layout.PANELS:
        count, bytes = f"({columns} + {LANES - 1})/{LANES}", f"{rows}*{LANES * size}"
        step = w.scope.extent(load.shape[-2] * LANES * size)
    elif places == [dot.m, dot.n]:
        stride, _ = axis_stride(load, dot.m, buffer)
        count, bytes, step = rows, f"{columns}*{size}", w.scope.extent(stride * size)
    else:
        return ""
    return f"{{{operand_start(w, load)}, {count}, {bytes}, {step}}}"
