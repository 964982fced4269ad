"""C source of max pools that are not fused with a convolution: values, positions and gradients."""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compiler.backends.cpu.convolution.padding import columns_of
from wholestep.compiler.backends.cpu.render.convolution.common import (
    ChannelRun,
    Lanes,
    WindowWriter,
    channel_epilogue,
    image_epilogue,
)
from wholestep.compiler.backends.cpu.render.writer import CWriter
from wholestep.compiler.ir.types import uint8


def _position(pen: WindowWriter) -> str:
    """The C suffix of the integer type that stores positions in this pool's window."""
    buffer = pen.w.plan.buffers[dict(pen.tiles.work)["positions"]]
    return "u8" if buffer.type.dtype == uint8 else "i32"


def _by_channels(pen: WindowWriter, channels: int, sources: Mapping[str, str]) -> None:
    """The epilogue of one pixel whose channels are in the workspace."""
    w, columns = pen.w, columns_of(channels)
    if channels <= columns:
        run = ChannelRun(columns, channels)
        Lanes(pen, run).hoist()
        channel_epilogue(pen, run, {op: f"{text}[l]" for op, text in sources.items()})
        return
    with w.loop("p", "0", str(-(-channels // columns))):
        run = ChannelRun(columns, channels, f"p*{columns}")
        Lanes(pen, run).hoist()
        at_panel = {op: f"{text}[p*{columns} + l]" for op, text in sources.items()}
        channel_epilogue(pen, run, at_panel)


def render_max_pool2d(w: CWriter) -> None:
    pen = WindowWriter(w)
    a = pen.window
    height, width, channels = pen.sizes("x")
    rows, columns, _ = pen.result_image()
    suffix = _position(pen)
    with w.loop("i0", *w.span(0)), w.loop("i1", "0", str(rows)), w.loop("i2", "0", str(columns)):
        pen.call(
            *(f"ws_pool_pixel_{pen.suffix}_{suffix}", "best", "positions", pen.at("x"), channels, height, width),
            *(*a.pool, f"i1*{a.stride[0]} - {a.low[0]}", f"i2*{a.stride[1]} - {a.low[1]}", *pen.steps("x")),
        )
        _by_channels(pen, channels, {"acc": "best", "position": "positions"})


def render_max_pool2d_grad(w: CWriter) -> None:
    pen = WindowWriter(w)
    a = pen.window
    rows, columns, channels = pen.sizes("g")
    height, width, _ = pen.result_image()
    with w.loop("i0", *w.span(0)):
        w.emit(f"ws_clear_{pen.suffix}(image, {height * width * channels});")
        with w.loop("i", "0", str(rows)), w.loop("j", "0", str(columns)), w.loop("c", "0", str(channels)):
            g, at = _cell(pen, "g"), _cell(pen, "index")
            w.emit(f"const long y = i*{a.stride[0]} - {a.low[0]} + {at}/{a.pool[1]};")
            w.emit(f"const long x = j*{a.stride[1]} - {a.low[1]} + {at}%{a.pool[1]};")
            inside = f"(unsigned long)y < {height} && (unsigned long)x < {width}"  # no store out of bounds
            w.emit(f"if ({inside}) image[(y*{width} + x)*{channels} + c] += {g};")
        image_epilogue(pen, height, width, channels, width * channels, (0, 0))


def _cell(pen: WindowWriter, name: str) -> str:
    row, pixel, channel = pen.steps(name)
    return f"({pen.at(name)})[i*{row} + j*{pixel} + c*{channel}]"


def render_max_pool2d_pick(w: CWriter) -> None:
    pen = WindowWriter(w)
    a = pen.window
    height, width, channels = pen.sizes("x")
    x_row, x_pixel, x_channel = pen.steps("x")
    rows, columns, _ = pen.result_image()
    with w.loop("i0", *w.span(0)), w.loop("i1", "0", str(rows)), w.loop("i2", "0", str(columns)):
        w.emit("const long i = i1, j = i2;")
        with w.loop("c", "0", str(channels)):
            at = _cell(pen, "index")
            w.emit(f"const long y = i*{a.stride[0]} - {a.low[0]} + {at}/{a.pool[1]};")
            w.emit(f"const long x = j*{a.stride[1]} - {a.low[1]} + {at}%{a.pool[1]};")
            place = f"ws_clamp(y, {height - 1})*{x_row} + ws_clamp(x, {width - 1})*{x_pixel} + c*{x_channel}"
            w.emit(f"best[c] = ({pen.at('x')})[{place}];")
        _by_channels(pen, channels, {"acc": "best"})
