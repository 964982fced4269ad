"""Convolutions and their adjoint in the image, row by row of the result; a pool may follow in the same kernel."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from wholestep.compiler.plan.frames import Taps, backward_taps, columns_of, forward_margin, runs
from wholestep.compiler.plan.kernel import POOL_AXES
from wholestep.compiler.render.images import Lanes, Pen, clear_frame, name_sources, pixels, stage
from wholestep.compiler.render.writer import Writer


class Panels:
    """Output channels in panels, group by group; where each group is one channel, panels go across groups."""

    def __init__(self, groups: int, outputs: int, inner: int) -> None:
        self.groups, self.outputs, self.inner = groups, outputs, inner
        self.depthwise = groups > 1 and outputs == groups and inner == 1
        self.each = outputs if self.depthwise else outputs // groups  # channels that panels divide
        self.columns = columns_of(self.each)
        self.loops = 1 if self.depthwise else groups
        self.count = -(-self.each // self.columns)

    def base(self) -> str:
        """The first channel of panel p of group q."""
        terms = [f"q*{self.each}"] * (self.loops > 1) + [f"p*{self.columns}"] * (self.count > 1)
        return " + ".join(terms) or "0"


def enter_panels(pen: Pen, stack: ExitStack, panels: Panels) -> None:
    if panels.loops > 1:
        stack.enter_context(pen.w.loop("q", "0", str(panels.loops)))
    if panels.count > 1:
        stack.enter_context(pen.w.loop("p", "0", str(panels.count)))


def pack(pen: Pen, panels: Panels, taps: tuple[str, int, str, int], depth: int, offset: int, turned: bool) -> int:
    """Pack the given taps of the weight at `offset`; gives the elements of one panel.

    `turned`: the result's channels are the weight's inputs, and it sums over its outputs.
    """
    o, y, x, c = pen.steps("weight")
    lane, deep = (c, o) if turned else (o, c)
    rows, n_rows, columns, n_columns = taps
    size = panels.columns * n_rows * n_columns * depth
    if panels.depthwise:
        lane = o
    with ExitStack() as stack:
        from_group, to_group = "", ""
        if panels.loops > 1:
            stack.enter_context(pen.w.loop("q", "0", str(panels.loops)))
            step = depth * o if turned else panels.each * o
            from_group, to_group = f" + q*{step}", f" + q*{panels.count * size}"
        source = f"{pen.at('weight')}{from_group}"
        pen.call(
            *(f"ws_pack_{pen.suffix}", f"packed + {offset}{to_group}", source, panels.each, panels.columns),
            *(n_rows, rows, n_columns, columns, depth, lane, y, x, deep),
        )
    return size


def packed_at(panels: Panels, offset: int, size: int) -> str:
    terms = ["packed", str(offset)] if offset else ["packed"]
    terms += [f"q*{panels.count * size}"] * (panels.loops > 1) + [f"p*{size}"] * (panels.count > 1)
    return " + ".join(terms)


def conv_row(pen: Pen, panels: Panels, count: int, out: str, step: int, x: str, walk: Sequence[int], w: str) -> None:
    """walk: step of pixels, rows, step of rows, then taps of a row, their distance in pixels, channels of the frame."""
    x_pixel, rows, x_row, taps, distance, channels = walk
    inner = channels if panels.loops == 1 and not panels.depthwise else channels // panels.groups
    of = runs(taps, distance, channels, inner)
    shift = f" + q*{inner}" * (panels.loops > 1)
    if panels.depthwise:
        across = f" + p*{panels.columns}" * (panels.count > 1)
        pen.call(
            *(f"ws_depth_row_{pen.tile(panels.columns)}", count, panels.columns, out, step, f"{x}{across}", x_pixel),
            *(rows, x_row, taps, distance * channels, w),
        )
        return
    pen.call(
        *(f"ws_conv_row_{pen.tile(panels.columns)}", count, panels.columns, out, step, f"{x}{shift}", x_pixel),
        *(rows, x_row, of.count, of.step, of.length, w),
    )


def render_conv2d(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, height, width, channels = pen.sizes("x")
    outputs, tall, wide, inner = pen.sizes("weight")
    panels = Panels(a.groups, outputs, inner)
    pool = a.pool if a.pooled is not None else (1, 1)
    rows, columns = (w.kernel.axes[1], w.kernel.axes[2])
    assert isinstance(rows, int), "type rules ask for numbers"
    assert isinstance(columns, int), "type rules ask for numbers"
    full = _full_counts(pen, (height, width), (tall, wide))
    below, right = (
        forward_margin(*of) for of in zip((height, width), full, (tall, wide), a.stride, a.low, a.dilation, strict=True)
    )
    framed = "frame" in pen.work
    row = (a.low[1] + width + right) * channels if framed else pen.steps("x")[1]
    taps = (pen.table("down", range(tall)), tall, pen.table("across", range(wide)), wide)
    size = pack(pen, panels, taps, inner, 0, turned=False)
    clear_frame(pen, (a.low[0] + height + below) * row + 16)
    with w.loop("i0", *w.span(0)):
        stage(pen, "x", a.low, row)
        with ExitStack() as stack:
            stack.enter_context(w.loop("i1", "0", str(rows)))
            enter_panels(pen, stack, panels)
            walk = (a.stride[1] * channels, tall, a.dilation[0] * row, wide, a.dilation[1], channels)
            packed = packed_at(panels, 0, size)
            if a.pooled is None:
                conv_row(pen, panels, columns, "block", panels.columns, f"frame + i1*{a.stride[0] * row}", walk, packed)
                pixels(pen, columns, panels.columns, panels.each, panels.base())
            else:
                _pooled_rows(pen, panels, pool, columns, walk, row, packed)


def _full_counts(pen: Pen, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns that the windows of a convolution give, before a pool."""
    axes = pen.w.kernel.axes
    pool = pen.window.pool if pen.window.pooled is not None else (1, 1)
    rows, columns = axes[1], axes[2]
    assert isinstance(rows, int), "type rules ask for numbers"
    assert isinstance(columns, int), "type rules ask for numbers"
    return rows * pool[0], columns * pool[1]


def _pooled_rows(
    pen: Pen, panels: Panels, pool: Sequence[int], columns: int, walk: Sequence[int], row: int, packed: str
) -> None:
    """The rows that a row of the pool sees; then, for each of its pixels, the epilogue of these and the maximum."""
    w, a, width = pen.w, pen.window, panels.columns
    across = columns * pool[1]
    with w.loop("i4", "0", str(pool[0])):
        at = f"frame + (i1*{pool[0]} + i4)*{a.stride[0] * row}"
        conv_row(pen, panels, across, f"block + i4*{across * width}", width, at, walk, packed)
    run = Lanes(pen, width, panels.each, panels.base())
    run.hoist()
    with w.loop("i2", "0", str(columns)), run.loop(w.kernel.levels):
        w.emit(f"{pen.real} best = 0; int32_t at = 0;")
        for i in range(pool[0]):
            for j in range(pool[1]):
                candidate(pen, run, i, j, f"block[({i * across + j} + i2*{pool[1]})*{width} + l]")
        name_sources(pen, w.kernel.levels[1], {"acc": "best", "position": "at"})
        run.instructions(w.kernel.levels[1])
        run.stores(w.kernel.levels[1])


def candidate(pen: Pen, run: Lanes, i: int, j: int, acc: str) -> None:
    """One pixel of a pool's window: the first maximum wins, and not-a-number is larger than anything."""
    w, a = pen.w, pen.window
    assert a.pooled is not None
    level = w.kernel.levels[0]
    with w.block(""):
        name_sources(pen, level, {"acc": acc})
        w.scope.axes[POOL_AXES[0]], w.scope.axes[POOL_AXES[1]] = str(i), str(j)
        run.instructions(level)
        w.emit(f"const {pen.real} value = {w.values[a.pooled]};")
        wins = "(value > best) | (value != value)" if i or j else "1"
        w.emit(f"const int wins = {wins};")
        w.emit(f"best = wins ? value : best, at = wins ? {i * a.pool[1] + j} : at;")


def render_conv2d_grad_input(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, rows, columns, outputs = pen.sizes("g")
    _, tall, wide, _ = pen.sizes("weight")
    height, width, channels = (e for e in w.kernel.axes[1:4] if isinstance(e, int))
    down, above, below = backward_taps(height, rows, tall, a.stride[0], a.low[0], a.dilation[0])
    across, left, right = backward_taps(width, columns, wide, a.stride[1], a.low[1], a.dilation[1])
    panels = Panels(a.groups, channels, outputs // a.groups)
    panels.depthwise = a.groups > 1 and outputs == channels == a.groups
    row = (left + columns + right) * outputs if "frame" in pen.work else pen.steps("g")[1]
    places, sizes = _pack_phases(pen, panels, down, across, outputs // a.groups)
    clear_frame(pen, (above + rows + below) * row + 16)
    with w.loop("i0", *w.span(0)):
        stage(pen, "g", (above, left), row)
        for i, y in enumerate(down):
            with ExitStack() as stack:
                stack.enter_context(w.loop("t", "0", str(y.pixels)))
                w.emit(f"const long i1 = {y.first} + t*{a.stride[0]};")
                enter_panels(pen, stack, panels)
                if not y.taps or any(not x.taps for x in across):
                    w.emit(f"ws_clear_{pen.suffix}(block, {width * panels.columns});")
                for j, x in enumerate(across):
                    if y.taps and x.taps:
                        walk = (outputs, len(y.taps), y.step * row, len(x.taps), x.step, outputs)
                        out = f"block + {x.first * panels.columns}"
                        at = f"frame + (t + {y.start})*{row} + {x.start * outputs}"
                        packed = packed_at(panels, places[i, j], sizes[i, j])
                        conv_row(pen, panels, x.pixels, out, a.stride[1] * panels.columns, at, walk, packed)
                pixels(pen, width, panels.columns, panels.each, panels.base())


def _pack_phases(
    pen: Pen, panels: Panels, down: Sequence[Taps], across: Sequence[Taps], depth: int
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """The taps of each phase, one after the other: where they begin, and the elements of a panel."""
    rows = [pen.table(f"down{i}", y.taps) for i, y in enumerate(down)]
    columns = [pen.table(f"across{j}", x.taps) for j, x in enumerate(across)]
    places, sizes, offset = {}, {}, 0
    for i, y in enumerate(down):
        for j, x in enumerate(across):
            places[i, j] = offset
            taps = (rows[i], len(y.taps), columns[j], len(x.taps))
            sizes[i, j] = pack(pen, panels, taps, depth, offset, turned=True)
            offset += panels.loops * panels.count * sizes[i, j]
    return places, sizes
