"""Address computation: offsets of loads and stores as C expressions, for rows, panels and pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PAIRS, PANELS
from wholestep.compiler.backends.cpu.render.language import extent_text
from wholestep.compiler.ir.types import Extent, product
from wholestep.compiler.plan.model.kernel import Buffer, Index, Layout, Load


@dataclass
class AxisScope:
    """The C expressions of a kernel's axes at some point of its loop nest.

    `panels` maps an axis that is iterated in panels to the expressions of (axis / 16, axis % 16); `written` maps values
    that are substituted where they are used, such as constants, to their expressions.
    """

    symbols: tuple[str, ...]
    axes: dict[int, str] = field(default_factory=dict)
    panels: dict[int, tuple[str, str]] = field(default_factory=dict)
    written: Mapping[int, str] = field(default_factory=dict)

    def extent(self, e: Extent) -> str:
        return extent_text(e, self.symbols)

    def times(self, text: str, stride: Extent) -> str:
        if stride == 1:
            return text
        return f"{text}*{self.extent(stride)}" if text != "0" else "0"

    def index(self, i: Index, extent: Extent, scale: Extent = 1) -> list[str]:
        """The terms of scale * index."""
        if i.over != 1:
            dividend = " + ".join(self.index(replace(i, over=1), extent)) or "0"
            return [self.times(f"(({dividend})/{i.over})", scale)]
        terms = [self.times(self.axes[a], c * scale) for a, c in i.terms]
        if i.offset != 0:
            terms.append(self.extent(i.offset * scale))
        if i.value is not None:
            value = self.written.get(i.value, f"v{i.value}")
            position = value if i.is_behind_start else f"ws_clamp({value}, {self.extent(extent - 1)})"
            terms.append(self.times(position, scale))
        return [t for t in terms if t != "0"]

    def offset(self, load: Load, buffer: Buffer) -> str:
        terms = TERMS[buffer.layout](self, load)
        return " + ".join(terms) or "0"

    def row_terms(self, load: Load) -> list[str]:
        out: list[str] = []
        for d, i in enumerate(load.index):
            out += self.index(i, load.shape[d], product(load.shape[d + 1 :]))
        return out

    def panel_terms(self, load: Load) -> list[str]:
        *lead, rows, columns = load.shape
        panel = rows * LANES
        assert isinstance(columns, int)
        out: list[str] = []
        matrix = panel * -(-columns // LANES)
        for d, i in enumerate(load.index[:-2]):
            out += self.index(i, load.shape[d], product(lead[d + 1 :]) * matrix)
        out += self.index(load.index[-2], rows, LANES)
        column = load.index[-1]
        if column.plain in self.panels:
            p, lane = self.panels[column.plain]
            return [*out, self.times(p, panel), lane]
        c = " + ".join(self.index(column, columns))
        if not c:
            return out
        return [*out, self.times(f"(({c})/{LANES})", panel), f"(({c})%{LANES})"]

    def pair_terms(self, load: Load) -> list[str]:
        """The offset in a matrix stored in pairs: panels with two rows interleaved."""
        rows, columns = load.shape
        assert isinstance(rows, int), f"a matrix in pairs has a constant number of rows, not {rows}"
        assert isinstance(columns, int), f"a matrix in pairs has a constant number of columns, not {columns}"
        row, column = (" + ".join(self.index(i, e)) or "0" for i, e in zip(load.index, load.shape, strict=True))
        return [
            f"(({column})/{LANES})*{-(-rows // 2) * 2 * LANES}",
            f"(({row})/2)*{2 * LANES}",
            f"(({column})%{LANES})*2",
            f"(({row})%2)",
        ]


TERMS: Mapping[Layout, Callable[[AxisScope, Load], list[str]]] = {
    Layout.ROWS: AxisScope.row_terms,
    PANELS: AxisScope.panel_terms,
    PAIRS: AxisScope.pair_terms,
}


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
