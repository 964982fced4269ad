"""C source of implicit-GEMM convolutions and their gradients: products over pixels of several images.

`cpu/convolution/implicit_gemm.py` explains the algorithm and says when it is used.
"""

from __future__ import annotations

from wholestep.compiler.backends.cpu.convolution.implicit_gemm import ConvolutionGeometry, pixel_step
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.backends.cpu.render.convolution.common import (
    ChannelRun,
    Lanes,
    WindowWriter,
    channel_epilogue,
    copy_image,
)


def render_implicit_gemm(pen: WindowWriter, adjoint: bool) -> None:
    w, block, depth = pen.w, pen.tiles.images, pen.sizes(pen.images)[2]
    m = _geometry(pen, adjoint)
    columns = m.columns(depth)
    taps, o = _tables(pen, m), pen.output_step("weight")
    (_, last), (first_channel, last_channel) = w.span(0), w.span(3)
    with w.loop("n0", *w.span(0), str(block)):
        w.emit(f"const long nb = {last} - n0 < {block} ? {last} - n0 : {block};")
        _gather(pen, m)
        with w.loop("c0", first_channel, last_channel, str(columns)):
            w.emit(f"const long cb = {last_channel} - c0 < {columns} ? {last_channel} - c0 : {columns};")
            w.emit(f"const ws_taps of = {{{int(adjoint)}, nb, cb, {depth}, images, {pixel_step(depth)},")
            w.emit(f"  {pen.at('weight')} + c0*{taps if adjoint else o}, {o}, packed, block, {m.output},")
            w.emit(f"  {taps}, taps, spans}};")
            w.emit("ws_add_taps(call->api, &of);")
            _epilogue(pen, m)


def _geometry(pen: WindowWriter, adjoint: bool) -> ConvolutionGeometry:
    a, input_size = pen.window, pen.sizes(pen.images)[:2]
    result_size = pen.result_image()[:2]
    size, windows = (result_size, input_size) if adjoint else (input_size, result_size)
    return ConvolutionGeometry(adjoint, size, windows, pen.sizes("weight")[:2], a.stride, a.low, a.dilation)


def _tables(pen: WindowWriter, m: ConvolutionGeometry) -> int:
    """Emit the taps in the order in which they are added, and the spans of each; returns the number of taps."""
    order = [(i, j) for i in range(m.kernel[0]) for j in range(m.kernel[1])]
    taps, spans = list[str](), list[str]()
    for i, j in reversed(order) if m.adjoint else order:
        tap_spans = m.spans(i, j)
        taps.append(f"{{{i * m.kernel[1] + j}, {len(tap_spans)}}}")
        spans += (f"{{{s.output}, {s.input}, {s.count}}}" for s in tap_spans)
    pen.w.emit(f"static const ws_tap taps[] = {{{', '.join(taps)}}};")
    pen.w.emit(f"static const ws_span spans[] = {{{', '.join(spans) or '{0}'}}};")
    return len(taps)


def _place(m: ConvolutionGeometry, of_pixels: bool, row: str, column: str) -> str:
    """C expression for the position of a pixel or a window within its image."""
    stride = m.stride[1]
    if not of_pixels:
        return f"{row}*{m.windows[1]} + {column}"
    if stride == 1:
        return f"{row}*{m.line} + {column}"
    return f"{row}*{m.line} + {column}%{stride}*{m.line // stride} + {column}/{stride}"


def _gather(pen: WindowWriter, m: ConvolutionGeometry) -> None:
    """Copy the pixels of images n0 to n0 + nb into the workspace as [row][column][image]."""
    w, (height, width, channels), (row, column, channel) = pen.w, pen.sizes(pen.images), pen.steps(pen.images)
    with w.loop("n", "0", "nb"), w.loop("y", "0", str(height)), w.loop("x", "0", str(width)):
        to = f"images + (({_place(m, not m.adjoint, 'y', 'x')})*nb + n)*{pixel_step(channels)}"
        source = f"{pen.at(pen.images, '(n0 + n)')} + y*{row} + x*{column}"
        copy_image(pen, to, source, (1, 1, channels), 0, (0, channels, channel))


def _epilogue(pen: WindowWriter, m: ConvolutionGeometry) -> None:
    """The epilogue of channels c0 to c0 + cb of the block's pixels."""
    w = pen.w
    rows, columns, channels = pen.result_image()
    with w.loop("p", "0", f"(cb + {LANES - 1})/{LANES}"):
        run = ChannelRun(LANES, channels, f"c0 + p*{LANES}")
        Lanes(pen, run).hoist()
        with w.loop("i0", "n0", "n0 + nb"), w.loop("i1", "0", str(rows)), w.loop("i2", "0", str(columns)):
            at = f"((p*{m.output} + {_place(m, m.adjoint, 'i1', 'i2')})*nb + i0 - n0)*{LANES}"
            w.emit(f"const {pen.real} *const acc = block + {at};")
            channel_epilogue(pen, run, {"acc": "acc[l]"})


def render_weight_in_place(pen: WindowWriter) -> None:
    """A weight's gradient over small images, which are read in place: all images for a few outputs at a time."""
    w, a = pen.w, pen.window
    (rows, columns, _), (height, width, channels), (tall, wide, _) = (pen.sizes(n) for n in ("g", "x", "result"))
    (g_row, g_pixel, g_channel), (x_row, x_pixel, _) = pen.steps("g"), pen.steps("x")
    m = ConvolutionGeometry(True, (height, width), (rows, columns), (tall, wide), a.stride, a.low, a.dilation)
    entries = []
    for tap in range(tall * wide):
        down, across = m.along(0, tap // wide), m.along(1, tap % wide)
        (y, x), (v, u) = down[0] if down else (0, 0), across[0] if across else (0, 0)
        entry = y * g_row + v * g_pixel, x * x_row + u * x_pixel, len(down), len(across)
        entries.append(f"{{{', '.join(map(str, entry))}}}")
    w.emit(f"static const ws_met met[] = {{{', '.join(entries)}}};")
    images = w.extent(w.kernel.axes[pen.operands["x"].axes[0]])
    w.emit(f"const ws_weights of = {{{images}, {channels},")
    w.emit(f"  {pen.at('g', '0')}, {pen.output_step('g')}, {g_row}, {g_pixel}, {g_channel},")
    w.emit(f"  {pen.at('x', '0')}, {pen.output_step('x')}, {a.stride[0] * x_row}, {a.stride[1] * x_pixel},")
    w.emit(f"  {pen.at('result')}, {tall * wide}, met}};")
    w.emit(f"ws_weights_of_images(&of, {', '.join(w.span(0))});")
