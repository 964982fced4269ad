"""Packing of convolution weights into panels: [panel][row][tap][channel][lane], one vector of output channels each."""

from __future__ import annotations

from contextlib import ExitStack

from wholestep.compiler.backends.cpu.convolution.padding import is_depthwise, panel_columns
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.backends.cpu.render.convolution.common import ChannelRun, WindowWriter


class Panels:
    """Output channels in panels, group by group; in depthwise convolutions panels extend across groups."""

    def __init__(self, groups: int, outputs: int, inner: int) -> None:
        self.groups, self.outputs, self.inner = groups, outputs, inner
        self.depthwise = is_depthwise(groups, outputs, inner)
        self.each = outputs if self.depthwise else outputs // groups  # channels that are divided into panels
        self.columns = panel_columns(groups, outputs, inner)
        self.loops = 1 if self.depthwise else groups
        self.count = -(-self.each // self.columns)

    def run(self) -> ChannelRun:
        """The channels of panel p of group q."""
        first, group = f"p*{self.columns}" if self.count > 1 else "0", f"q*{self.each}" if self.loops > 1 else "0"
        return ChannelRun(self.columns, self.each, first, group)


def enter_panels(pen: WindowWriter, stack: ExitStack, panels: Panels) -> None:
    if panels.loops > 1:
        stack.enter_context(pen.w.loop("q", "0", str(panels.loops)))
    if panels.count > 1:
        stack.enter_context(pen.w.loop("p", "0", str(panels.count)))


def pack(
    pen: WindowWriter, panels: Panels, taps: tuple[str, int, str, int], depth: int, offset: int, transposed: bool
) -> int:
    """Pack the given taps of the weight at `offset`; returns the elements of one panel.

    `transposed`: the result's channels are the weight's inputs, and the sums run over its outputs.
    """
    o, (y, x, c) = pen.output_step("weight"), pen.steps("weight")
    lane, deep = (c, o) if transposed else (o, c)
    rows, n_rows, columns, n_columns = taps
    size = panels.columns * n_rows * n_columns * depth
    if panels.depthwise:
        lane = o
    with ExitStack() as stack:
        from_group, to_group = "", ""
        if panels.loops > 1:
            stack.enter_context(pen.w.loop("q", "0", str(panels.loops)))
            step = depth * o if transposed else panels.each * o
            from_group, to_group = f" + q*{step}", f" + q*{panels.count * size}"
        source = f"{pen.at('weight')}{from_group}"
        few = "" if panels.columns == LANES and depth >= LANES else "few_"
        pen.call(
            *(f"ws_pack_{few}{pen.suffix}", f"packed + {offset}{to_group}", source, panels.each, panels.columns),
            *(n_rows, rows, n_columns, columns, depth, lane, y, x, deep),
        )
    return size


def packed_weight_address(panels: Panels, offset: int, size: int) -> str:
    terms = ["packed", str(offset)] if offset else ["packed"]
    terms += [f"q*{panels.count * size}"] * (panels.loops > 1) + [f"p*{size}"] * (panels.count > 1)
    return " + ".join(terms)
