"""Convolutions of 3 x 3 by tiles of 2 x 2 pixels: images and weights are transformed, multiplied, and back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from wholestep.compiler.backends.cpu.convolution.padding import round_up
from wholestep.compiler.backends.cpu.convolution.winograd import POSITIONS, TILE_OUTPUTS, position_step, tiles_of
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.backends.cpu.render.convolution.common import Pen, clear_frame, copy_image, stage
from wholestep.compiler.backends.cpu.render.convolution.prefetch_images import fetch_for_epilogue, fetch_next_image
from wholestep.compiler.backends.cpu.render.convolution.weight_packing import Panels, enter_panels

FEW_THREADS = 2  # that share the outputs of a weight: each fetches all of the next images; of more, each a part of them


def transform_weights(pen: Pen, panels: Panels, depth: int) -> None:
    """The packed weight, panel by panel, [position][channel][lane]."""
    with pen.w.loop("p", "0", str(panels.count)):
        pen.call(
            *(f"ws_winograd_weights_{pen.suffix}_wide", f"parts + p*{POSITIONS * depth * LANES}"),
            *(f"packed + p*{9 * depth * LANES}", depth * LANES),
        )


def image_by_tiles(
    pen: Pen, panels: Panels, depth: int, size: tuple[int, int], frame: str, row: int, finish: Callable[[str], None]
) -> None:
    """All tiles of an image, some rows at a time; `finish` gets the first of the rows of pixels that lie in `block`."""
    w, some = pen.w, pen.tiles.rows
    down, across = tiles_of(size)
    tiles, padded, line = some * across, round_up(depth), 2 * across * LANES
    step, product_step = position_step(tiles, depth), position_step(tiles, LANES)
    with w.loop("y", "0", str(down), str(some)):
        with w.loop("r", "0", str(some)):
            pen.call(
                *(f"ws_winograd_image_{pen.suffix}_wide", f"tiles + r*{across * padded}", step),
                *(f"{frame} + (y + r)*{2 * row}", row, depth, padded, across),
            )
        with ExitStack() as stack:
            enter_panels(pen, stack, panels)
            panel = f" + p*{POSITIONS * depth * LANES}" * (panels.count > 1)
            with w.loop("s", "0", str(POSITIONS)):
                share = f"y/{some}*{panels.count * POSITIONS}" + f" + p*{POSITIONS}" * (panels.count > 1) + " + s"
                fetch_next_image(pen, pen.images, "i0", down // some * panels.count * POSITIONS, share)
                fetch_for_epilogue(pen, panels, 2 * some, size[1], "y*2")
                pen.call(
                    *(f"ws_conv_row_{pen.tile(LANES)}", tiles, LANES, f"products + s*{product_step}", LANES),
                    *(f"tiles + s*{step}", padded, 1, 0, 1, 0, depth, f"parts{panel} + s*{depth * LANES}"),
                )
            with w.loop("r", "0", str(some)):
                pen.call(
                    *(f"ws_winograd_pixels_{pen.suffix}_wide", f"block + r*{2 * line}", line),
                    *(f"products + r*{across * LANES}", product_step, LANES, across),
                )
            finish("y*2")


def render_weight_by_tiles(pen: Pen) -> None:
    """The gradient of a weight: the adjoint of all this, with sums that are transformed back at the end."""
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
    batch = pen.operands["x"].axes[0]
    w.scope.axes[batch] = "n"
    with w.loop("n", "0", w.scope.extent(w.kernel.axes[batch])):
        stage(pen, "x", "n")
        g_row = _stage_gradient(pen, across)
        _tiles_of_weight(pen, row, g_row)
    with w.loop("o", lo, hi):
        o = pen.output_step("result")
        pen.call(
            f"ws_winograd_taps_{pen.suffix}_wide", f"{pen.at('result')} + o*{o}", f"sums + o*{output}", channels, padded
        )


def _stage_gradient(pen: Pen, across: int) -> int:
    """`g` is the image's gradient with zeros where tiles reach over its edge; gives the elements of a row."""
    rows, columns, outputs = pen.sizes("g")
    g_row, g_pixel, g_channel = pen.steps("g")
    if "around" not in pen.work:
        pen.w.emit(f"const {pen.real} *const g = {pen.at('g', 'n')};")
        return g_row
    line = 2 * across * outputs
    copy_image(pen, "around", pen.at("g", "n"), (rows, columns, outputs), line, (g_row, g_pixel, g_channel))
    pen.w.emit(f"const {pen.real} *const g = around;")
    return line


def _tiles_of_weight(pen: Pen, row: int, g_row: int) -> None:
    """What one image adds to the sums of this thread's outputs."""
    w, some = pen.w, pen.tiles.rows
    rows, columns, outputs = pen.sizes("g")
    channels = pen.sizes("x")[2]
    (down, across), padded, lanes = tiles_of((rows, columns)), round_up(channels), round_up(outputs)
    step, g_step = position_step(some * across, channels), position_step(some * across, outputs)
    lo, hi = w.span(0)
    with w.loop("y", "0", str(down), str(some)):
        with w.loop("r", "0", str(some)):
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
            share = f"(y/{some}*{parts} + (o - {lo})/{TILE_OUTPUTS})*{POSITIONS} + s"
            for name in ("x", "g"):
                fetch_next_image(pen, name, "n", down // some * parts * POSITIONS, share)
            pen.call(
                *(f"ws_winograd_products_{pen.suffix}_wide", padded, f"sums + (o*{POSITIONS} + s)*{padded}"),
                *(f"gradients + o + s*{g_step}", lanes, f"tiles + s*{step}", some * across),
            )
