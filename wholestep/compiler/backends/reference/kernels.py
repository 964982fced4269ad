"""One function per kind of kernel body: plan data -> NumPy operations on complete arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wholestep.compiler.backends.common.numpy_program import LaunchMemory
from wholestep.compiler.backends.reference.calls import run_call
from wholestep.compiler.backends.reference.convolution import run_window
from wholestep.compiler.backends.reference.values import Array, Values, accumulator
from wholestep.compiler.plan.model.bodies import Call, Columns, Dot, Exchange, Nest, Scatter, Window
from wholestep.compiler.plan.model.kernel import Kernel, Level


def run_kernel(kernel: Kernel, memory: LaunchMemory) -> None:
    """Run a kernel to completion."""
    written = frozenset(load.buffer for load in kernel.body.stores())
    RUN[type(kernel.body)](kernel.body, Values(memory, kernel.axes, written))


def run_nest(nest: Nest, values: Values) -> None:
    """Levels in order: instructions once per row, then a pass over the vector axis, then its reductions."""
    for level in nest.levels:
        values.run(level.row, level.row_stores)
        values.run(level.body, level.stores)
        for reduce in level.reduces:
            assert nest.vector is not None, "a reduction is along the vector axis"
            values.reduce(reduce, nest.vector)


def run_columns(columns: Columns, values: Values) -> None:
    sums, epilogue = columns.levels
    reduce_columns(sums, epilogue, columns.reduced, values)


def reduce_columns(sums: Level, epilogue: Level, along: int, values: Values) -> None:
    """Reductions along an outer axis, then their epilogue."""
    values.run(sums.body)
    for reduce in sums.reduces:
        values.reduce(reduce, along)
    values.run(epilogue.body, epilogue.stores)


def run_dot(dot: Dot, values: Values) -> None:
    """The product, its epilogue, and the column sums of the right operand, if the kernel has them."""
    level, *columns = dot.levels
    (acc,) = (i for i in level.body if i.op == "acc")
    values.computed[acc.id] = contract(dot, values).astype(acc.dtype.numpy)
    values.run(level.body, level.stores)
    if columns:
        sums, epilogue = columns
        reduce_columns(sums, epilogue, dot.k, values)


def contract(dot: Dot, values: Values) -> Array:
    """[batch.., m, n, 1]: the sum over k of a * b."""
    dtype = accumulator(values.memory.plan.buffers[dot.a.buffer].type.dtype)
    a = values.over(dot.a, (*dot.batch, dot.m, dot.k)).astype(dtype)
    b = values.over(dot.b, (*dot.batch, dot.k, dot.n)).astype(dtype)
    product: Array = np.matmul(a, b)
    return product[..., None]


def run_scatter(scatter: Scatter, values: Values) -> None:
    """Zero the target, then add every update in order."""
    target, memory = scatter.target, values.memory
    shape = memory.shape(target.shape)
    result = memory.arrays[target.buffer][: int(np.prod(shape))].reshape(shape)
    indices: list[Array] = [values.index(i) for i in target.index]
    all_positions = np.arange(shape[scatter.at]).reshape([1] * len(values.extents) + [-1])
    result[tuple(all_positions if d == scatter.at else p[..., None] for d, p in enumerate(indices))] = 0
    indices[scatter.at] = np.clip(values.read(scatter.index).astype(np.int64), 0, shape[scatter.at] - 1)
    updates = np.broadcast_to(values.read(scatter.updates), values.extents)
    np.add.at(result, tuple(np.broadcast_to(p, values.extents) for p in indices), updates)


def run_exchange(exchange: Exchange, values: Values) -> None:
    """A collective of a single rank: the result is the operand."""
    for i, (source, to) in enumerate(zip(exchange.operands, exchange.results, strict=True)):
        values.put(to, (len(exchange.operands) + i,), values.over(source, (i,)))


RUN: Mapping[type, Callable[[Any, Values], None]] = {
    Nest: run_nest,
    Columns: run_columns,
    Dot: run_dot,
    Scatter: run_scatter,
    Call: run_call,
    Exchange: run_exchange,
    Window: run_window,
}
