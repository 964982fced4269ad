"""Implicit GEMM convolution: one operand of the tiled GEMM is addressed by kernel taps instead of being unfolded.

Images are (N, rows, columns, channels), weights (outputs, rows, columns, channels of a group).  Convolutions of few
channels use `convolution/direct.py` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wholestep.compiler.backends.gpu.grids.convolution import product_sizes
from wholestep.compiler.backends.gpu.grids.convolution_operands import operand, shape_of, static_extent
from wholestep.compiler.backends.gpu.kernel_schedule import Form
from wholestep.compiler.backends.gpu.render.convolution.direct import OWN, read
from wholestep.compiler.backends.gpu.render.convolution.grouped import render_grouped, render_grouped_gradient
from wholestep.compiler.backends.gpu.render.convolution.pooling import (
    render_max_pool,
    render_max_pool_grad,
    render_max_pool_pick,
)
from wholestep.compiler.backends.gpu.render.gemm import accumulator, product_call, tiles
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
