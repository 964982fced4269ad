"""Elementwise kernels: one thread per element or vector; for reductions see `row_reduction`, `partial_column_sums`."""

from __future__ import annotations

from wholestep.compiler.backends.gpu.kernel_schedule import Form
from wholestep.compiler.backends.gpu.render.partial_column_sums import render_sums
from wholestep.compiler.backends.gpu.render.row_reduction import render_rows
from wholestep.compiler.backends.gpu.render.vectorize import VectorizedLevel
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.plan.model.bodies import Nest


def render_nest(w: GpuWriter) -> None:
    nest = w.kernel.body
    assert isinstance(nest, Nest)
    if w.schedule.form == Form.ELEMENTS:
        render_elements(w, nest)
    elif w.schedule.form == Form.SUMS:
        render_sums(w, nest)
    else:
        render_rows(w, nest)


def over_elements(w: GpuWriter, axes: tuple[int, ...]) -> str:
    """Head of a grid-stride loop over all points of some axes."""
    w.emit(f"const {w.int} total = {w.count(axes)};")
    first, stride = f"({w.int})blockIdx.x*blockDim.x + threadIdx.x", f"({w.int})gridDim.x*blockDim.x"
    return f"for ({w.int} at = {first}; at < total; at += {stride})"


def render_elements(w: GpuWriter, nest: Nest) -> None:
    """No reductions: values that are constant per row are computed by every element."""
    count, inner = w.schedule.vector, () if nest.vector is None else (nest.vector,)
    if count > 1:
        render_packs(w, nest, count)
        return
    with w.block(over_elements(w, (*nest.rows, *inner))):
        w.decompose("at", (*nest.rows, *inner))
        for level in nest.levels:
            w.instructions(level.row)
            if level.row_stores:
                with w.block("" if nest.vector is None else f"if (i{nest.vector} == 0)"):
                    w.stores(level.row_stores)
            w.pass_over(level)


def render_packs(w: GpuWriter, nest: Nest, count: int) -> None:
    """One vector per thread, which loads all operands before the first store."""
    assert nest.vector is not None
    assert len(nest.levels) == 1
    length = w.kernel.axes[nest.vector]
    assert isinstance(length, int), "vectors have a static length"
    (level,), across = nest.levels, str(-(-length // count))
    w.emit(f"const {w.int} total = {w.count(nest.rows)} * {across};")
    first, stride = f"({w.int})blockIdx.x*blockDim.x + threadIdx.x", f"({w.int})gridDim.x*blockDim.x"
    with w.block(f"for ({w.int} at = {first}; at < total; at += {stride})"):
        if w.schedule.order:
            decompose_in_order(w, nest.vector, count, across)
        else:
            w.emit(f"const {w.int} base = at % {across} * {count}, row = at / {across};")
            w.decompose("row", nest.rows)
        w.instructions(level.row)
        if level.row_stores:
            with w.block("if (base == 0)"):
                w.stores(level.row_stores)
        VectorizedLevel(w, nest.vector, count).render(level)


def decompose_in_order(w: GpuWriter, vector: int, count: int, across: str) -> None:
    """The indices of a thread where consecutive threads run along other axes than vectors (`grids/thread_order.py`)."""
    rest = "at"
    for axis in reversed(w.schedule.order):
        extent = across if axis == vector else w.axis_extent(axis)
        index = f"base = {rest} % {extent} * {count}" if axis == vector else f"i{axis} = {rest} % {extent}"
        w.emit(f"const {w.int} {index}, n{axis} = {rest} / {extent};")
        rest = f"n{axis}"
