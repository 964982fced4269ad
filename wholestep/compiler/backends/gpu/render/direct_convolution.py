"""Convolutions of few channels, around native/window.h: what is seen, what it is multiplied with, what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

from wholestep.compiler.backends.gpu.convolution.direct import PARTS, Shape, operand, shape, shape_of
from wholestep.compiler.backends.gpu.kernel_schedule import DIRECT, GRADIENT, JOINED, POOLED_GRADIENT
from wholestep.compiler.backends.gpu.render.gemm import accumulator
from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED, cast_text, widen_operand
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.ir.types import DType
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import POOL_AXES, Level, Store


def read(w: GpuWriter, window: Window, name: str, *places: str) -> str:
    """An element of an operand at places along its own axes, in the dtype that products add up in."""
    item = operand(window, name)
    kept = dict(w.axes)
    w.axes |= dict(zip(item.axes, places, strict=True))
    dtype = w.buffer_dtype(item.load)
    text = widen_operand(w.element(item.load), dtype, accumulator(dtype))
    w.axes = kept
    return text


def give(w: GpuWriter, level: Level, value: str, position: str | None) -> None:
    """What the window has found, under the names of its epilogue."""
    for i in level.body:
        if i.op in ("acc", "position"):
            found = value if i.op == "acc" else position
            assert found is not None
            w.emit(f"const {LOCAL[i.dtype]} v{i.id} = ({LOCAL[i.dtype]}){found};")


def _dtype(w: GpuWriter, window: Window) -> DType:
    return accumulator(w.buffer_dtype(window.operands[0].load))


def _function(w: GpuWriter, head: str, lines: Sequence[str], end: str = "},") -> None:
    with w.block(head, end):
        for line in lines:
            w.emit(line)


def _inside(w: GpuWriter, window: Window, image: str, name: str, *places: str) -> list[str]:
    """Lines that read the pixel (y, x) of an image, or return zero outside of it."""
    _, rows, columns, _ = shape_of(w.kernel, operand(window, name))
    return [
        f"if (y < 0 || y >= {w.extent(rows)} || x < 0 || x >= {w.extent(columns)}) return 0;",
        f"return {read(w, window, name, image, *(places or ('y', 'x', 'channel')))};",
    ]


def _gradient(w: GpuWriter, window: Window, image: str) -> list[str]:
    """Lines that read the gradient at (y, x) of what a convolution made: between strides there is none."""
    down, across = window.stride
    strides = ["if (y < 0 || x < 0) return 0;"]
    if max(window.stride) > 1:
        strides.append(f"if (y % {down} || x % {across}) return 0;")
        return [*strides, f"y /= {down}, x /= {across};", *_inside(w, window, image, "g")]
    if window.op != "pooled_grad_input":
        return _inside(w, window, image, "g")
    tall, wide = window.pool
    places = (f"(y / {tall})", f"(x / {wide})", "channel")
    _, rows, columns, _ = shape_of(w.kernel, operand(window, "g"))
    won = f"(int){read(w, window, 'index', image, *places)} == y % {tall} * {wide} + x % {wide}"
    return [
        *strides,
        f"if (y / {tall} >= {w.extent(rows)} || x / {wide} >= {w.extent(columns)}) return 0;",
        f"return {won} ? {read(w, window, 'g', image, *places)} : 0;",
    ]


# -- pixels ----------------------------------------------------------------------------------------------------------


def render_direct(w: GpuWriter, window: Window) -> None:
    """A block has a band of an image and some outputs; an item of it is some pixels and outputs."""
    s, type = shape(w.kernel, window), STORED[_dtype(w, window)]
    tall, wide, band, across, groups, each = w.schedule.tile
    bands, segments = ceil(ceil(s.rows / tall) / band), ceil(ceil(s.columns / wide) / across)
    sets = ceil(s.made / (groups * each))
    w.emit(f"const int own = blockIdx.x % {sets} * {groups * each}, at = blockIdx.x / {sets};")
    w.emit(f"const int from = at % {segments} * {across}, top = at / {segments} % {bands} * {band};")
    w.emit(f"const int image = at / {segments * bands};")
    w.emit(f"if (image >= {w.axis_extent(0)}) return;")
    given = f"{s.channels}, {tall}, {wide}, {band}, {across}, {groups}, {each}, {w.schedule.threads}"
    w.emit(f"ws_convolve<{type}, {s.text}, {given}>(")
    w.depth += 1
    head = f"[&](int row, int column, int channel) -> {type}"
    places = [
        f"int y = top*{tall * s.stride[0]} + row - {s.low[0]};",
        f"int x = from*{wide * s.stride[1]} + column - {s.low[1]};",
    ]
    forward = window.op == "conv2d"
    _function(w, head, [*places, *(_inside(w, window, "image", "x") if forward else _gradient(w, window, "image"))])
    down, far = (f"tap / {s.wide}", f"tap % {s.wide}")
    if forward:
        weight = read(w, window, "weight", "j", f"({down})", f"({far})", "channel")
    else:
        weight = read(w, window, "weight", "channel", f"({s.tall - 1} - {down})", f"({s.wide - 1} - {far})", "j")
    lines = ["const int j = own + output;", f"return j < {s.made} ? {weight} : 0;"]
    _function(w, f"[&](int tap, int channel, int output) -> {type}", lines)
    with w.block(f"[&](int row, int column, int output, const {type} (&sums)[{tall * wide}][{each}])", "});"):
        (_render_pooled if window.pooled is not None else _render_pixels)(w, window, s)
    w.depth -= 1


def _render_pixels(w: GpuWriter, window: Window, s: Shape) -> None:
    tall, wide, *_, each = w.schedule.tile
    (level,) = window.levels
    acc = next(i for i in level.body if i.op == "acc")
    kept = dict(w.axes)
    w.axes |= {0: "image", 1: "i1", 2: "i2", 3: "i3"}
    w.emit("#pragma unroll")
    with w.block(f"for (int p = 0; p < {tall * wide}; p++)"):
        w.emit(f"const int i1 = (top + row)*{tall} + p / {wide}, i2 = (from + column)*{wide} + p % {wide};")
        w.emit(f"if (i1 >= {s.rows} || i2 >= {s.columns}) continue;")
        w.emit("#pragma unroll")
        with w.block(f"for (int e = 0; e < {each}; e++)"):
            w.emit("const int i3 = own + output + e;")
            w.emit(f"if (i3 >= {s.made}) continue;")
            w.emit(f"const {LOCAL[acc.dtype]} v{acc.id} = sums[p][e];")
            w.instructions((*level.row, *level.body))
            w.stores((*level.row_stores, *level.stores))
    w.axes = kept


def _render_pooled(w: GpuWriter, window: Window, s: Shape) -> None:
    """The pixels of an item are those of a window of the pool: the first of equal ones wins, and the first NaN."""
    tall, wide, *_, each = w.schedule.tile
    before, behind = window.levels
    acc = next(i for i in before.body if i.op == "acc")
    assert window.pooled is not None
    source = w.dtypes[window.pooled]
    dtype = accumulator(source)
    kept = dict(w.axes)
    w.axes |= {0: "image", 1: "i1", 2: "i2", 3: "i3", POOL_AXES[0]: f"(p / {wide})", POOL_AXES[1]: f"(p % {wide})"}
    w.emit("const int i1 = top + row, i2 = from + column;")
    w.emit(f"if (i1 >= {s.rows // tall} || i2 >= {s.columns // wide}) return;")
    w.emit("#pragma unroll")
    with w.block(f"for (int e = 0; e < {each}; e++)"):
        w.emit("const int i3 = own + output + e;")
        w.emit(f"if (i3 >= {s.made}) continue;")
        w.emit(f"{LOCAL[dtype]} best = ws_lowest(({LOCAL[dtype]})0); int position = 0;")
        w.emit("#pragma unroll")
        with w.block(f"for (int p = 0; p < {tall * wide}; p++)"):
            w.emit(f"const {LOCAL[acc.dtype]} v{acc.id} = sums[p][e];")
            w.instructions((*before.row, *before.body))
            w.emit(f"const {LOCAL[dtype]} seen = {widen_operand(w.values[window.pooled], source, dtype)};")
            w.emit("if (ws_exceeds(seen, best)) best = seen, position = p;")
        give(w, behind, cast_text("best", dtype, source), "position")
        w.instructions(behind.body)
        w.stores(behind.stores)
    w.axes = kept


# -- weights ---------------------------------------------------------------------------------------------------------


def render_gradient(w: GpuWriter, window: Window) -> None:
    """A block has some items of all taps and one part of the bands of all images."""
    s, type = shape(w.kernel, window), STORED[_dtype(w, window)]
    deep, across, own, split, band = w.schedule.tile
    threads, bands = w.schedule.threads, -(-s.rows // band)
    numbers = f"{s.channels}, {s.made}, {deep}, {across}, {own}, {split}, {band}, {s.columns}, {threads}"
    images = w.extent(shape_of(w.kernel, operand(window, "g"))[0])
    most = max(1, w.schedule.chunks)
    w.emit(f"const int bands = {images}*{bands}, parts = bands < {PARTS} ? bands : {PARTS};")
    w.emit("if (blockIdx.y >= parts) return;")
    w.emit(f"const int begin = blockIdx.x*{own}, part = blockIdx.y;")
    w.emit("const int first = (int)((long long)part*bands / parts);")
    w.emit("const int last = (int)((long long)(part + 1)*bands / parts);")
    w.emit(f"ws_gradient<{type}, {s.text}, {numbers}> sums;")
    w.emit("sums.add(begin, first, last,")
    w.depth += 1
    place = [
        f"const int y = band % {bands}*{band * s.stride[0]} + row - {s.low[0]}, x = column - {s.low[1]};",
        *_inside(w, window, f"(band / {bands})", "x"),
    ]
    _function(w, f"[&](int band, int row, int column, int channel) -> {type}", place)
    found = read(w, window, "g", f"(band / {bands})", "y", "column", "output")
    lines = [f"const int y = band % {bands}*{band} + row;", f"return y < {s.rows} ? {found} : 0;"]
    _function(w, f"[&](int band, int row, int column, int output) -> {type}", lines, "});")
    w.depth -= 1
    if most > 1:
        count = own * deep * across
        each = f"(long long)blockIdx.x*{(most + -(-most // JOINED)) * count}"
        joined = f"({type} *)scratch + {each}, counters + blockIdx.x*{1 + -(-most // JOINED)}"
        w.emit(f"if (!ws_join_parts<{type}, {count}, {threads}, {JOINED}>(sums.own, {joined}, part, parts)) return;")
    (result,) = window.results
    kept = dict(w.axes)
    w.axes |= dict(zip(result.axes, ("output", "row", "column", "channel"), strict=True))
    with w.block(f"sums.finish(begin, [&](int output, int row, int column, int channel, {type} v0)", "});"):
        w.values[0], w.dtypes[0] = "v0", _dtype(w, window)
        w.stores((Store(result.load, 0),))
    w.axes = kept


def render_pooled_gradient(w: GpuWriter, window: Window) -> None:
    """A block has a part of the batch and some weights, of which only pixels that won have a gradient."""
    s, type = shape(w.kernel, window), STORED[_dtype(w, window)]
    images, parts = w.extent(shape_of(w.kernel, operand(window, "g"))[0]), w.axis_extent(0)
    w.emit(f"const int first = (int)((long long)blockIdx.x*{images} / {parts});")
    w.emit(f"const int last = (int)((long long)(blockIdx.x + 1)*{images} / {parts});")
    own, split = w.schedule.tile
    given = f"{s.channels}, {s.made}, {s.rows}, {s.columns}, {s.pool[0]}, {s.pool[1]}, {own}, {split}"
    w.emit(f"ws_pooled_gradient<{type}, {s.text}, {given}, {w.schedule.threads}>(blockIdx.y*{own}, first, last,")
    w.depth += 1
    place = [f"const int y = row - {s.low[0]}, x = column - {s.low[1]};", *_inside(w, window, "image", "x")]
    _function(w, f"[&](int image, int row, int column, int channel) -> {type}", place)
    at = ("image", "row", "column", "output")
    found = f"return {{{read(w, window, 'g', *at)}, (int){read(w, window, 'index', *at)}}};"
    _function(w, f"[&](int image, int row, int column, int output) -> ws_won<{type}>", [found])
    (result,) = window.results
    channels = f"number / {s.channels}"
    names = ("(int)blockIdx.x", f"({channels} / {s.tall * s.wide})", f"({channels} / {s.wide} % {s.tall})")
    kept = dict(w.axes)
    w.axes |= dict(zip(result.axes, (*names, f"({channels} % {s.wide})", f"(number % {s.channels})"), strict=True))
    with w.block(f"[&](int number, {type} v0)", "});"):
        w.values[0], w.dtypes[0] = "v0", _dtype(w, window)
        w.stores((Store(result.load, 0),))
    w.axes = kept
    w.depth -= 1


OWN: Mapping[str, Callable[[GpuWriter, Window], None]] = {
    DIRECT: render_direct,
    GRADIENT: render_gradient,
    POOLED_GRADIENT: render_pooled_gradient,
}
