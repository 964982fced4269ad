"""C source of 3 x 3 convolutions by Winograd's F(2x2, 3x3), and of their weight gradients.

Images and weights are transformed to 16 positions per tile of 2 x 2 pixels, each position is an ordinary product over
the channels, and the products are transformed back.  Rows of tiles are processed in blocks that stay in the caches.

Meanwhile the next image and the epilogue's operands are prefetched: the products of one position at a time prefetch a
few cache lines each; all at once would delay the products themselves.  Results do not depend on it, and a prefetch past
the last image is harmless, since nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from wholestep.compiler.backends.cpu.convolution.padding import round_up
from wholestep.compiler.backends.cpu.convolution.winograd import POSITIONS, TILE_OUTPUTS, position_step, tiles_of
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.backends.cpu.render.address import axis_stride
from wholestep.compiler.backends.cpu.render.convolution.common import WindowWriter, clear_frame, copy_image, stage_image
from wholestep.compiler.backends.cpu.render.convolution.weight_packing import Panels, enter_panels
from wholestep.compiler.plan.model.kernel import Layout, Load

# Up to this many threads that divide a weight's outputs, each prefetches all of the next images; more divide them.
FEW_THREADS = 2


def transform_weights(pen: WindowWriter, panels: Panels, depth: int) -> None:
    """Transform the packed weight, panel by panel, to [position][channel][lane]."""
    with pen.w.loop("p", "0", str(panels.count)):
        pen.call(
            *(f"ws_winograd_weights_{pen.suffix}_wide", f"parts + p*{POSITIONS * depth * LANES}"),
            *(f"packed + p*{9 * depth * LANES}", depth * LANES),
        )


def image_by_tiles(
    pen: WindowWriter,
    panels: Panels,
    depth: int,
    size: tuple[int, int],
    frame: str,
    row: int,
    finish: Callable[[str], None],
) -> None:
    """All tiles of an image, some rows at a time; `finish` emits the epilogue of the pixel rows in `block`."""
    w, rows = pen.w, pen.tiles.rows
    down, across = tiles_of(size)
    tiles, padded, line = rows * across, round_up(depth), 2 * across * LANES
    step, product_step = position_step(tiles, depth), position_step(tiles, LANES)
    with w.loop("y", "0", str(down), str(rows)):
        with w.loop("r", "0", str(rows)):
            pen.call(
                *(f"ws_winograd_image_{pen.suffix}_wide", f"tiles + r*{across * padded}", step),
                *(f"{frame} + (y + r)*{2 * row}", row, depth, padded, across),
            )
        with ExitStack() as stack:
            enter_panels(pen, stack, panels)
            panel = f" + p*{POSITIONS * depth * LANES}" * (panels.count > 1)
            with w.loop("s", "0", str(POSITIONS)):
                share = f"y/{rows}*{panels.count * POSITIONS}" + f" + p*{POSITIONS}" * (panels.count > 1) + " + s"
                fetch_next_image(pen, pen.images, "i0", down // rows * panels.count * POSITIONS, share)
                fetch_for_epilogue(pen, panels, 2 * rows, size[1], "y*2")
                pen.call(
                    *(f"ws_conv_row_{pen.tile(LANES)}", tiles, LANES, f"products + s*{product_step}", LANES),
                    *(f"tiles + s*{step}", padded, 1, 0, 1, 0, depth, f"parts{panel} + s*{depth * LANES}"),
                )
            with w.loop("r", "0", str(rows)):
                pen.call(
                    *(f"ws_winograd_pixels_{pen.suffix}_wide", f"block + r*{2 * line}", line),
                    *(f"products + r*{across * LANES}", product_step, LANES, across),
                )
            finish("y*2")


def render_weight_by_tiles(pen: WindowWriter) -> None:
    """A weight's gradient: the adjoint of the algorithm, whose sums are transformed back after the last image."""
    w = pen.w
    _, _, channels = pen.sizes("x")
    rows, columns, outputs = pen.sizes("g")
    down, across = tiles_of((rows, columns))
    row, padded = pen.frame.row, round_up(channels)
    lo, hi = w.span(0)
    output = POSITIONS * padded
    pen.call(
        f"ws_clear_{pen.suffix}",
        f"sums + {lo}*{output}",
        f"({hi} - {lo} + {TILE_OUTPUTS - 1})/{TILE_OUTPUTS}*{TILE_OUTPUTS * output}",
    )
    clear_frame(pen)
    if "around" in pen.work:
        w.emit(f"ws_clear_{pen.suffix}(around, {4 * down * across * outputs + 16});")
    with pen.batch_loop():
        stage_image(pen, "x", "n")
        g_row = _stage_gradient(pen, across)
        _tiles_of_weight(pen, row, g_row)
    with w.loop("o", lo, hi):
        o = pen.output_step("result")
        pen.call(
            f"ws_winograd_taps_{pen.suffix}_wide", f"{pen.at('result')} + o*{o}", f"sums + o*{output}", channels, padded
        )


def _stage_gradient(pen: WindowWriter, across: int) -> int:
    """Let `g` be the image's gradient, zero-padded where tiles extend over its edge; returns the elements of a row."""
    rows, columns, outputs = pen.sizes("g")
    g_row, g_pixel, g_channel = pen.steps("g")
    if "around" not in pen.work:
        pen.w.emit(f"const {pen.real} *const g = {pen.at('g', 'n')};")
        return g_row
    line = 2 * across * outputs
    copy_image(pen, "around", pen.at("g", "n"), (rows, columns, outputs), line, (g_row, g_pixel, g_channel))
    pen.w.emit(f"const {pen.real} *const g = around;")
    return line


def _tiles_of_weight(pen: WindowWriter, row: int, g_row: int) -> None:
    """Add the contribution of one image to the sums of this thread's outputs."""
    w, block = pen.w, pen.tiles.rows
    rows, columns, outputs = pen.sizes("g")
    channels = pen.sizes("x")[2]
    (down, across), padded, lanes = tiles_of((rows, columns)), round_up(channels), round_up(outputs)
    step, g_step = position_step(block * across, channels), position_step(block * across, outputs)
    lo, hi = w.span(0)
    with w.loop("y", "0", str(down), str(block)):
        with w.loop("r", "0", str(block)):
            pen.call(
                *(f"ws_winograd_image_{pen.suffix}_wide", f"tiles + r*{across * padded}", step),
                *(f"frame + (y + r)*{2 * row}", row, channels, padded, across),
            )
            w.emit(f"const long first = {lo}/{LANES}*{LANES};")
            pen.call(
                *(f"ws_winograd_gradient_{pen.suffix}_wide", f"gradients + r*{across * lanes} + first", g_step),
                *(lanes, f"g + (y + r)*{2 * g_row} + first", g_row, outputs, f"{hi} - first", across),
            )
        with w.loop("o", lo, hi, str(TILE_OUTPUTS)), w.loop("s", "0", str(POSITIONS)):
            parts = max(1, outputs // TILE_OUTPUTS // FEW_THREADS)
            share = f"(y/{block}*{parts} + (o - {lo})/{TILE_OUTPUTS})*{POSITIONS} + s"
            for name in ("x", "g"):
                fetch_next_image(pen, name, "n", down // block * parts * POSITIONS, share)
            pen.call(
                *(f"ws_winograd_products_{pen.suffix}_wide", padded, f"sums + (o*{POSITIONS} + s)*{padded}"),
                *(f"gradients + o + s*{g_step}", lanes, f"tiles + s*{step}", block * across),
            )


LINE = 64  # bytes of a cache line


def fetch_next_image(pen: WindowWriter, name: str, batch: str, shares: int, share: str) -> None:
    """Prefetch one of `shares` equal parts of the image after image `batch`."""
    if not pen.w.schedule.prefetch:
        return
    height, width, channels = pen.sizes(name)
    lines = -(-height * width * channels * pen.dtype.size // (LINE * shares))
    pen.call(
        "ws_fetch_read", f"(const char *)({pen.at(name, f'({batch} + 1)')}) + ({share})*{lines * LINE}", lines, LINE
    )


def fetch_for_epilogue(pen: WindowWriter, panels: Panels, rows: int, columns: int, first: str) -> None:
    """Prefetch position s's part of the epilogue operands of a panel in `rows` rows of pixels from row `first`."""
    if not pen.w.schedule.prefetch or pen.window.pooled is not None:
        return
    (level,) = pen.w.kernel.levels
    written = {s.load.buffer: s.load for s in level.stores}
    read = {i.load.buffer: i.load for i in level.body if i.load is not None}
    pixels, axes = -(-rows * columns // POSITIONS), pen.w.axes
    for buffer, load in (read | written).items():
        if not _is_dense(pen, load, columns, panels.outputs):
            continue
        saved_axes = dict(axes)
        axes.update({1: first, 2: "0", 3: panels.run().base})
        start, size = pen.w.address(load), pen.w.plan.buffers[buffer].type.dtype.size
        axes.update(saved_axes)
        for line in range(-(-LANES * size // LINE)):
            at = f"{start} + s*{pixels * panels.outputs} + {line * LINE // size}"
            pen.call(f"ws_fetch_{'own' if buffer in written else 'read'}", at, pixels, panels.outputs * size)


def _is_dense(pen: WindowWriter, load: Load, columns: int, channels: int) -> bool:
    """Are the pixels of an image contiguous in memory?"""
    buffer = pen.w.plan.buffers[load.buffer]
    if buffer.layout != Layout.ROWS or any(i.value is not None or i.over != 1 for i in load.index):
        return False
    return [axis_stride(load, a, buffer)[0] for a in (1, 2, 3)] == [columns * channels, channels, 1]
