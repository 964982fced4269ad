"""Products that a library makes: which ones, and what it is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wholestep.compiler.backends.cuda.target import library_flops, uses_tf32
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.ir.types import DType, Extent, evaluate, float32, product
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load, Plan

MOST_CALLS = 64  # of one product
WORKSPACE = 32 << 20  # bytes that the library may use, where tiles of the result are not many by themselves
MANY_TILES = 128 << 20  # bytes of such a result


@dataclass(frozen=True)
class GemmOperand:
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
    a: GemmOperand
    b: GemmOperand
    c: GemmOperand
    outer: int = 1
    bias: GemmOperand | None = None  # a row that is added to every row
    workspace: int = WORKSPACE  # bytes that the library may use
    adds: bool = False  # is the product added to what is there?
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


def lies_in_fours(load: Load, axis: int) -> bool:
    """Do four elements along an axis lie side by side, where four begin?"""
    return lies_in(load, axis, 4)


def lies_in(load: Load, axis: int, count: int) -> bool:
    """Do so many elements along an axis lie side by side, where so many begin?"""
    strides = [product(load.shape[d + 1 :]) for d in range(len(load.index))]
    found = 0
    for i, stride in zip(load.index, strides, strict=True):
        if i.value is not None or i.over != 1 or not is_multiple(i.offset * stride, count):
            return False
        for a, c in i.terms:
            if a == axis:
                found += 1
                if c * stride != 1:
                    return False
            elif not is_multiple(c * stride, count):
                return False
    return found == 1


def in_fours(extent: Extent) -> bool:
    """Is it a multiple of four, whatever the sizes are?"""
    return is_multiple(extent, 4)


def is_multiple(extent: Extent, of: int) -> bool:
    """Is a size a multiple of a number, whatever its symbols are?"""
    if isinstance(extent, int):
        return extent % of == 0
    return all(coefficient % of == 0 for _, coefficient in extent.terms)


def is_direct(plan: Draft, dot: Dot) -> bool:
    """Does the library write the result where it belongs?  Else a kernel of ours takes it from scratch memory."""
    level = dot.levels[0]
    rest = level.body[1:]  # behind the product itself
    if level.row or level.reduces or len(level.stores) != 1:
        return False
    (store,) = level.stores
    rounds = bool(rest) and rest[-1].op == "cast" and rest[-1].dtype.is_half and store.value == rest[-1].id
    if rest and not (rounds and (len(rest) == 1 or bias_of(dot) is not None)) and not adds_up(dot):
        return False
    return stride_of(store.load, dot.n) == 1 and all(i.value is None and i.over == 1 for i in store.load.index)


def adds_up(dot: Dot) -> bool:
    """Is a product added to what lies where it is stored, and nothing else?"""
    level = dot.levels[0]
    if [i.op for i in level.body] != ["acc", "load", "add"] or len(level.stores) != 1:
        return False
    acc, held, both = level.body
    same = held.load == level.stores[0].load and not held.guards and held.dtype == acc.dtype
    return same and set(both.args) == {acc.id, held.id} and level.stores[0].value == both.id


def bias_of(dot: Dot) -> Load | None:
    """The row that is added to every row of a product before it is rounded, where that is all that follows.

    The library wants it in the type of the result.
    """
    if [i.op for i in dot.levels[0].body] != ["acc", "load", "cast", "add", "cast"]:
        return None
    acc, row, wide, added, rounded = dot.levels[0].body
    assert row.load is not None
    along = [a for i in row.load.index for a, _ in i.terms] == [dot.n] and stride_of(row.load, dot.n) == 1
    chained = wide.args == (row.id,) and set(added.args) == {acc.id, wide.id} and rounded.args == (added.id,)
    plain = not row.guards and all(i.value is None and i.over == 1 for i in row.load.index)
    return row.load if along and chained and plain and row.dtype == rounded.dtype else None


def least_flops(target: str) -> dict[str, int]:
    """By dtype of the operands: from how many on a product is the library's."""
    return dict(library_flops(target))


def takes(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Is it a product for the library?"""
    dot = kernel.body
    assert isinstance(dot, Dot)
    dtype, least = plan.buffers[dot.a.buffer].type.dtype, least_flops(plan.target)
    if kernel.loop is not None or dtype.name not in least or len(dot.batch) > 2:
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
    return all(contiguous) and flops >= least[dtype.name]


def workspace_of(bytes: int) -> int:
    """What the library may use for a result of so many bytes: k need not be cut where tiles are many."""
    return 0 if bytes >= MANY_TILES else WORKSPACE


def product_of(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> Product:
    """A product in a call of these sizes."""
    dot = kernel.body
    assert isinstance(dot, Dot)
    m, n, k = (evaluate(kernel.axes[a], sizes) for a in (dot.m, dot.n, dot.k))
    batch = evaluate(kernel.axes[dot.batch[-1]], sizes) if dot.batch else 1
    outer = evaluate(kernel.axes[dot.batch[0]], sizes) if len(dot.batch) == 2 else 1

    def matrix(load: Load, row: int, column: int) -> GemmOperand:
        def number(extent: Extent) -> int:
            return evaluate(extent, sizes)

        step = number(stride_of(load, dot.batch[-1])) if dot.batch else 0
        call = number(stride_of(load, dot.batch[0])) if outer > 1 else 0
        dtype = plan.buffers[load.buffer].type.dtype
        strides = number(stride_of(load, row)), number(stride_of(load, column))
        return GemmOperand(load.buffer, dtype, number(start_of(load)), *strides, step, call)

    bias = None
    if is_direct(plan, dot):
        row = bias_of(dot)
        bias = None if row is None else matrix(row, dot.m, dot.n)
        c = matrix(dot.levels[0].stores[0].load, dot.m, dot.n)
    else:
        dtype = next(i.dtype for i in dot.levels[0].body if i.op == "acc")
        c = GemmOperand(-1, dtype, 0, n, 1, m * n, batch * m * n)
    a, b = matrix(dot.a, dot.m, dot.k), matrix(dot.b, dot.k, dot.n)
    tf32 = a.dtype == float32 and uses_tf32(plan.target)
    return Product(m, n, k, batch, a, b, c, outer, bias, schedule_of(kernel).workspace, adds_up(dot), tf32)
