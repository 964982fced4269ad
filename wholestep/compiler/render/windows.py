"""Window kernels -> C loops around the tiles of conv.h, with every extent and step a literal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from wholestep.compiler.ir.types import DType, uint8
from wholestep.compiler.plan.frames import Taps, backward_taps, columns_of, forward_margin, rounded, runs
from wholestep.compiler.plan.kernel import Level, Operand, Space
from wholestep.compiler.plan.windows import VECTOR_BYTES, framed_length
from wholestep.compiler.render.address import axis_stride
from wholestep.compiler.render.language import LOCAL, STORED, SUFFIX
from wholestep.compiler.render.narrow import can_widen
from wholestep.compiler.render.writer import Writer, simd


class Pen:
    """What all window kernels ask of their kernel: sizes, steps and addresses."""

    def __init__(self, w: Writer) -> None:
        assert w.kernel.window is not None
        self.w, self.window = w, w.kernel.window
        self.operands: Mapping[str, Operand] = {o.name: o for o in (*self.window.operands, *self.window.results)}
        of = "g" if "g" in self.operands else "x"
        self.dtype = w.buffers[self.operands[of].load.buffer].type.dtype
        self.suffix, self.real = SUFFIX[self.dtype], STORED[self.dtype]
        self.work = {name for name, _ in self.window.work}

    def sizes(self, name: str) -> tuple[int, int, int, int]:
        """The extents of an operand; of the batch, at least a placeholder."""
        extents = [self.w.kernel.axes[a] for a in self.operands[name].axes]
        first, *rest = [e if isinstance(e, int) else 0 for e in extents]
        return first, rest[0], rest[1], rest[2]

    def steps(self, name: str) -> tuple[int, int, int, int]:
        """Elements from one image, row, column, channel to the next."""
        o = self.operands[name]
        found = [axis_stride(o.load, a, self.w.buffers[o.load.buffer])[0] for a in o.axes]
        first, *rest = [e if isinstance(e, int) else 0 for e in found]
        return first, rest[0], rest[1], rest[2]

    def at(self, name: str, batch: str = "i0") -> str:
        """The address of an operand's first element, of image `batch` where it has images."""
        o, scope = self.operands[name], self.w.scope
        kept = dict(scope.axes)
        scope.axes.update({a: "0" for a in o.axes})
        if name not in ("weight", "result"):
            scope.axes[o.axes[0]] = batch
        text = f"{self.w.params[o.load.buffer]} + {scope.offset(o.load, self.w.buffers[o.load.buffer])}"
        scope.axes = kept
        return text

    def table(self, name: str, values: Sequence[int]) -> str:
        self.w.emit(f"static const int {name}[] = {{{', '.join(map(str, values)) or '0'}}};")
        return name

    def tile(self, columns: int) -> str:
        """The suffix of the tiles for panels of so many columns."""
        return f"{self.suffix}_{'narrow' if columns < 16 else 'wide'}"


# -- epilogues ---------------------------------------------------------------------------------------------------------


def lanes(pen: Pen, level: Level, columns: int, channels: int, base: str, sources: Mapping[str, str]) -> None:
    """The epilogue of `columns` channels of a pixel, from channel `base` on; `channels` bounds them."""
    w = pen.w
    vector = w.kernel.vector
    assert vector is not None
    kept, axis = dict(w.values), w.scope.axes[vector]
    for i in level.body:
        if i.op in sources:
            w.values[i.id] = f"{sources[i.op]}[l]"
    whole = channels % columns == 0
    w.scope.axes[vector] = f"({base} + l)" if base != "0" else "l"
    valid = str(channels) if channels < columns else f"{channels} - {base}" if not whole else str(columns)
    if whole or not can_widen(level):
        if not valid.isdigit():
            valid = f"({valid} < {columns} ? {valid} : {columns})"
        w.emit(simd(level))
        with w.block(f"for (long l = 0; l < {valid}; l++)"):
            w.body(level)
    else:
        widened(pen, level, columns, valid)
    w.scope.axes[vector], w.values = axis, kept


def widened(pen: Pen, level: Level, columns: int, valid: str) -> None:
    """All lanes of a panel, computed in full: what is loaded or stored past the last channel is masked."""
    w = pen.w
    w.emit(simd(level))
    with w.block(f"for (long l = 0; l < {columns}; l++)"):
        for i in level.body:
            if i.load is not None:
                w.emit(f"const {LOCAL[i.dtype]} v{i.id} = l < {valid} ? {w.expression(i)} : 0;")
            else:
                w.instructions([i] if i.op not in ("acc", "position") else [])
        for s in level.stores:
            padded = w.buffers[s.load.buffer].space is Space.WORK
            w.emit(f"{'' if padded else f'if (l < {valid}) '}{w.element(s.load)} = {w.values[s.value]};")


def pixels(pen: Pen, count: int, columns: int, channels: int, base: str) -> None:
    """The epilogue of a row of pixels that lies in `block`."""
    w = pen.w
    with w.loop("i2", "0", str(count)):
        w.emit(f"const {pen.real} *const acc = block + i2*{columns};")
        lanes(pen, w.kernel.levels[0], columns, channels, base, {"acc": "acc"})


# -- convolution -------------------------------------------------------------------------------------------------------


def stage(pen: Pen, name: str, low: Sequence[int], row: int) -> None:
    """The image into its frame, or the frame where the image is."""
    _, height, width, channels = pen.sizes(name)
    _, x_row, x_pixel, x_channel = pen.steps(name)
    if "frame" not in pen.work:
        pen.w.emit(f"const {pen.real} *const frame = {pen.at(name)};")
        return
    to = f"frame + {low[0] * row + low[1] * channels}"
    pen.w.emit(
        f"ws_frame_{pen.suffix}({to}, {pen.at(name)}, {height}, {width}, {channels}, {row}, {x_row}, {x_pixel}, "
        f"{x_channel});"
    )


def clear_frame(pen: Pen, elements: int) -> None:
    if "frame" in pen.work:
        pen.w.emit(f"ws_clear_{pen.suffix}(frame, {elements});")


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
        pen.w.emit(
            f"ws_pack_{pen.suffix}(packed + {offset}{to_group}, {pen.at('weight')}{from_group}, {panels.each}, "
            f"{panels.columns}, {n_rows}, {rows}, {n_columns}, {columns}, {depth}, {lane}, {y}, {x}, {deep});"
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
        pen.w.emit(
            f"ws_depth_row_{pen.tile(panels.columns)}({count}, {panels.columns}, {out}, {step}, {x}{across}, {x_pixel}, "
            f"{rows}, {x_row}, {taps}, {distance * channels}, {w});"
        )
        return
    pen.w.emit(
        f"ws_conv_row_{pen.tile(panels.columns)}({count}, {panels.columns}, {out}, {step}, {x}{shift}, {x_pixel}, {rows}, "
        f"{x_row}, {of.count}, {of.step}, {of.length}, {w});"
    )


def render_conv2d(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, height, width, channels = pen.sizes("x")
    outputs, tall, wide, inner = pen.sizes("weight")
    panels = Panels(a.groups, outputs, inner)
    pool = a.pool if a.pooled else (1, 1)
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
            if not a.pooled:
                conv_row(pen, panels, columns, "block", panels.columns, f"frame + i1*{a.stride[0] * row}", walk, packed)
                pixels(pen, columns, panels.columns, panels.each, panels.base())
            else:
                _pooled_rows(pen, panels, pool, columns, walk, row, packed)


def _full_counts(pen: Pen, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns that the windows of a convolution give, before a pool."""
    axes = pen.w.kernel.axes
    pool = pen.window.pool if pen.window.pooled else (1, 1)
    rows, columns = axes[1], axes[2]
    assert isinstance(rows, int), "type rules ask for numbers"
    assert isinstance(columns, int), "type rules ask for numbers"
    return rows * pool[0], columns * pool[1]


def _pooled_rows(
    pen: Pen, panels: Panels, pool: Sequence[int], columns: int, walk: Sequence[int], row: int, packed: str
) -> None:
    """The rows that one row of the pool sees, each with its epilogue; then the pool and what follows it."""
    w, a, width = pen.w, pen.window, panels.columns
    first, second = w.kernel.levels
    with w.loop("i4", "0", str(pool[0])):
        at = f"frame + (i1*{pool[0]} + i4)*{a.stride[0] * row}"
        conv_row(pen, panels, columns * pool[1], "block", width, at, walk, packed)
        with w.loop("i2", "0", str(columns)), w.loop("i5", "0", str(pool[1])):
            w.emit(f"const {pen.real} *const acc = block + (i2*{pool[1]} + i5)*{width};")
            lanes(pen, first, width, panels.each, panels.base(), {"acc": "acc"})
    stored = rounded(panels.outputs, columns_of(panels.outputs))
    with w.loop("i2", "0", str(columns)):
        at = f"rows + i2*{pool[1] * stored} + {panels.base()}"
        w.emit(
            f"ws_pool_cell_{pen.tile(width)}({width}, best, positions, {at}, {pool[0]}, {pool[1]}, "
            f"{columns * pool[1] * stored}, {stored});"
        )
        lanes(pen, second, width, panels.each, panels.base(), {"acc": "best", "position": "positions"})


def render_conv2d_grad_input(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, rows, columns, outputs = pen.sizes("g")
    _, tall, wide, inner = pen.sizes("weight")
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


# -- gradients of weights ----------------------------------------------------------------------------------------------


def _finish_weight(pen: Pen, tall: int, count: int, length: int, padded: int) -> None:
    """The sums into the gradient: (output, row, taps and channels)."""
    w = pen.w
    o, y, x, c = pen.steps("result")
    _, _, wide, inner = pen.sizes("result")
    assert (x, c) == (inner, 1), "gradients of weights are dense"
    each = length if count == 1 else inner
    with w.loop("o", "lo", "hi"), w.loop("r", "0", str(tall)), w.loop("k", "0", str(count)):
        source = f"sums[((o*{tall} + r)*{count} + k)*{padded} + l]"
        target = f"({pen.at('result')})[o*{o} + r*{y} + k*{each} + l]"
        w.emit(f"for (long l = 0; l < {each}; l++) {target} = {source};")


def render_conv2d_grad_weight(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, height, width, channels = pen.sizes("x")
    _, rows, columns, outputs = pen.sizes("g")
    _, tall, wide, inner = pen.sizes("result")
    below, right = (
        forward_margin(*of)
        for of in zip((height, width), (rows, columns), (tall, wide), a.stride, a.low, a.dilation, strict=True)
    )
    row = (a.low[1] + width + right) * channels
    of = runs(wide, a.dilation[1], channels, inner)
    padded = rounded(of.length)
    output = tall * of.count * padded
    _, g_row, g_pixel, g_channel = pen.steps("g")
    w.emit(f"ws_clear_{pen.suffix}(sums + lo*{output}, (hi - lo)*{output});")
    clear_frame(pen, (a.low[0] + height + below) * row + 16)
    batch = pen.operands["x"].axes[0]
    w.scope.axes[batch] = "n"
    with w.loop("n", "0", w.scope.extent(w.kernel.axes[batch])):
        w.emit(f"const {pen.real} *const x = {pen.at('x', 'n')}, *const g = {pen.at('g', 'n')};")
        _frame_of(pen, "x", a.low, row)

        def tile(size: int) -> None:
            group = f" + o/{outputs // a.groups}*{inner}" if a.groups > 1 else ""
            with w.loop("r", "0", str(tall)), w.loop("k", "0", str(of.count)):
                w.emit(
                    f"ws_weight_row_{pen.suffix}_wide({size}, {of.length}, sums + ((o*{tall} + r)*{of.count} + k)*{padded}, "
                    f"{output}, g + o*{g_channel}, {g_row}, {g_pixel}, {g_channel}, frame + r*{a.dilation[0] * row} + k*{of.step}{group}, "
                    f"{a.stride[0] * row}, {a.stride[1] * channels}, {rows}, {columns});"
                )

        _in_tiles(w, a.granule, outputs, tile)
    _finish_weight(pen, tall, of.count, of.length, padded)


def _frame_of(pen: Pen, name: str, low: Sequence[int], row: int) -> None:
    _, height, width, channels = pen.sizes(name)
    _, x_row, x_pixel, x_channel = pen.steps(name)
    pen.w.emit(
        f"ws_frame_{pen.suffix}(frame + {low[0] * row + low[1] * channels}, x, {height}, {width}, {channels}, {row}, "
        f"{x_row}, {x_pixel}, {x_channel});"
    )


def _in_tiles(w: Writer, size: int, outputs: int, tile: Callable[[int], None]) -> None:
    """Outputs from lo to hi, `size` at a time; ranges of threads begin at whole tiles."""
    with w.loop("o", "lo", f"hi - {size - 1}" if size > 1 else "hi", str(size)):
        tile(size)
    if outputs % size:
        with w.block(f"if (hi == {outputs})"):
            w.emit(f"const long o = {outputs - outputs % size};")
            tile(outputs % size)


def render_pooled_grad_weight(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, height, width, channels = pen.sizes("x")
    _, rows, columns, outputs = pen.sizes("g")
    _, tall, wide, _ = pen.sizes("result")
    row, elements = _pooled_frame(pen, height, width, channels, tall, wide)
    padded = rounded(wide * channels)
    output = tall * padded
    pen.table("offsets", [i * row + j * channels for i in range(a.pool[0]) for j in range(a.pool[1])])
    w.emit(f"ws_clear_{pen.suffix}(sums + lo*{output}, (hi - lo)*{output});")
    clear_frame(pen, elements)
    stride = _dense_cells(pen)
    _, g_row, g_pixel, g_channel = pen.steps("g")
    together = 2 if tall * -(-wide * channels // (VECTOR_BYTES // self_size(pen.dtype))) <= 6 else 1
    batch = pen.operands["x"].axes[0]
    with w.loop("n", "0", w.scope.extent(w.kernel.axes[batch])):
        w.emit(f"const {pen.real} *const x = {pen.at('x', 'n')}, *const g = {pen.at('g', 'n')};")
        w.emit(f"const uint8_t *const index = {pen.at('index', 'n')};")
        _frame_of(pen, "x", a.low, row)

        def tile(size: int) -> None:
            w.emit(
                f"ws_pooled_weight_{pen.suffix}_narrow({size}, {tall}, {wide * channels}, sums + o*{output}, {output}, "
                f"{padded}, g + o*{g_channel}, {g_row}, {g_pixel}, {g_channel}, index + o, {stride}, frame, {row}, {rows}, {columns}, {a.pool[0] * row}, "
                f"{a.pool[1] * channels}, offsets);"
            )

        w.emit("long o = lo;")
        if together > 1:
            with w.block(f"for (; o + {together} <= hi; o += {together})"):
                tile(together)
        with w.block("for (; o < hi; o++)"):
            tile(1)
    _finish_weight(pen, tall, 1, wide * channels, padded)


def self_size(dtype: DType) -> int:
    return dtype.size


def _pooled_frame(pen: Pen, height: int, width: int, channels: int, tall: int, wide: int) -> tuple[int, int]:
    """(elements of a row of the frame, elements of it all)."""
    (top, left), pool = pen.window.low, pen.window.pool
    _, rows, columns, _ = pen.sizes("g")
    high = max(top + height, rows * pool[0] + tall - 1), max(left + width, columns * pool[1] + wide - 1)
    return high[1] * channels, high[0] * high[1] * channels + 16


def _dense_cells(pen: Pen) -> int:
    """Elements from one cell of the pool's positions to the next, which are the channels of each."""
    _, _, columns, outputs = pen.sizes("index")
    assert pen.steps("index")[1:] == (columns * outputs, outputs, 1), "positions lie with channels last"
    return outputs


def render_pooled_grad_input(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, rows, columns, outputs = pen.sizes("g")
    _, tall, wide, channels = pen.sizes("weight")
    height, width, _ = (e for e in w.kernel.axes[1:4] if isinstance(e, int))
    line = framed_length(wide, channels, a.pool[1], VECTOR_BYTES // pen.dtype.size)
    lines, seen = tall + 2 * (a.pool[0] - 1), (wide + a.pool[1] - 1) * channels
    row, elements = _pooled_frame(pen, height, width, channels, tall, wide)
    _frame_kernels(pen, outputs, tall, wide, channels, lines, line)
    shifts = [
        (a.pool[0] - 1 - i) * line + (a.pool[1] - 1 - j) * channels for i in range(a.pool[0]) for j in range(a.pool[1])
    ]
    pen.table("shifts", shifts)
    stride = _dense_cells(pen)
    _, g_row, g_pixel, g_channel = pen.steps("g")
    with w.loop("i0", *w.span(0)):
        w.emit(f"const {pen.real} *const g = {pen.at('g')};")
        w.emit(f"const uint8_t *const index = {pen.at('index')};")
        w.emit(f"ws_clear_{pen.suffix}(image, {elements});")
        with w.loop("i", "0", str(rows)), w.loop("j", "0", str(columns)):
            cell = f"(i*{columns} + j)*{stride}"
            w.emit(
                f"ws_pooled_input_{pen.suffix}_narrow({tall + a.pool[0] - 1}, {seen}, "
                f"image + i*{a.pool[0] * row} + j*{a.pool[1] * channels}, {row}, g + i*{g_row} + j*{g_pixel}, {g_channel}, index + {cell}, {outputs}, "
                f"packed, {lines * line}, {line}, shifts);"
            )
        _image_epilogue(pen, height, width, channels, row, a.low)


def _frame_kernels(pen: Pen, outputs: int, tall: int, wide: int, channels: int, lines: int, line: int) -> None:
    """Each output's kernel in the middle of zeros."""
    w, (top, left) = pen.w, (pen.window.pool[0] - 1, pen.window.pool[1] - 1)
    o, y, x, c = pen.steps("weight")
    w.emit(f"ws_clear_{pen.suffix}(packed, {outputs * lines * line + 16});")
    with w.loop("o", "0", str(outputs)):
        w.emit(
            f"ws_frame_{pen.suffix}(packed + o*{lines * line} + {top * line + left * channels}, "
            f"{pen.at('weight')} + o*{o}, {tall}, {wide}, {channels}, {line}, {y}, {x}, {c});"
        )


def _image_epilogue(pen: Pen, height: int, width: int, channels: int, row: int, low: Sequence[int]) -> None:
    """The epilogue of every pixel of a whole image in the workspace."""
    w, columns = pen.w, columns_of(channels)
    with ExitStack() as stack:
        stack.enter_context(w.loop("i1", "0", str(height)))
        stack.enter_context(w.loop("i2", "0", str(width)))
        base = "0"
        if channels > columns:
            stack.enter_context(w.loop("p", "0", str(-(-channels // columns))))
            base = f"p*{columns}"
        at = f"image + (i1 + {low[0]})*{row} + (i2 + {low[1]})*{channels} + {base}"
        w.emit(f"const {pen.real} *const acc = {at};")
        lanes(pen, w.kernel.levels[0], columns, channels, base, {"acc": "acc"})


# -- pools -------------------------------------------------------------------------------------------------------------


def _position(pen: Pen) -> tuple[str, str]:
    """(C type, suffix) of positions in a window of this pool."""
    named = dict(pen.window.work).get("positions")
    buffer = named if named is not None else pen.operands["index"].load.buffer
    return ("uint8_t", "u8") if pen.w.buffers[buffer].type.dtype == uint8 else ("int32_t", "i32")


def _by_channels(pen: Pen, channels: int, sources: Mapping[str, str]) -> None:
    """The epilogue of one pixel whose channels lie in the workspace."""
    w, columns = pen.w, columns_of(channels)
    if channels <= columns:
        lanes(pen, w.kernel.levels[0], columns, channels, "0", sources)
        return
    with w.loop("p", "0", str(-(-channels // columns))):
        at_panel = {op: f"({text} + p*{columns})" for op, text in sources.items()}
        lanes(pen, w.kernel.levels[0], columns, channels, f"p*{columns}", at_panel)


def render_max_pool2d(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, height, width, channels = pen.sizes("x")
    _, x_row, x_pixel, x_channel = pen.steps("x")
    rows, columns = w.kernel.axes[1:3]
    _, suffix = _position(pen)
    with w.loop("i0", *w.span(0)), w.loop("i1", "0", str(rows)), w.loop("i2", "0", str(columns)):
        w.emit(
            f"ws_pool_pixel_{pen.suffix}_{suffix}(best, positions, {pen.at('x')}, {channels}, {height}, {width}, "
            f"{a.pool[0]}, {a.pool[1]}, i1*{a.stride[0]} - {a.low[0]}, i2*{a.stride[1]} - {a.low[1]}, {x_row}, {x_pixel}, "
            f"{x_channel});"
        )
        _by_channels(pen, channels, {"acc": "best", "position": "positions"})


def render_max_pool2d_grad(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, rows, columns, channels = pen.sizes("g")
    height, width, _ = (e for e in w.kernel.axes[1:4] if isinstance(e, int))
    with w.loop("i0", *w.span(0)):
        w.emit(f"ws_clear_{pen.suffix}(image, {height * width * channels});")
        with w.loop("i", "0", str(rows)), w.loop("j", "0", str(columns)), w.loop("c", "0", str(channels)):
            g, at = _cell(pen, "g"), _cell(pen, "index")
            w.emit(f"const long y = i*{a.stride[0]} - {a.low[0]} + {at}/{a.pool[1]};")
            w.emit(f"const long x = j*{a.stride[1]} - {a.low[1]} + {at}%{a.pool[1]};")
            w.emit(f"image[(y*{width} + x)*{channels} + c] += {g};")
        _image_epilogue(pen, height, width, channels, width * channels, (0, 0))


def _cell(pen: Pen, name: str) -> str:
    _, row, pixel, channel = pen.steps(name)
    return f"({pen.at(name)})[i*{row} + j*{pixel} + c*{channel}]"


def render_max_pool2d_pick(w: Writer) -> None:
    pen = Pen(w)
    a = pen.window
    _, _, _, channels = pen.sizes("x")
    _, x_row, x_pixel, x_channel = pen.steps("x")
    rows, columns = w.kernel.axes[1:3]
    with w.loop("i0", *w.span(0)), w.loop("i1", "0", str(rows)), w.loop("i2", "0", str(columns)):
        w.emit("const long i = i1, j = i2;")
        with w.loop("c", "0", str(channels)):
            at = _cell(pen, "index")
            w.emit(f"const long y = i*{a.stride[0]} - {a.low[0]} + {at}/{a.pool[1]};")
            w.emit(f"const long x = j*{a.stride[1]} - {a.low[1]} + {at}%{a.pool[1]};")
            w.emit(f"best[c] = ({pen.at('x')})[y*{x_row} + x*{x_pixel} + c*{x_channel}];")
        _by_channels(pen, channels, {"acc": "best"})


_RENDER: Mapping[str, Callable[[Writer], None]] = {
    "conv2d": render_conv2d,
    "conv2d_grad_input": render_conv2d_grad_input,
    "conv2d_grad_weight": render_conv2d_grad_weight,
    "pooled_grad_weight": render_pooled_grad_weight,
    "pooled_grad_input": render_pooled_grad_input,
    "max_pool2d": render_max_pool2d,
    "max_pool2d_index": render_max_pool2d,
    "max_pool2d_grad": render_max_pool2d_grad,
    "max_pool2d_pick": render_max_pool2d_pick,
}


def render_window(w: Writer) -> None:
    """The loops of a window kernel."""
    assert w.kernel.window is not None
    _RENDER[w.kernel.window.op](w)
