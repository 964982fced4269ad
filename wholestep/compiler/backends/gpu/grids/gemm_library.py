"""GEMMs of a vendor's library: which products it computes, and the record that describes a call.

As in cuBLASLt and hipBLASLt, a call has one batch axis, row or column strides, a bias epilogue, and may accumulate into
the result (beta = 1).  `Fusion.plain_products` of the target is the number of FLOPs from which the library is faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.gpu.strides import is_affine, start_of, stride_of
from wholestep.compiler.backends.gpu.target import costs_of, gpu_target, target_of
from wholestep.compiler.ir.types import DType, Extent, evaluate, float32
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load


@dataclass(frozen=True)
class GemmOperand:
    """A matrix in memory: offset and strides in elements; rows or columns are contiguous."""

    buffer: int
    dtype: DType
    offset: int
    row: int  # stride between rows
    column: int  # stride between columns
    batch: int  # stride between matrices
    outer: int = 0  # stride between calls


@dataclass(frozen=True)
class Product:
    """c[batch, m, n] = a[batch, m, k] b[batch, k, n], called `outer` times: the library has one batch axis."""

    m: int
    n: int
    k: int
    batch: int
    a: GemmOperand
    b: GemmOperand
    c: GemmOperand
    outer: int = 1
    bias: GemmOperand | None = None  # a row that is added to every row
    workspace: int = 0  # bytes that the library may use
    adds: bool = False  # does the product accumulate into c (beta = 1)?
    tf32: bool = False  # are float32 operands rounded to tf32, without their last 13 bits?


def is_direct(plan: Draft, dot: Dot) -> bool:
    """Does the library write the final result?  Otherwise our epilogue kernel reads it from scratch memory."""
    level = dot.levels[0]
    rest = level.body[1:]  # after the product itself
    if level.row or level.reduces or len(level.stores) != 1:
        return False
    (store,) = level.stores
    rounds = bool(rest) and rest[-1].op == "cast" and rest[-1].dtype.is_half and store.value == rest[-1].id
    rounds = rounds and plan.buffers[dot.a.buffer].type.dtype.is_half  # the library rounds no product of float32
    if rest and not (rounds and (len(rest) == 1 or bias_of(dot) is not None)) and not accumulates_in_place(dot):
        return False
    return stride_of(store.load, dot.n) == 1 and is_affine(store.load)


def accumulates_in_place(dot: Dot) -> bool:
    """Is a product accumulated into its destination, with no other epilogue?"""
    level = dot.levels[0]
    if [i.op for i in level.body] != ["acc", "load", "add"] or len(level.stores) != 1:
        return False
    acc, previous, total = level.body
    same = previous.load == level.stores[0].load and not previous.guards and previous.dtype == acc.dtype
    return same and set(total.args) == {acc.id, previous.id} and level.stores[0].value == total.id


def bias_of(dot: Dot) -> Load | None:
    """The bias row of a product whose epilogue only adds this row and rounds; else None.

    The library requires it in the type of the result.
    """
    if [i.op for i in dot.levels[0].body] != ["acc", "load", "cast", "add", "cast"]:
        return None
    acc, row, wide, added, rounded = dot.levels[0].body
    assert row.load is not None
    is_row = [a for i in row.load.index for a, _ in i.terms] == [dot.n] and stride_of(row.load, dot.n) == 1
    is_sequence = wide.args == (row.id,) and set(added.args) == {acc.id, wide.id} and rounded.args == (added.id,)
    is_plain = not row.guards and is_affine(row.load)
    return row.load if is_row and is_sequence and is_plain and row.dtype == rounded.dtype else None


def least_flops(target: str) -> dict[str, int]:
    """Operand dtype -> the smallest number of FLOPs for which a library computes the product."""
    return dict(gpu_target(target).fusion.plain_products)


def is_library_gemm(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Is the kernel a product that the library computes?"""
    dot = kernel.body
    assert isinstance(dot, Dot)
    dtype, least = plan.buffers[dot.a.buffer].type.dtype, least_flops(plan.target)
    if dtype.name not in least or len(dot.batch) > 2:
        return False
    calls, matrices = batch_axes(kernel, sizes)
    if calls is not None and evaluate(kernel.axes[calls], sizes) > costs_of(plan).gemm.library_calls:
        return False
    if plan.buffers[dot.b.buffer].type.dtype != dtype or len(dot.levels) > 1:
        return False
    contiguous = [1 in (stride_of(x, dot.k), stride_of(x, other)) for x, other in ((dot.a, dot.m), (dot.b, dot.n))]
    axes = (*(() if matrices is None else (matrices,)), dot.m, dot.n, dot.k)
    flops = 2 * prod(evaluate(kernel.axes[a], sizes) for a in axes)
    enough = least[dtype.name] if kernel.loop is None else max(least[dtype.name], costs_of(plan).gemm.loop_flops)
    return all(contiguous) and flops >= enough


def batch_axes(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[int | None, int | None]:
    """The batch axis that becomes separate calls, and the batch axis of a call: the longer one if there are two."""
    dot = kernel.body
    assert isinstance(dot, Dot)
    by_length = sorted(dot.batch, key=lambda a: evaluate(kernel.axes[a], sizes))
    return (by_length[0] if len(by_length) == 2 else None), (by_length[-1] if by_length else None)


def workspace_of(plan: Draft, bytes: int) -> int:
    """Workspace bytes for a result of this many bytes: with many tiles split-K is not needed."""
    costs = costs_of(plan).gemm
    return 0 if bytes >= costs.untiled_result else costs.library_workspace


def sizes_of_iteration(plan: Draft, kernel: Kernel, sizes: Mapping[str, int], iteration: int) -> Mapping[str, int]:
    """The sizes of a call with the iteration number of the kernel's loop; none after the last iteration."""
    if kernel.loop is None:
        return sizes
    loop = plan.loops[kernel.loop]
    length = evaluate(loop.length, sizes)
    if iteration >= length:
        return {}
    return {**sizes, loop.symbol: length - 1 - iteration if loop.reverse else iteration}


def product_of(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> Product:
    """The library product of a kernel at these sizes."""
    dot = kernel.body
    assert isinstance(dot, Dot)
    m, n, k = (evaluate(kernel.axes[a], sizes) for a in (dot.m, dot.n, dot.k))
    calls, matrices = batch_axes(kernel, sizes)
    outer, batch = (1 if axis is None else evaluate(kernel.axes[axis], sizes) for axis in (calls, matrices))

    def matrix(load: Load, row: int, column: int) -> GemmOperand:
        def number(extent: Extent) -> int:
            return evaluate(extent, sizes)

        step, call = (0 if axis is None else number(stride_of(load, axis)) for axis in (matrices, calls))
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
        steps = (m * n, batch * m * n) if calls is None or calls < (matrices or 0) else (outer * m * n, m * n)
        c = GemmOperand(-1, dtype, 0, n, 1, *steps)
    a, b = matrix(dot.a, dot.m, dot.k), matrix(dot.b, dot.k, dot.n)
    tf32 = a.dtype == float32 and target_of(plan).tf32
    return Product(m, n, k, batch, a, b, c, outer, bias, schedule_of(kernel).workspace, accumulates_in_place(dot), tf32)
