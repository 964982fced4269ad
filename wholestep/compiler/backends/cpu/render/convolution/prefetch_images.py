"""Software prefetch in Winograd kernels: the next image and the epilogue's operands are fetched while products run.

The products of one position at a time prefetch a few cache lines each; all at once would delay the products themselves.
Results do not depend on it: a prefetch past the last image is harmless, since nothing waits for it.
"""

from __future__ import annotations

from wholestep.compiler.backends.cpu.convolution.winograd import POSITIONS
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.backends.cpu.render.address import axis_stride
from wholestep.compiler.backends.cpu.render.convolution.common import WindowWriter
from wholestep.compiler.backends.cpu.render.convolution.weight_packing import Panels
from wholestep.compiler.plan.model.kernel import Layout, Load

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
    """Prefetch position s's part of what the epilogue of a panel accesses in `rows` rows of pixels from row `first`."""
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
