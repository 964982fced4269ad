"""One function per kind of kernel body: plan data -> NumPy operations on complete arrays.

The backward pass of attention recomputes the weights from log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wholestep.compiler.backends.common.numpy_program import LaunchMemory
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
    """A collective with a single rank: copy the operand to the result."""
    for i, (source, to) in enumerate(zip(exchange.operands, exchange.results, strict=True)):
        values.put(to, (len(exchange.operands) + i,), values.over(source, (i,)))


Operands = Mapping[str, Array]
GROUPED = ("q", "mask", "lse", "gradient", "out", "dq", "dmask")  # operands with one array per head that shares keys


def run_call(call: Call, values: Values) -> None:
    """Run a routine over all of its rows at once.  After the rows, operands have an axis of heads that share keys."""
    rows, dtype, operands = call.rows, accumulator(call.dtype), {}
    for item in call.operands:
        value = values.over(item.load, (*rows, *item.axes)).astype(dtype)
        operands[item.name] = value if item.name in GROUPED else np.expand_dims(value, len(rows))
    results = ROUTINES[call.routine](call, operands)
    for item in call.results:
        result = results[item.name] if item.name in GROUPED else results[item.name].sum(axis=len(rows))
        values.put(item.load, (*rows, *item.axes), result)


def operand(call: Call, x: Array) -> Array:
    """A factor of a product: rounded to the operands' dtype if that is a half type."""
    return x.astype(call.dtype.numpy).astype(x.dtype) if call.dtype.is_half else x


def scores(call: Call, operands: Operands) -> Array:
    """The scores of every query with every key; -inf for keys that are masked out."""
    products = dict(call.numbers)["scale"] * (operands["q"] @ operands["k"].swapaxes(-1, -2))
    if "mask" in operands:
        products = products + operands["mask"]
    return np.where(np.tri(*products.shape[-2:]) > 0, products, -np.inf) if dict(call.extents)["causal"] else products


def attention(call: Call, operands: Operands) -> Operands:
    """A query without any visible key has weights of 0, and +inf as its log-sum-exp."""
    logits = scores(call, operands)
    row_max = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    row_max = np.where(row_max == -np.inf, 0.0, row_max)
    weights = np.exp(logits - row_max)
    total = weights.sum(axis=-1, keepdims=True)
    lse = np.where(total == 0, np.inf, row_max + np.log(np.where(total == 0, 1.0, total)))
    return {"out": operand(call, weights / np.where(total == 0, 1.0, total)) @ operands["v"], "lse": lse[..., 0]}


def attention_grad(call: Call, operands: Operands) -> Operands:
    scale, upstream = dict(call.numbers)["scale"], operands["gradient"]
    weights = np.exp(scores(call, operands) - operands["lse"][..., None])
    grad_weights = upstream @ operands["v"].swapaxes(-1, -2)
    inner = weights * (grad_weights - (weights * grad_weights).sum(axis=-1, keepdims=True))
    scaled = operand(call, scale * inner)
    return {
        "dq": scaled @ operands["k"],
        "dk": scaled.swapaxes(-1, -2) @ operands["q"],
        "dv": operand(call, weights).swapaxes(-1, -2) @ upstream,
        "dmask": inner,
    }


ROUTINES: Mapping[str, Callable[[Call, Operands], Operands]] = {
    "attention": attention,
    "attention_grad": attention_grad,
}


RUN: Mapping[type, Callable[[Any, Values], None]] = {
    Nest: run_nest,
    Columns: run_columns,
    Dot: run_dot,
    Scatter: run_scatter,
    Call: run_call,
    Exchange: run_exchange,
    Window: run_window,
}
