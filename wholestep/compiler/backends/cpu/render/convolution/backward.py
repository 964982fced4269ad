"""C source of weight gradients, which are sums over all images, and of gradients through a max pool.

Each output channel belongs to one thread, and images are added in batch order, so the sums' order is fixed.
"""

from __future__ import annotations

from collections.abc import Callable

from wholestep.compiler.backends.cpu.convolution.forward import VECTOR_BYTES, padded_length
from wholestep.compiler.backends.cpu.convolution.padding import depth_columns, round_up
from wholestep.compiler.backends.cpu.render.convolution.common import (
    WindowWriter,
    clear_frame,
    copy_image,
    image_epilogue,
    stage_image,
)
from wholestep.compiler.backends.cpu.render.convolution.gemm import render_weight_in_place
from wholestep.compiler.backends.cpu.render.convolution.winograd import render_weight_by_tiles
from wholestep.compiler.backends.cpu.render.writer import CWriter
from wholestep.compiler.ir.type_rules.convolution import SMALL_WINDOW


def _finish_weight(pen: WindowWriter, lo: str, hi: str, tall: int, count: int, length: int, padded: int) -> None:
    """Store the sums of outputs lo to hi into the gradient: (output, row, taps and channels)."""
    w = pen.w
    o, (y, x, c) = pen.output_step("result"), pen.steps("result")
    _, _, inner = pen.sizes("result")
    assert (x, c) == (inner, 1), "weight gradients are dense"
    each = length if count == 1 else inner
    with w.loop("o", lo, hi), w.loop("r", "0", str(tall)), w.loop("k", "0", str(count)):
        source = f"sums[((o*{tall} + r)*{count} + k)*{padded} + l]"
        target = f"({pen.at('result')})[o*{o} + r*{y} + k*{each} + l]"
        w.emit(f"for (long l = 0; l < {each}; l++) {target} = {source};")


def render_conv2d_grad_weight(w: CWriter) -> None:
    pen = WindowWriter(w)
    a = pen.window
    if pen.tiles.rows:
        render_weight_by_tiles(pen)
        return
    if pen.tiles.in_place:
        render_weight_in_place(pen)
        return
    if pen.tiles.runs is None:
        _depthwise_weight(pen)
        return
    _, _, channels = pen.sizes("x")
    rows, columns, outputs = pen.sizes("g")
    tall, _, inner = pen.sizes("result")
    row, of = pen.frame.row, pen.tiles.runs
    assert of is not None, "a weight gradient has runs"
    padded = round_up(of.length)
    output = tall * of.count * padded
    g_row, g_pixel, g_channel = pen.steps("g")
    lo, hi = w.span(0)
    pen.call(f"ws_clear_{pen.suffix}", f"sums + {lo}*{output}", f"({hi} - {lo})*{output}")
    clear_frame(pen)
    with pen.batch_loop():
        w.emit(f"const {pen.real} *const g = {pen.at('g', 'n')};")
        stage_image(pen, "x", "n")

        def tile(size: int) -> None:
            group = f" + o/{outputs // a.groups}*{inner}" if a.groups > 1 else ""
            with w.loop("r", "0", str(tall)), w.loop("k", "0", str(of.count)):
                into = f"sums + ((o*{tall} + r)*{of.count} + k)*{padded}"
                x = f"frame + r*{a.dilation[0] * row} + k*{of.step}{group}"
                pen.call(
                    *(f"ws_weight_row_{pen.suffix}_wide", size, of.length, into, output),
                    *(f"g + o*{g_channel}", g_row, g_pixel, g_channel),
                    *(x, a.stride[0] * row, a.stride[1] * channels, rows, columns),
                )

        _in_tiles(w, pen.tiles.granule, outputs, tile)
    _finish_weight(pen, lo, hi, tall, of.count, of.length, padded)


def _depthwise_weight(pen: WindowWriter) -> None:
    """Depthwise: each channel has its own kernel; vectors extend over channels, tiles sum all taps of a channel."""
    w, a = pen.w, pen.window
    _, _, channels = pen.sizes("x")
    rows, columns, outputs = pen.sizes("g")
    tall, wide, _ = pen.sizes("result")
    row, width = pen.frame.row, depth_columns(outputs)
    panel = tall * wide * width
    copied = "around" in pen.work
    g_row, g_pixel = (columns * outputs, outputs) if copied else pen.steps("g")[:2]
    (lo, hi), last = w.span(0), outputs - width  # start of the last vector, which may overlap the one before
    pen.call(f"ws_clear_{pen.suffix}", f"sums + {lo}/{width}*{panel}", f"({hi} - {lo} + {width - 1})/{width}*{panel}")
    clear_frame(pen)
    with pen.batch_loop():
        w.emit(f"const {pen.real} *const g = {'around' if copied else pen.at('g', 'n')};")
        if copied:  # the copy has its channels last
            copy_image(pen, "around", pen.at("g", "n"), (rows, columns, outputs), g_row, pen.steps("g"))
        stage_image(pen, "x", "n")
        with w.loop("o", lo, hi, str(width)):
            w.emit(f"const long c = o < {last} ? o : {last};")
            pen.call(
                *(f"ws_depth_weight_{pen.tile(width)}", tall, wide, width, f"sums + o/{width}*{panel}"),
                *("g + c", g_row, g_pixel, "frame + c", a.dilation[0] * row, a.dilation[1] * channels),
                *(a.stride[0] * row, a.stride[1] * channels, rows, columns),
            )
    o, (y, x, _) = pen.output_step("result"), pen.steps("result")
    with w.loop("o", lo, hi):
        w.emit(f"const long first = o/{width}*{width}, l = o - (first < {last} ? first : {last});")
        with w.loop("r", "0", str(tall)):
            source = f"sums[o/{width}*{panel} + (r*{wide} + k)*{width} + l]"
            w.emit(f"for (long k = 0; k < {wide}; k++) ({pen.at('result')})[o*{o} + r*{y} + k*{x}] = {source};")


def _in_tiles(w: CWriter, size: int, outputs: int, tile: Callable[[int], None]) -> None:
    """Emit `tile` for outputs lo to hi, `size` at a time, and for the remainder; threads start at tile boundaries."""
    lo, hi = w.span(0)
    with w.loop("o", lo, f"{hi} - {size - 1}" if size > 1 else hi, str(size)):
        tile(size)
    if outputs % size:
        with w.block(f"if ({hi} == {outputs})"):
            w.emit(f"const long o = {outputs - outputs % size};")
            tile(outputs % size)


def render_pooled_grad_weight(w: CWriter) -> None:
    """Weight gradient through a max pool; every part of the batch has its own sums, so parts can run in parallel."""
    pen = WindowWriter(w)
    a = pen.window
    _, _, channels = pen.sizes("x")
    outputs, (tall, wide, _) = pen.outputs("result"), pen.sizes("result")
    row = pen.frame.row
    padded = round_up(wide * channels)
    offsets = [i * row + j * channels for i in range(a.pool[0]) for j in range(a.pool[1])]
    pen.table("offsets", offsets, SMALL_WINDOW)  # full size: any byte read as a position is a valid index
    clear_frame(pen)
    images = w.extent(w.kernel.axes[pen.operands["x"].axes[0]])
    parts = w.extent(w.kernel.axes[0])
    with w.loop("q", *w.span(0)):
        w.axes[0] = "q"
        pen.call(f"ws_clear_{pen.suffix}", "sums", outputs * tall * padded)
        with w.loop("n", f"q*{images}/{parts}", f"(q + 1)*{images}/{parts}"):
            stage_image(pen, "x", "n")
            _add_image_gradients(pen, row, padded)
        _finish_weight(pen, "0", str(outputs), tall, 1, wide * channels, padded)


def _add_image_gradients(pen: WindowWriter, row: int, padded: int) -> None:
    """Add the contribution of image n to the sums of all outputs, one or two neighbouring outputs at a time."""
    w, a = pen.w, pen.window
    channels, (rows, columns, _) = pen.sizes("x")[2], pen.sizes("g")
    outputs, (tall, wide, _) = pen.outputs("result"), pen.sizes("result")
    g_row, g_pixel, g_channel = pen.steps("g")
    stride = _dense_cells(pen)
    w.emit(f"const {pen.real} *const g = {pen.at('g', 'n')};")
    w.emit(f"const uint8_t *const index = {pen.at('index', 'n')};")

    def tile(size: int) -> None:
        pen.call(
            *(f"ws_pooled_weight_{pen.suffix}_narrow", size, tall, wide * channels),
            *(f"sums + o*{tall * padded}", tall * padded, padded, f"g + o*{g_channel}", g_row, g_pixel, g_channel),
            *("index + o", stride, "frame", row, rows, columns),
            *(a.pool[0] * row, a.pool[1] * channels, "offsets"),
        )

    together = 2 if tall * -(-wide * channels // (VECTOR_BYTES // pen.dtype.size)) <= 6 else 1
    with w.loop("o", "0", str(outputs - outputs % together), str(together)):
        tile(together)
    if outputs % together:
        w.emit(f"const long o = {outputs - 1};")
        tile(1)


def _dense_cells(pen: WindowWriter) -> int:
    """Elements from one pooled pixel's positions to the next; they are stored with channels last."""
    _, columns, outputs = pen.sizes("index")
    assert pen.steps("index") == (columns * outputs, outputs, 1), "positions are stored with channels last"
    return outputs


def render_pooled_grad_input(w: CWriter) -> None:
    pen = WindowWriter(w)
    a = pen.window
    rows, columns, outputs = pen.sizes("g")
    tall, wide, channels = pen.sizes("weight")
    height, width, _ = pen.result_image()
    line = padded_length(wide, channels, a.pool[1], VECTOR_BYTES // pen.dtype.size)
    lines, row_length = tall + 2 * (a.pool[0] - 1), (wide + a.pool[1] - 1) * channels
    row, elements = pen.frame.row, pen.frame.elements
    _pad_kernels(pen, outputs, tall, wide, channels, lines, line)
    shifts = [
        (a.pool[0] - 1 - i) * line + (a.pool[1] - 1 - j) * channels for i in range(a.pool[0]) for j in range(a.pool[1])
    ]
    pen.table("shifts", shifts, SMALL_WINDOW)
    stride = _dense_cells(pen)
    g_row, g_pixel, g_channel = pen.steps("g")
    with w.loop("i0", *w.span(0)):
        w.emit(f"const {pen.real} *const g = {pen.at('g')};")
        w.emit(f"const uint8_t *const index = {pen.at('index')};")
        w.emit(f"ws_clear_{pen.suffix}(image, {elements});")
        with w.loop("i", "0", str(rows)), w.loop("j", "0", str(columns)):
            target = f"image + i*{a.pool[0] * row} + j*{a.pool[1] * channels}"
            pen.call(
                *(f"ws_pooled_input_{pen.suffix}_narrow", tall + a.pool[0] - 1, row_length, target, row),
                *(f"g + i*{g_row} + j*{g_pixel}", g_channel, f"index + (i*{columns} + j)*{stride}", outputs),
                *("packed", lines * line, line, "shifts"),
            )
        image_epilogue(pen, height, width, channels, row, a.low)


def _pad_kernels(pen: WindowWriter, outputs: int, tall: int, wide: int, channels: int, lines: int, line: int) -> None:
    """Copy each output's kernel into the middle of a zeroed block, so that shifting it needs no bounds checks."""
    w, (top, left) = pen.w, (pen.window.pool[0] - 1, pen.window.pool[1] - 1)
    o, (y, x, c) = pen.output_step("weight"), pen.steps("weight")
    w.emit(f"ws_clear_{pen.suffix}(packed, {outputs * lines * line + 16});")
    with w.loop("o", "0", str(outputs)):
        target = f"packed + o*{lines * line} + {top * line + left * channels}"
        source = f"{pen.at('weight')} + o*{o}"
        copy_image(pen, target, source, (tall, wide, channels), line, (y, x, c))
