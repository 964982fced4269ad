"""In-place reuse: may the result of a kernel alias an operand whose last read is in this kernel?

It may if no element of the operand is read after the iteration that overwrites it.
"""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.plan.io.traffic import loads, stores
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Kind, Layout


def may_alias(kernel: Kernel, old: Buffer, new: Buffer) -> bool:
    """May `new` reuse the bytes of `old`, which no later kernel reads?

    Every load of an old element must be in the loop that stores the new one, or in an earlier pass over the row.  In a
    product that loop is the epilogue: the product itself is in the workspace by then.
    """
    if kernel.kind not in (Kind.NEST, Kind.DOT) or kernel.loop is not None:
        return False
    if (old.bytes, old.layout, old.type.dtype) != (new.bytes, new.layout, new.type.dtype):
        return False
    if old.layout != Layout.ROWS and old.type != new.type:
        return False  # blocks of different shapes place the same element at different offsets
    targets = [(n, s.load) for n, level in enumerate(kernel.levels) for s in level.stores if s.load.buffer == new.id]
    if len(targets) != 1 or any(x.buffer == old.id for x in stores(kernel)):
        return False
    at, target = targets[0]
    passes = kernel.levels[: 1 if kernel.kind is Kind.DOT else at + 1]
    reads = [i.load for level in passes for i in level.body if i.load is not None and i.load.buffer == old.id]
    return (
        at < len(passes)
        and len(reads) == sum(x.buffer == old.id for x in loads(kernel))
        and all(replace(x, buffer=new.id) == target for x in reads)
        and sum(x.buffer == new.id for x in (*loads(kernel), *stores(kernel))) == 1
    )
