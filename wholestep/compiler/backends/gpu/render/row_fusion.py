"""Kernels of a row chain (vertical fusion): one block per row, whose index is the block index."""

from __future__ import annotations

from wholestep.compiler.backends.gpu.fusion.row_fusion import row_axis
from wholestep.compiler.backends.gpu.kernel_schedule import Form
from wholestep.compiler.backends.gpu.render.gemm import DEPTH, accumulator
from wholestep.compiler.backends.gpu.render.language import STORED, widen_operand
from wholestep.compiler.backends.gpu.render.row_reduction import RowLevels
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.strides import is_aligned_in, stride_of
from wholestep.compiler.plan.model.bodies import Dot, Nest

GROUPS, WIDE = 8, 32  # thread groups that split k and columns per iteration: `ws_row_product` of native/product.h


def render_row_chain(w: GpuWriter) -> None:
    """The block's row of one kernel of the chain."""
    axis = row_axis(w.kernel)
    assert axis is not None
    w.emit(f"const {w.int} i{axis} = blockIdx.x;")
    w.emit(f"if (i{axis} >= {w.axis_extent(axis)}) return;")
    if isinstance(w.kernel.body, Dot):
        render_row_product(w, w.kernel.body)
    elif w.schedule.form == Form.ELEMENTS:
        render_elements_of_row(w, w.kernel.body)
    else:
        render_rows_of_row(w, w.kernel.body)


def render_elements_of_row(w: GpuWriter, nest: object) -> None:
    assert isinstance(nest, Nest)
    axes = (*nest.rows[1:], *(() if nest.vector is None else (nest.vector,)))
    with w.block(f"for (int at = threadIdx.x; at < {w.count(axes)}; at += {w.schedule.threads})"):
        w.decompose("at", axes)
        for level in nest.levels:
            w.instructions(level.row)
            if level.row_stores:
                with w.block("" if nest.vector is None else f"if (i{nest.vector} == 0)"):
                    w.stores(level.row_stores)
            w.pass_over(level)


def render_rows_of_row(w: GpuWriter, nest: object) -> None:
    """The remaining row axes are distributed over the warps, or processed by all threads."""
    assert isinstance(nest, Nest)
    width, workers = w.schedule.width, w.schedule.threads // w.schedule.width
    w.emit(f"const int lane = threadIdx.x % {width}, worker = threadIdx.x / {width};")
    with w.block(f"for (int at = worker; at < {w.count(nest.rows[1:])}; at += {workers})"):
        w.decompose("at", nest.rows[1:])
        RowLevels(w, nest).render_all()


def render_row_product(w: GpuWriter, dot: Dot) -> None:
    """One row of a matrix product: `ws_row_product` of native/product.h."""
    (level,) = dot.levels
    acc = next(i for i in level.body if i.op == "acc")
    n, depth = w.kernel.axes[dot.n], w.kernel.axes[dot.k]
    assert isinstance(n, int), "`can_be_rows` has checked it"
    assert isinstance(depth, int), "`can_be_rows` has checked it"
    dtype = accumulator(w.buffer_dtype(dot.a))
    type, chunk, along = STORED[dtype], w.schedule.chunk or depth, stride_of(dot.b, dot.k) == 1
    w.axes |= {dot.n: "j", dot.k: "k"}
    if depth > DEPTH:
        pieces, fours = -(-depth // (GROUPS * DEPTH)), is_aligned_in(dot.b, dot.k if along else dot.n, 4)
        fours = fours and (depth if along else n) % 4 == 0
        tiles = 2 * (WIDE * (GROUPS * DEPTH + 4) if along else GROUPS * DEPTH * (WIDE + 4))
        parts = -(-depth // chunk) * GROUPS * WIDE
        w.emit(f"__shared__ __align__(16) {type} memory_of_row[{tiles + pieces * GROUPS * DEPTH + parts}];")
        flag, bytes = "true" if along else "false", 16 if fours else 4
        w.emit(f"ws_row_product<{type}, {n}, {DEPTH}, {depth}, {chunk}, {flag}, {bytes}>(")
        w.emit("    memory_of_row,")
    else:
        w.emit(f"ws_short_row_product<{type}, {n}, {depth}>(")
    w.depth += 1
    with w.block(f"[&](int k) -> {type}", "},"):
        w.emit(f"return {widen_operand(w.element(dot.a), w.buffer_dtype(dot.a), dtype)};")
    with w.block(f"[&](int k, int j) -> const {type} *", "},"):
        w.emit(f"return &{w.element(dot.b)};")
    with w.block(f"[&](int j, {type} v{acc.id})", "});"):
        w.instructions((*level.row, *level.body))
        w.stores((*level.row_stores, *level.stores))
    w.depth -= 1
