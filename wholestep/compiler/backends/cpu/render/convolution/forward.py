"""C source of direct convolutions and their gradients in the image, one row of the result at a time.

Each row is computed by register tiles over packed weight panels; a max pool may be fused into the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from wholestep.compiler.backends.cpu.convolution.padding import runs
from wholestep.compiler.backends.cpu.convolution.winograd import tiles_of
from wholestep.compiler.backends.cpu.kernel_schedule import Taps
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.backends.cpu.render.convolution.common import (
    Lanes,
    WindowWriter,
    clear_frame,
    name_sources,
    row_epilogue,
    stage_image,
)
from wholestep.compiler.backends.cpu.render.convolution.gemm import render_implicit_gemm
from wholestep.compiler.backends.cpu.render.convolution.weight_packing import (
    Panels,
    enter_panels,
    pack,
    packed_weight_address,
)
from wholestep.compiler.backends.cpu.render.convolution.winograd import image_by_tiles, transform_weights
from wholestep.compiler.backends.cpu.render.writer import CWriter
from wholestep.compiler.plan.model.kernel import POOL_AXES


def conv_row(
    pen: WindowWriter, panels: Panels, count: int, out: str, step: int, x: str, walk: Sequence[int], w: str
) -> None:
    """One row of `count` pixels for one panel of output channels.

    `walk`: pixel stride, rows, row stride, then taps per row, their distance in pixels, and channels of the frame.
    """
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


def render_conv2d(w: CWriter) -> None:
    pen = WindowWriter(w)
    if pen.tiles.images:
        render_implicit_gemm(pen, adjoint=False)
        return
    a = pen.window
    _, _, channels = pen.sizes("x")
    outputs, (tall, wide, inner) = pen.outputs("weight"), pen.sizes("weight")
    panels = Panels(a.groups, outputs, inner)
    pool = a.pool if a.pooled is not None else (1, 1)
    rows, columns, _ = pen.result_image()
    full = rows * pool[0], columns * pool[1]  # the convolution's result, before a fused pool
    row = pen.frame.row
    taps = (pen.table("down", range(tall)), tall, pen.table("across", range(wide)), wide)
    size = pack(pen, panels, taps, inner, 0, transposed=False)
    if pen.tiles.rows:
        transform_weights(pen, panels, channels)
    clear_frame(pen)
    with w.loop("i0", *w.span(0)):
        stage_image(pen, "x")
        if pen.tiles.rows:
            image_by_tiles(pen, panels, channels, full, "frame", row, partial(_rows_of_tiles, pen, panels, full, pool))
            return
        with ExitStack() as stack:
            stack.enter_context(w.loop("i1", "0", str(rows)))
            enter_panels(pen, stack, panels)
            walk = (a.stride[1] * channels, tall, a.dilation[0] * row, wide, a.dilation[1], channels)
            packed = packed_weight_address(panels, 0, size)
            if a.pooled is None:
                conv_row(pen, panels, columns, "block", panels.columns, f"frame + i1*{a.stride[0] * row}", walk, packed)
                row_epilogue(pen, columns, panels.run())
            else:
                _rows_to_pool(pen, panels, pool, columns, walk, row, packed)
                _pool_row(pen, panels, pool, columns, columns * pool[1], "block")


def _rows_of_tiles(pen: WindowWriter, panels: Panels, size: tuple[int, int], pool: Sequence[int], first: str) -> None:
    """The epilogue of the rows in `block`, from row `first` on; the last tiles may extend over the edge."""
    w, block_height = pen.w, 2 * pen.tiles.rows
    across = 2 * tiles_of(size)[1]
    rows, pooled_rows = size[0] // pool[0], block_height // pool[0]
    begin = first if pool[0] == 1 else f"{first}/{pool[0]}"
    end = f"{begin} + {pooled_rows}"
    with w.loop("i1", begin, end if size[0] % block_height == 0 else f"({end} < {rows} ? {end} : {rows})"):
        at = f"block + (i1*{pool[0]} - {first})*{across * LANES}"
        if pen.window.pooled is None:
            row_epilogue(pen, size[1], panels.run(), at)
        else:
            _pool_row(pen, panels, pool, size[1] // pool[1], across, at)


def _rows_to_pool(
    pen: WindowWriter, panels: Panels, pool: Sequence[int], columns: int, walk: Sequence[int], row: int, packed: str
) -> None:
    """The rows of the convolution under one row of the pool."""
    across, width = columns * pool[1], panels.columns
    with pen.w.loop("i4", "0", str(pool[0])):
        at = f"frame + (i1*{pool[0]} + i4)*{pen.window.stride[0] * row}"
        conv_row(pen, panels, across, f"block + i4*{across * width}", width, at, walk, packed)


def _pool_row(pen: WindowWriter, panels: Panels, pool: Sequence[int], columns: int, across: int, at: str) -> None:
    """For each pixel of a pool, the epilogue of the pixels in its window, then their maximum.

    `at` is the address of rows of `across` pixels each.
    """
    w, width = pen.w, panels.columns
    run = Lanes(pen, panels.run())
    run.hoist()
    with w.loop("i2", "0", str(columns)), run.loop(w.kernel.levels):
        w.emit(f"{pen.real} best = 0; int32_t at = 0;")
        for i in range(pool[0]):
            for j in range(pool[1]):
                candidate(pen, run, i, j, f"({at})[({i * across + j} + i2*{pool[1]})*{width} + l]")
        name_sources(pen, w.kernel.levels[1], {"acc": "best", "position": "at"})
        run.instructions(w.kernel.levels[1])
        run.stores(w.kernel.levels[1])


def candidate(pen: WindowWriter, run: Lanes, i: int, j: int, acc: str) -> None:
    """One pixel of a pool's window: the first maximum wins, and NaN compares larger than anything."""
    w, a = pen.w, pen.window
    assert a.pooled is not None
    level = w.kernel.levels[0]
    with w.block(""):
        name_sources(pen, level, {"acc": acc})
        w.axes[POOL_AXES[0]], w.axes[POOL_AXES[1]] = str(i), str(j)
        run.instructions(level)
        w.emit(f"const {pen.real} value = {w.values[a.pooled]};")
        wins = "(value > best) | (value != value)" if i or j else "1"
        w.emit(f"const int wins = {wins};")
        w.emit(f"best = wins ? value : best, at = wins ? {i * a.pool[1] + j} : at;")


def render_conv2d_grad_input(w: CWriter) -> None:
    pen = WindowWriter(w)
    if pen.tiles.images:
        render_implicit_gemm(pen, adjoint=True)
        return
    a = pen.window
    _, _, outputs = pen.sizes("g")
    height, width, channels = pen.result_image()
    down, across, row = pen.tiles.down, pen.tiles.across, pen.frame.row
    panels = Panels(a.groups, channels, outputs // a.groups)
    offsets, sizes = _pack_phases(pen, panels, down, across, outputs // a.groups)
    if pen.tiles.rows:
        transform_weights(pen, panels, outputs)
    clear_frame(pen)
    with w.loop("i0", *w.span(0)):
        stage_image(pen, "g")
        if pen.tiles.rows:
            start, size = f"frame + {down[0].start * row + across[0].start * outputs}", (height, width)
            image_by_tiles(pen, panels, outputs, size, start, row, partial(_rows_of_tiles, pen, panels, size, (1, 1)))
            return
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
                        packed = packed_weight_address(panels, offsets[i, j], sizes[i, j])
                        conv_row(pen, panels, x.pixels, out, a.stride[1] * panels.columns, at, walk, packed)
                row_epilogue(pen, width, panels.run())


def _pack_phases(
    pen: WindowWriter, panels: Panels, down: Sequence[Taps], across: Sequence[Taps], depth: int
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Pack the taps of each phase contiguously; returns their offsets, and the elements of a panel."""
    rows = [pen.table(f"down{i}", y.taps) for i, y in enumerate(down)]
    columns = [pen.table(f"across{j}", x.taps) for j, x in enumerate(across)]
    offsets, sizes, offset = {}, {}, 0
    for i, y in enumerate(down):
        for j, x in enumerate(across):
            offsets[i, j] = offset
            taps = (rows[i], len(y.taps), columns[j], len(x.taps))
            sizes[i, j] = pack(pen, panels, taps, depth, offset, transposed=True)
            offset += panels.loops * panels.count * sizes[i, j]
    return offsets, sizes
