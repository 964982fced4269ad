"""Implicit GEMM convolution: one operand of the tiled GEMM is addressed by kernel taps instead of being unfolded.

Pools and their adjoints use one thread per pixel.  Images are (N, rows, columns, channels), weights (outputs, rows,
columns, channels of a group).  Convolutions of few channels use `convolution/direct.py` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wholestep.compiler.backends.gpu.grids.convolution import product_sizes
from wholestep.compiler.backends.gpu.grids.convolution_operands import operand, shape_of, static_extent
from wholestep.compiler.backends.gpu.kernel_schedule import Form
from wholestep.compiler.backends.gpu.render.convolution.direct import OWN, bind_window_results, read
from wholestep.compiler.backends.gpu.render.convolution.grouped import render_grouped, render_grouped_gradient
from wholestep.compiler.backends.gpu.render.elementwise import over_elements
from wholestep.compiler.backends.gpu.render.gemm import accumulator, product_call, tiles
from wholestep.compiler.backends.gpu.render.language import LOCAL, cast_text, literal
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.ir.types import Extent
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Level, Store


def render_window(w: GpuWriter) -> None:
    window = w.kernel.body
    assert isinstance(window, Window)
    if w.schedule.form in FORMS:
        FORMS[w.schedule.form](w, window)
    else:
        WINDOWS[window.op](w, window)


def _pixel(w: GpuWriter, number: str, rows: Extent, columns: Extent, prefix: str = "") -> list[str]:
    """Lines that compute image, row and column of a pixel index."""
    n, r, c = (f"{prefix}{x}" for x in ("image", "row", "column"))
    return [
        f"const int {c} = {number} % {w.extent(columns)}, {r} = {number} / {w.extent(columns)} % {w.extent(rows)};",
        f"const int {n} = {number} / ({w.extent(columns)} * {w.extent(rows)});",
    ]


def _tap_lines(w: GpuWriter, number: str, wide: Extent, channels: int) -> list[str]:
    """Lines that compute channel, kernel row and kernel column of an index along k."""
    return [
        f"const int channel = {number} % {channels}, tap = {number} / {channels};",
        f"const int down = tap / {w.extent(wide)}, across = tap % {w.extent(wide)};",
    ]


def _tap_access(w: GpuWriter, window: Window, of: tuple[Extent, ...], row: str, column: str) -> list[str]:
    """Lines that compute the input pixel (y, x) of a tap, and return zero outside of the image."""
    (down, across), (far, wide), (top, left) = window.stride, window.dilation, window.low
    return [
        f"const int y = {row}*{down} + down*{far} - {top}, x = {column}*{across} + across*{wide} - {left};",
        f"if (y < 0 || y >= {w.extent(of[1])} || x < 0 || x >= {w.extent(of[2])}) return 0;",
    ]


def _epilogue(w: GpuWriter, window: Window) -> tuple[Level, int]:
    (level,) = window.levels
    return level, next(i.id for i in level.body if i.op == "acc")


def _group_channel(w: GpuWriter, window: Window, each: int, text: str) -> str:
    """The global channel of a channel within this block's group."""
    return text if window.groups == 1 else f"(each*{each} + {text})"


def _begin(w: GpuWriter, window: Window) -> None:
    groups, m, n, k = product_sizes(w.kernel, window)
    dtype = accumulator(w.buffer_dtype(window.operands[0].load))
    tiles(w, w.extent(m), w.extent(n), w.extent(k), (), dtype)
    if groups > 1:
        w.lines[:] = [line.replace("if (each) return;", f"if (each >= {groups}) return;") for line in w.lines]


def render_conv2d(w: GpuWriter, window: Window) -> None:
    images, weight = (shape_of(w.kernel, operand(window, n)) for n in ("x", "weight"))
    outputs, _, wide, channels = map(static_extent, weight)
    each = outputs // window.groups
    _begin(w, window)
    level, acc = _epilogue(w, window)
    at = _pixel(w, "i", w.kernel.axes[1], w.kernel.axes[2])
    taps = _tap_lines(w, "k", wide, channels)
    inside = _group_channel(w, window, channels, "channel")
    a = [*at, *taps, *_tap_access(w, window, images, "row", "column")]
    a.append(f"return {read(w, window, 'x', 'image', 'y', 'x', inside)};")
    output = _group_channel(w, window, each, "j")
    b = [*taps, f"return {read(w, window, 'weight', output, 'down', 'across', 'channel')};"]
    axes = {0: "image", 1: "row", 2: "column", 3: output}
    dtype = accumulator(w.buffer_dtype(window.operands[0].load))
    product_call(w, dtype, [True, True], a, b, level, acc, axes, tuple(at))


def render_grad_input(w: GpuWriter, window: Window) -> None:
    """Input gradient: a pixel sums over all windows that contain it; with strides most taps contribute nothing."""
    g, weight = (shape_of(w.kernel, operand(window, n)) for n in ("g", "weight"))
    outputs, _, wide, channels = map(static_extent, weight)
    each = outputs // window.groups
    _begin(w, window)
    level, acc = _epilogue(w, window)
    at = _pixel(w, "i", w.kernel.axes[1], w.kernel.axes[2])
    taps = _tap_lines(w, "k", wide, each)
    (down, across), (far, far_wide), (top, left) = window.stride, window.dilation, window.low
    output = _group_channel(w, window, each, "channel")
    a = [
        *at,
        *taps,
        f"const int y = row + {top} - down*{far}, x = column + {left} - across*{far_wide};",
        f"if (y < 0 || x < 0 || y % {down} || x % {across}) return 0;",
        f"if (y / {down} >= {w.extent(g[1])} || x / {across} >= {w.extent(g[2])}) return 0;",
        f"return {read(w, window, 'g', 'image', f'(y / {down})', f'(x / {across})', output)};",
    ]
    b = [*taps, f"return {read(w, window, 'weight', output, 'down', 'across', 'j')};"]
    axes = {0: "image", 1: "row", 2: "column", 3: _group_channel(w, window, channels, "j")}
    dtype = accumulator(w.buffer_dtype(window.operands[0].load))
    product_call(w, dtype, [True, False], a, b, level, acc, axes, tuple(at))


def render_grad_weight(w: GpuWriter, window: Window) -> None:
    images, g = (shape_of(w.kernel, operand(window, n)) for n in ("x", "g"))
    outputs, _, wide, channels = map(static_extent, w.kernel.axes[:4])
    each = outputs // window.groups
    _begin(w, window)
    at = _pixel(w, "k", g[1], g[2])
    taps = _tap_lines(w, "j", wide, channels)
    output = _group_channel(w, window, each, "i")
    a = [*at, f"return {read(w, window, 'g', 'image', 'row', 'column', output)};"]
    b = [*at, *taps, *_tap_access(w, window, images, "row", "column")]
    b.append(f"return {read(w, window, 'x', 'image', 'y', 'x', _group_channel(w, window, channels, 'channel'))};")
    (result,) = window.results
    axes = dict(zip(result.axes, (output, "down", "across", "channel"), strict=True))
    dtype = accumulator(w.buffer_dtype(window.operands[0].load))
    w.values[0], w.dtypes[0] = "v0", dtype
    level = Level(stores=(Store(result.load, 0),))
    product_call(w, dtype, [False, False], a, b, level, 0, axes, tuple(taps))


# -- pools -----------------------------------------------------------------------------------------------------------


def _over_pixels(w: GpuWriter) -> str:
    return over_elements(w, (0, 1, 2, 3))


def _finish(w: GpuWriter, level: Level) -> None:
    w.instructions(level.body)
    w.stores(level.stores)


def _pool_pixel(window: Window) -> str:
    (down, across), (top, left) = window.stride, window.low
    return f"const int y = i1*{down} + down - {top}, x = i2*{across} + across - {left};"


def render_max_pool(w: GpuWriter, window: Window) -> None:
    """Max-pool; ties go to the first element, and a NaN wins, the first one."""
    (level,), images = window.levels, shape_of(w.kernel, operand(window, "x"))
    dtype = accumulator(w.buffer_dtype(window.operands[0].load))
    tall, wide = window.pool
    with w.block(_over_pixels(w)):
        w.decompose("at", (0, 1, 2, 3))
        w.emit(f"{LOCAL[dtype]} best = ws_lowest(({LOCAL[dtype]})0); int position = 0;")
        with w.block(f"for (int tap = 0; tap < {tall * wide}; tap++)"):
            w.emit(f"const int down = tap / {wide}, across = tap % {wide};")
            w.emit(_pool_pixel(window))
            w.emit(f"if (y < 0 || y >= {w.extent(images[1])} || x < 0 || x >= {w.extent(images[2])}) continue;")
            w.emit(f"const {LOCAL[dtype]} seen = {read(w, window, 'x', 'i0', 'y', 'x', 'i3')};")
            w.emit("if (ws_exceeds(seen, best)) best = seen, position = tap;")
        source = w.buffer_dtype(window.operands[0].load)
        bind_window_results(w, level, cast_text("best", dtype, source), "position")
        _finish(w, level)


def render_max_pool_grad(w: GpuWriter, window: Window) -> None:
    """A pixel sums the gradients of all windows whose maximum it is."""
    (level,), g = window.levels, shape_of(w.kernel, operand(window, "g"))
    dtype = accumulator(w.buffer_dtype(window.operands[0].load))
    (tall, wide), (down, across), (top, left) = window.pool, window.stride, window.low
    with w.block(_over_pixels(w)):
        w.decompose("at", (0, 1, 2, 3))
        w.emit(f"{LOCAL[dtype]} sum = 0;")
        w.emit(f"const int y = (int)i1 + {top}, x = (int)i2 + {left};")
        rows, columns = w.extent(g[1]), w.extent(g[2])
        w.emit(f"const int above = y < {tall} ? 0 : (y - {tall - down}) / {down};")
        w.emit(f"const int before = x < {wide} ? 0 : (x - {wide - across}) / {across};")
        with (
            w.block(f"for (int row = above; row <= y / {down} && row < {rows}; row++)"),
            w.block(f"for (int column = before; column <= x / {across} && column < {columns}; column++)"),
        ):
            w.emit(f"const int tap = (y - row*{down})*{wide} + x - column*{across};")
            position = ("i0", "row", "column", "i3")
            w.emit(f"if ((int){read(w, window, 'index', *position)} == tap) sum += {read(w, window, 'g', *position)};")
        source = w.buffer_dtype(window.operands[0].load)
        bind_window_results(w, level, cast_text("sum", dtype, source), None)
        _finish(w, level)


def render_max_pool_pick(w: GpuWriter, window: Window) -> None:
    """The values of an image at the positions of the pool's maxima."""
    (level,), images = window.levels, shape_of(w.kernel, operand(window, "x"))
    source = w.buffer_dtype(operand(window, "x").load)
    (_, wide), (down, across), (top, left) = window.pool, window.stride, window.low
    with w.block(_over_pixels(w)):
        w.decompose("at", (0, 1, 2, 3))
        w.emit(f"const int tap = (int){read(w, window, 'index', 'i0', 'i1', 'i2', 'i3')};")
        w.emit(f"const int y = i1*{down} + tap / {wide} - {top}, x = i2*{across} + tap % {wide} - {left};")
        inside = f"y >= 0 && y < {w.extent(images[1])} && x >= 0 && x < {w.extent(images[2])}"
        type, dtype = LOCAL[accumulator(source)], accumulator(source)
        w.emit(f"const {type} seen = {inside} ? {read(w, window, 'x', 'i0', 'y', 'x', 'i3')} : {literal(0.0, dtype)};")
        bind_window_results(w, level, cast_text("seen", dtype, source), None)
        _finish(w, level)


FORMS: Mapping[str, Callable[[GpuWriter, Window], None]] = {
    **OWN,
    Form.GROUPED: render_grouped,
    Form.GROUPED_GRADIENT: render_grouped_gradient,
}
WINDOWS: Mapping[str, Callable[[GpuWriter, Window], None]] = {
    "conv2d": render_conv2d,
    "conv2d_grad_input": render_grad_input,
    "conv2d_grad_weight": render_grad_weight,
    "max_pool2d": render_max_pool,
    "max_pool2d_index": render_max_pool,
    "max_pool2d_grad": render_max_pool_grad,
    "max_pool2d_pick": render_max_pool_pick,
}
