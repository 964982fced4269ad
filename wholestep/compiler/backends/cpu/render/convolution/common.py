"""Shared parts of the C source of all window kernels: operand sizes, strides, addresses, and the fused epilogue.

The epilogue (bias, activation, residual ...) is an inner loop over one panel of channels, which gcc vectorizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from wholestep.compiler.backends.cpu.convolution.padding import columns_of
from wholestep.compiler.backends.cpu.kernel_schedule import PaddedImage, tiles_of
from wholestep.compiler.backends.cpu.render.address import axis_stride
from wholestep.compiler.backends.cpu.render.language import LOCAL, STORED, SUFFIX
from wholestep.compiler.backends.cpu.render.writer import CWriter, simd
from wholestep.compiler.ir.types import DType, Extent
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Instr, Layout, Level, Load, Operand, Store

LONG_RUN = 32  # elements: from contiguous runs of this length on, a shared library loop is as fast as a specialized one
COLUMN = 2  # the axis of a pixel's column in kernels whose result is an image


class WindowWriter:
    """Operand sizes, strides and addresses of one window kernel, and the writer of its C source."""

    def __init__(self, w: CWriter) -> None:
        assert isinstance(w.kernel.body, Window)
        self.w, self.window, self.tiles = w, w.kernel.body, tiles_of(w.kernel)
        self.operands: Mapping[str, Operand] = {o.name: o for o in (*self.window.operands, *self.window.results)}
        self.images = "g" if "g" in self.operands else "x"
        self.dtype = w.plan.buffers[self.operands[self.images].load.buffer].type.dtype
        self.suffix, self.real = SUFFIX[self.dtype], STORED[self.dtype]
        self.work = {name for name, _ in self.tiles.work}

    @property
    def frame(self) -> PaddedImage:
        assert self.tiles.frame is not None, f"{self.window.op} has a frame"
        return self.tiles.frame

    def result_image(self) -> tuple[int, int, int]:
        """Rows, columns and channels of the image that the kernel computes."""
        rows, columns, channels = (_number(extent) for extent in self.w.kernel.axes[1:4])
        return rows, columns, channels

    def sizes(self, name: str) -> tuple[int, int, int]:
        """Rows, columns and channels of images, or of a weight."""
        height, width, channels = (_number(self.w.kernel.axes[a]) for a in self.operands[name].axes[-3:])
        return height, width, channels

    def outputs(self, name: str) -> int:
        """The number of output channels of a weight."""
        return _number(self.w.kernel.axes[self.operands[name].axes[-4]])

    def steps(self, name: str) -> tuple[int, int, int]:
        """Elements from one row, column, channel to the next."""
        row, column, channel = (self._step(name, a) for a in self.operands[name].axes[-3:])
        return row, column, channel

    def output_step(self, name: str) -> int:
        """Elements from one output channel of a weight to the next."""
        return self._step(name, self.operands[name].axes[-4])

    def _step(self, name: str, axis: int) -> int:
        load = self.operands[name].load
        return _number(axis_stride(load, axis, self.w.plan.buffers[load.buffer])[0])

    def at(self, name: str, batch: str = "i0") -> str:
        """The address of an operand's first element, in image `batch` if the operand is a batch of images."""
        o, w = self.operands[name], self.w
        saved_axes = dict(w.axes)
        w.axes.update(dict.fromkeys(o.axes[-4:], "0"))
        if name not in ("weight", "result"):
            w.axes[o.axes[0]] = batch
        text = w.address(o.load)
        w.axes = saved_axes
        return text

    def batch_loop(self) -> AbstractContextManager[None]:
        """A loop over the images `n` of a weight's gradient, which is a sum over all of them."""
        batch = self.operands["x"].axes[0]
        self.w.axes[batch] = "n"
        return self.w.loop("n", "0", self.w.extent(self.w.kernel.axes[batch]))

    def table(self, name: str, values: Sequence[int], size: int | None = None) -> str:
        """Emit a table of `size` entries, by default as many as there are values; the remaining entries are 0."""
        self.w.emit(f"static const int {name}[{size or ''}] = {{{', '.join(map(str, values)) or '0'}}};")
        return name

    def call(self, function: str, *arguments: object) -> None:
        self.w.emit(f"{function}({', '.join(map(str, arguments))});")

    def tile(self, columns: int) -> str:
        """The suffix of the tile functions for panels of this many columns."""
        return f"{self.suffix}_{'narrow' if columns < 16 else 'wide'}"


def _number(extent: Extent) -> int:
    assert isinstance(extent, int), (
        f"ReadableViews.prepare() copies operands of window kernels with a stride of {extent}"
    )
    return extent


@dataclass(frozen=True)
class ChannelRun:
    """`columns` channels of a pixel, from channel `first` of a group of `channels`, which begins at channel `group`."""

    columns: int
    channels: int
    first: str = "0"
    group: str = "0"

    @property
    def base(self) -> str:
        """The first channel, counted from the pixel's first."""
        return " + ".join(term for term in (self.group, self.first) if term != "0") or "0"

    @property
    def rest(self) -> str:
        """The number of channels from `first` to the end of the group."""
        return str(self.channels) if self.channels < self.columns else f"({self.channels} - ({self.first}))"


class Lanes:
    """A vector loop over one run of channels."""

    def __init__(self, pen: WindowWriter, run: ChannelRun) -> None:
        self.pen, self.columns, self.base, self.rest = pen, run.columns, run.base, run.rest
        self.full = run.channels % run.columns == 0

    @contextmanager
    def loop(self, levels: Sequence[Level]) -> Iterator[None]:
        """All lanes are computed; lanes past the last channel load zeros and store nothing."""
        w = self.pen.w
        vector = w.kernel.vector
        assert vector is not None
        saved_values, axis = dict(w.values), w.axes[vector]
        w.axes[vector] = f"({self.base} + l)" if self.base != "0" else "l"
        for s in (s for level in levels for s in level.stores if self.is_deferred(s)):
            dtype = w.dtypes[s.value]
            w.emit(f"{'int32_t' if _is_narrow(dtype) else STORED[dtype]} lanes{s.value}[{self.columns}];")
        w.emit(simd(levels[-1]))
        with w.block(f"for (long l = 0; l < {self.columns}; l++)"):
            yield
        self.copy_out(levels[-1])
        w.axes[vector], w.values = axis, saved_values

    def hoist(self) -> None:
        """Load values that depend on the channel alone once per row of pixels.

        A conditional load inside the loop would make gcc unroll it instead of vectorizing it.
        """
        w = self.pen.w
        vector = w.kernel.vector
        assert vector is not None
        if self.full:
            return
        axis, w.axes[vector] = w.axes[vector], f"({self.base} + l)"
        for i in (i for level in w.kernel.levels for i in level.body):
            if i.load is not None and _axes(i) == {vector}:
                w.emit(f"{STORED[i.dtype]} fixed{i.id}[{self.columns}];")
                value = f"l < {self.rest} ? {w.expression(i)} : 0"
                w.emit(f"for (long l = 0; l < {self.columns}; l++) fixed{i.id}[l] = {value};")
        w.axes[vector] = axis

    def instructions(self, level: Level) -> None:
        w = self.pen.w
        for i in level.body:
            if i.load is not None and not self.full and _axes(i) == {w.kernel.vector}:
                w.emit(f"const {LOCAL[i.dtype]} v{i.id} = fixed{i.id}[l];")
            elif i.load is not None and not self.full:
                w.emit(f"const {LOCAL[i.dtype]} v{i.id} = l < {self.rest} ? {w.expression(i)} : 0;")
            else:
                w.instructions([i])

    def is_deferred(self, s: Store) -> bool:
        """Is the store deferred until after the vector loop?

        Yes for partial panels, and for types narrower than 4 bytes, which would make gcc narrow the float vectors too.
        """
        return not self.full or _is_narrow(self.pen.w.dtypes[s.value])

    def stores(self, level: Level) -> None:
        w = self.pen.w
        w.stores([s for s in level.stores if not self.is_deferred(s)])
        for value in dict.fromkeys(s.value for s in level.stores if self.is_deferred(s)):
            w.emit(f"lanes{value}[l] = {w.values[value]};")

    def copy_out(self, level: Level) -> None:
        """Store the lanes that exist with scalar moves, which take less time than a masked vector store."""
        w, vector = self.pen.w, self.pen.w.kernel.vector
        assert vector is not None
        count = self.rest if self.rest.isdigit() else f"({self.rest} < {self.columns} ? {self.rest} : {self.columns})"
        count = str(self.columns) if self.full else count
        for s in (s for s in level.stores if self.is_deferred(s)):
            w.emit(f"for (long l = 0; l < {count}; l++) {w.element(s.load)} = lanes{s.value}[l];")


def _is_narrow(dtype: DType) -> bool:
    return dtype.size < 4


def _axes(load: Instr) -> set[int]:
    """The axes that an element depends on; -1 means a computed index."""
    assert load.load is not None
    indices = [*load.load.index, *(g.index for g in load.guards)]
    return {a for i in indices for a, _ in i.terms} | ({-1} if any(i.value is not None for i in indices) else set())


def channel_epilogue(pen: WindowWriter, run: ChannelRun, sources: Mapping[str, str]) -> None:
    """The epilogue of a run of channels of one pixel, whose values are the C expressions in `sources`."""
    (level,) = pen.w.kernel.levels
    loop = Lanes(pen, run)
    with loop.loop([level]):
        name_sources(pen, level, sources)
        loop.instructions(level)
        loop.stores(level)


def name_sources(pen: WindowWriter, level: Level, sources: Mapping[str, str]) -> None:
    for i in level.body:
        if i.op in sources:
            pen.w.values[i.id] = sources[i.op]


def row_epilogue(pen: WindowWriter, count: int, run: ChannelRun, at: str = "block") -> None:
    """The epilogue of a row of pixels in the workspace."""
    w = pen.w
    Lanes(pen, run).hoist()
    with w.loop("i2", "0", str(count)):
        w.emit(f"const {pen.real} *const acc = {at} + i2*{run.columns};")
        channel_epilogue(pen, run, {"acc": "acc[l]"})


def image_epilogue(pen: WindowWriter, height: int, width: int, channels: int, row: int, low: Sequence[int]) -> None:
    """The epilogue of every pixel of an image in the workspace."""
    w, columns = pen.w, columns_of(channels)
    if channels % columns and _has_contiguous_rows(pen, channels):
        with w.loop("i1", "0", str(height)):
            w.emit(f"const {pen.real} *const acc = image + (i1 + {low[0]})*{row} + {low[1] * channels};")
            column, w.axes[COLUMN] = w.axes[COLUMN], "0"
            channel_epilogue(pen, ChannelRun(width * channels, width * channels), {"acc": "acc[l]"})
            w.axes[COLUMN] = column
        return
    with ExitStack() as stack:
        run = ChannelRun(columns, channels)
        if channels > columns:
            stack.enter_context(w.loop("p", "0", str(-(-channels // columns))))
            run = ChannelRun(columns, channels, f"p*{columns}")
        Lanes(pen, run).hoist()
        stack.enter_context(w.loop("i1", "0", str(height)))
        stack.enter_context(w.loop("i2", "0", str(width)))
        at = f"image + (i1 + {low[0]})*{row} + (i2 + {low[1]})*{channels} + {run.base}"
        w.emit(f"const {pen.real} *const acc = {at};")
        channel_epilogue(pen, run, {"acc": "acc[l]"})


def _has_contiguous_rows(pen: WindowWriter, channels: int) -> bool:
    """Is a row of pixels contiguous in everything that the epilogue reads and writes?"""
    (level,) = pen.w.kernel.levels
    if any(i.guards or i.index is not None for i in level.body):
        return False
    accesses = [i.load for i in level.body if i.load is not None] + [s.load for s in level.stores]
    return all(_is_contiguous_row(pen, load, channels) for load in accesses)


def _is_contiguous_row(pen: WindowWriter, load: Load, channels: int) -> bool:
    buffer = pen.w.plan.buffers[load.buffer]
    if buffer.layout != Layout.ROWS or any(i.value is not None or i.over != 1 for i in load.index):
        return False
    return [axis_stride(load, a, buffer)[0] for a in (COLUMN, COLUMN + 1)] == [channels, 1]


def stage_image(pen: WindowWriter, name: str, batch: str = "i0") -> None:
    """Copy the image into its zero-padded frame, or use the image in place as the frame."""
    (height, width, channels), low, row = pen.sizes(name), pen.frame.low, pen.frame.row
    if "frame" not in pen.work:
        pen.w.emit(f"const {pen.real} *const frame = {pen.at(name)};")
        return
    to = f"frame + {low[0] * row + low[1] * channels}"
    copy_image(pen, to, pen.at(name, batch), (height, width, channels), row, pen.steps(name))


def copy_image(pen: WindowWriter, to: str, source: str, sizes: Sequence[int], row: int, steps: Sequence[int]) -> None:
    """Copy an image with strides `steps` of rows, columns, channels to one with channels last and row stride `row`."""
    if steps[2] == 1 and sizes[2] >= LONG_RUN:
        pen.call(f"ws_frame_{pen.suffix}", to, source, *sizes, row, *steps[:2])
    else:
        pen.call(f"ws_frame_few_{pen.suffix}", to, source, *sizes, row, *steps)


def clear_frame(pen: WindowWriter) -> None:
    if "frame" in pen.work:
        pen.w.emit(f"ws_clear_{pen.suffix}(frame, {pen.frame.elements});")
