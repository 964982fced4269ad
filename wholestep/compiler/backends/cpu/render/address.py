"""Offsets of loads and stores in the CPU's memory layouts (rows, panels, pairs), and the strides of an axis."""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compiler.backends.common.cstyle.writer import CStyleWriter
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.ir.types import Extent, product
from wholestep.compiler.plan.model.kernel import Buffer, Layout, Load


def panel_terms(w: CStyleWriter, load: Load, panels: Mapping[int, tuple[str, str]]) -> list[str]:
    """Terms of the offset in panels; `panels` maps axes iterated in panels to the texts of (axis / 16, axis % 16)."""
    *lead, rows, columns = load.shape
    panel = rows * LANES
    assert isinstance(columns, int)
    out: list[str] = []
    matrix = panel * -(-columns // LANES)
    for d, i in enumerate(load.index[:-2]):
        out += w.index(i, load.shape[d], product(lead[d + 1 :]) * matrix)
    out += w.index(load.index[-2], rows, LANES)
    column = load.index[-1]
    if column.plain is not None and column.plain in panels:
        p, lane = panels[column.plain]
        return [*out, w.times(p, panel), lane]
    c = " + ".join(w.index(column, columns))
    if not c:
        return out
    return [*out, w.times(f"(({c})/{LANES})", panel), f"(({c})%{LANES})"]


def pair_terms(w: CStyleWriter, load: Load) -> list[str]:
    """The terms of an element's offset in a matrix of panels whose rows are interleaved in pairs."""
    rows, columns = load.shape
    assert isinstance(rows, int), f"a matrix in pairs has a constant number of rows, not {rows}"
    assert isinstance(columns, int), f"a matrix in pairs has a constant number of columns, not {columns}"
    row, column = (" + ".join(w.index(i, e)) or "0" for i, e in zip(load.index, load.shape, strict=True))
    return [
        f"(({column})/{LANES})*{-(-rows // 2) * 2 * LANES}",
        f"(({row})/2)*{2 * LANES}",
        f"(({column})%{LANES})*2",
        f"(({row})%2)",
    ]


def axis_stride(load: Load, axis: int, buffer: Buffer) -> tuple[Extent, bool]:
    """(stride of an axis in elements, is the axis divided into panels) of an operand."""
    if buffer.layout == Layout.ROWS:
        stride: Extent = 0
        for d, i in enumerate(load.index):
            for a, c in i.terms:
                if a == axis:
                    stride = stride + c * product(load.shape[d + 1 :])
        return stride, False
    *lead, rows, columns = load.shape
    if load.index[-1].plain == axis:
        return 1, True
    assert isinstance(columns, int)
    matrix = rows * LANES * -(-columns // LANES)
    stride = 0
    for d, i in enumerate(load.index[:-1]):
        unit: Extent = LANES if d == len(load.index) - 2 else product(lead[d + 1 :]) * matrix
        for a, c in i.terms:
            if a == axis:
                stride = stride + c * unit
    for a, c in load.index[-1].terms:  # a multiple of complete panels, or the columns of one
        if a == axis:
            if c == 1:
                return 1, True
            assert isinstance(c, int), f"the stride {c} in columns is not a constant"
            assert c % LANES == 0, f"the stride {c} in columns is not a multiple of the panel width"
            stride = stride + c * rows
    return stride, False
