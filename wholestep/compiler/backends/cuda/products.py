"""Products that a library makes: which ones, and what it is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wholestep.compiler.backends.cuda.target import uses_tf32
from wholestep.compiler.ir.types import DType, Extent, bfloat16, evaluate, float16, float32, product
from wholestep.compiler.plan.bodies import Dot
from wholestep.compiler.plan.kernel import Kernel, Load, Plan

# Floating-point operations from which on a library's product beats ours: it has the better tiles, we have no wait.
LEAST_FLOPS = {float32: 60_000_000, bfloat16: 16_000_000, float16: 16_000_000}
LEAST_TF32 = 16_000_000  # the same of float32 numbers that multiply in tf32, which ours never do
MOST_CALLS = 64  # of one product
WORKSPACE = 32 << 20  # bytes that the library may use


@dataclass(frozen=True)
class Matrix:
    """Where an operand or the result is, in elements: rows or columns are contiguous."""

    buffer: int
    dtype: DType
    offset: int
    row: int  # from one row to the next
    column: int  # from one column to the next
    batch: int  # from one matrix to the next
    outer: int = 0  # from one call to the next


@dataclass(frozen=True)
class Product:
    """c[batch, m, n] = a[batch, m, k] b[batch, k, n], so many times: the library knows one axis of matrices."""

    m: int
    n: int
    k: int
    batch: int
    a: Matrix
    b: Matrix
    c: Matrix
    outer: int = 1
    tf32: bool = False  # do float32 numbers lose their last 13 bits before they are multiplied?


def stride_of(load: Load, axis: int) -> Extent:
    """From one element along an axis to the next."""
    stride: Extent = 0
    for d, i in enumerate(load.index):
        for a, c in i.terms:
            if a == axis:
                stride = stride + c * product(load.shape[d + 1 :])
    return stride


def start_of(load: Load) -> Extent:
    """The element where all axes begin."""
    start: Extent = 0
    for d, i in enumerate(load.index):
        start = start + i.offset * product(load.shape[d + 1 :])
    return start


def is_direct(plan: Plan, dot: Dot) -> bool:
    """Does the library write the result where it belongs?  Else a kernel of ours takes it from scratch memory."""
    if not dot.is_direct or dot.levels[0].reduces:
        return False
    (store,) = dot.levels[0].stores
    return stride_of(store.load, dot.n) == 1 and all(i.value is None and i.over == 1 for i in store.load.index)


def takes(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Is it a product for the library?"""
    dot = kernel.body
    assert isinstance(dot, Dot)
    dtype = plan.buffers[dot.a.buffer].type.dtype
    if kernel.loop is not None or dtype not in LEAST_FLOPS or len(dot.batch) > 2:
        return False
    if len(dot.batch) == 2 and evaluate(kernel.axes[dot.batch[0]], sizes) > MOST_CALLS:
        return False
    if plan.buffers[dot.b.buffer].type.dtype != dtype or len(dot.levels) > 1:
        return False
    contiguous = [1 in (stride_of(x, dot.k), stride_of(x, other)) for x, other in ((dot.a, dot.m), (dot.b, dot.n))]
    extents = [evaluate(kernel.axes[a], sizes) for a in (*dot.batch[-1:], dot.m, dot.n, dot.k)]
    flops = 2
    for extent in extents:
        flops *= extent
    return all(contiguous) and flops >= _least_flops(plan, dtype)


def _least_flops(plan: Plan, dtype: DType) -> int:
    least = LEAST_FLOPS[dtype]
    return min(least, LEAST_TF32) if dtype == float32 and uses_tf32(plan.target) else least


def product_of(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> Product:
    """A product in a call of these sizes."""
    dot = kernel.body
    assert isinstance(dot, Dot)
    m, n, k = (evaluate(kernel.axes[a], sizes) for a in (dot.m, dot.n, dot.k))
    batch = evaluate(kernel.axes[dot.batch[-1]], sizes) if dot.batch else 1
    outer = evaluate(kernel.axes[dot.batch[0]], sizes) if len(dot.batch) == 2 else 1

    def matrix(load: Load, row: int, column: int) -> Matrix:
        def number(extent: Extent) -> int:
            return evaluate(extent, sizes)

        step = number(stride_of(load, dot.batch[-1])) if dot.batch else 0
        call = number(stride_of(load, dot.batch[0])) if outer > 1 else 0
        dtype = plan.buffers[load.buffer].type.dtype
        strides = number(stride_of(load, row)), number(stride_of(load, column))
        return Matrix(load.buffer, dtype, number(start_of(load)), *strides, step, call)

    if is_direct(plan, dot):
        c = matrix(dot.levels[0].stores[0].load, dot.m, dot.n)
    else:
        dtype = next(i.dtype for i in dot.levels[0].body if i.op == "acc")
        c = Matrix(-1, dtype, 0, n, 1, m * n, batch * m * n)
    a, b = matrix(dot.a, dot.m, dot.k), matrix(dot.b, dot.k, dot.n)
    return Product(m, n, k, batch, a, b, c, outer, a.dtype == float32 and uses_tf32(plan.target))
