"""Kernels that may write a result over an operand: an element is read, for the last time, where its successor goes."""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.plan.io.traffic import loads, stores
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Kind, Layout


def overwrites(kernel: Kernel, old: Buffer, new: Buffer) -> bool:
    """May `new` have the bytes of `old`, which nobody reads after this kernel?

    Every load of an old element stands in the loop that stores the new one, or in a pass over the row before it.  In a
    product that is its epilogue: the product itself is in the workspace by then.
    """
    if kernel.kind not in (Kind.NEST, Kind.DOT) or kernel.loop is not None:
        return False
    if (old.bytes, old.layout, old.type.dtype) != (new.bytes, new.layout, new.type.dtype):
        return False
    if old.layout != Layout.ROWS and old.type != new.type:
        return False
    written = [(n, s.load) for n, level in enumerate(kernel.levels) for s in level.stores if s.load.buffer == new.id]
    if len(written) != 1 or any(x.buffer == old.id for x in stores(kernel)):
        return False
    at, target = written[0]
    passes = kernel.levels[: 1 if kernel.kind is Kind.DOT else at + 1]
    read = [i.load for level in passes for i in level.body if i.load is not None and i.load.buffer == old.id]
    return (
        at < len(passes)
        and len(read) == sum(x.buffer == old.id for x in loads(kernel))
        and all(replace(x, buffer=new.id) == target for x in read)
        and sum(x.buffer == new.id for x in (*loads(kernel), *stores(kernel))) == 1
    )
