"""Kernels of a chain: a block has one row, whose number is the block's own."""

from __future__ import annotations

from wholestep.compiler.backends.cuda.chains import row_axis
from wholestep.compiler.backends.cuda.products import stride_of
from wholestep.compiler.backends.cuda.render.language import STORED, widened
from wholestep.compiler.backends.cuda.render.nests import carry, render_row
from wholestep.compiler.backends.cuda.render.products import DEPTH, accumulator
from wholestep.compiler.backends.cuda.render.writer import Writer
from wholestep.compiler.backends.cuda.scheduled import ELEMENTS
from wholestep.compiler.plan.bodies import Dot, Nest
from wholestep.compiler.plan.kernel import Load

GROUPS = 8  # of threads that share k, as in a tile


def render_chained(w: Writer) -> None:
    """The row of a kernel that a block has."""
    axis = row_axis(w.kernel)
    assert axis is not None
    w.emit(f"const {w.int} i{axis} = blockIdx.x;")
    w.emit(f"if (i{axis} >= {w.axis_extent(axis)}) return;")
    if isinstance(w.kernel.body, Dot):
        render_row_product(w, w.kernel.body)
    elif w.schedule.form == ELEMENTS:
        render_elements_of_row(w, w.kernel.body)
    else:
        render_rows_of_row(w, w.kernel.body)


def render_elements_of_row(w: Writer, nest: object) -> None:
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


def render_rows_of_row(w: Writer, nest: object) -> None:
    """Its other axes are dealt to the warps, or it has all threads."""
    assert isinstance(nest, Nest)
    width, workers = w.schedule.width, w.schedule.threads // w.schedule.width
    w.emit(f"const int lane = threadIdx.x % {width}, worker = threadIdx.x / {width};")
    carry(w, workers)
    with w.block(f"for (int at = worker; at < {w.count(nest.rows[1:])}; at += {workers})"):
        w.decompose("at", nest.rows[1:])
        for level in nest.levels:
            w.instructions(level.row)
            if level.row_stores:
                with w.block("if (lane == 0)"):
                    w.stores(level.row_stores)
            render_row(w, nest, level)


def render_row_product(w: Writer, dot: Dot) -> None:
    """A row of a product: `ws_row_product` of native/product.h."""
    (level,) = dot.levels
    acc = next(i for i in level.body if i.op == "acc")
    n, depth = w.kernel.axes[dot.n], w.kernel.axes[dot.k]
    assert isinstance(n, int), "it can be rows"
    assert isinstance(depth, int), "it can be rows"
    dtype = accumulator(w.buffer_dtype(dot.a))
    type, chunk = STORED[dtype], w.schedule.chunk or depth
    groups = GROUPS if depth > DEPTH else 1
    wide, chunks = w.schedule.threads // groups, -(-depth // chunk)
    w.axes |= {dot.n: "j", dot.k: "k"}

    def read(load: Load) -> str:
        return f"return {widened(w.element(load), w.buffer_dtype(load), dtype)};"

    along = "true" if stride_of(dot.b, dot.k) == 1 else "false"
    w.emit(f"__shared__ __align__(16) {type} parts[{chunks * groups * wide}];")
    w.emit(f"ws_row_product<{type}, {groups}, {wide}, {DEPTH}, {depth}, {chunk}, {along}>(")
    w.emit(f"    parts, {n},")
    w.depth += 1
    for head, line in (("[&](int k)", read(dot.a)), ("[&](int k, int j)", read(dot.b))):
        with w.block(f"{head} -> {type}", "},"):
            w.emit(line)
    with w.block(f"[&](int j, {type} v{acc.id})", "});"):
        w.instructions((*level.row, *level.body))
        w.stores((*level.row_stores, *level.stores))
    w.depth -= 1
