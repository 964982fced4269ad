"""Direct convolution kernels: calls of native/window.h with accessors for images and weights, and epilogues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

from wholestep.compiler.backends.gpu.grids.convolution import Shape, shape
from wholestep.compiler.backends.gpu.grids.convolution_operands import operand, shape_of
from wholestep.compiler.backends.gpu.kernel_schedule import JOINED, Form
from wholestep.compiler.backends.gpu.render.gemm import accumulator
from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED, cast_text, widen_operand
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import DType
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import POOL_AXES, Level, Store


def read(w: GpuWriter, window: Window, name: str, *indices: str) -> str:
    """An operand's element at the given indices, in the accumulation dtype."""
    item = operand(window, name)
    outer_axes = dict(w.axes)
    w.axes |= dict(zip(item.axes, indices, strict=True))
    dtype = w.buffer_dtype(item.load)
    text = widen_operand(w.element(item.load), dtype, accumulator(dtype))
    w.axes = outer_axes
    return text


def bind_window_results(w: GpuWriter, level: Level, value: str, position: str | None) -> None:
    """Assigns the window's result to the value names that its epilogue uses."""
    for i in level.body:
        if i.op in ("acc", "position"):
            result = value if i.op == "acc" else position
            assert result is not None
            w.emit(f"const {LOCAL[i.dtype]} v{i.id} = ({LOCAL[i.dtype]}){result};")


def _dtype(w: GpuWriter, window: Window) -> DType:
    return accumulator(w.buffer_dtype(window.operands[0].load))


def _function(w: GpuWriter, head: str, lines: Sequence[str], end: str = "},") -> None:
    with w.block(head, end):
        for line in lines:
            w.emit(line)


def _bounded_read(w: GpuWriter, window: Window, image: str, name: str, *indices: str) -> list[str]:
    """Lines that read pixel (y, x) of an image, and return zero outside of it."""
    _, rows, columns, _ = shape_of(w.kernel, operand(window, name))
    return [
        f"if (y < 0 || y >= {w.extent(rows)} || x < 0 || x >= {w.extent(columns)}) return 0;",
        f"return {read(w, window, name, image, *(indices or ('y', 'x', 'channel')))};",
    ]


def _gradient(w: GpuWriter, window: Window, image: str) -> list[str]:
    """Lines that read the output gradient at (y, x); it is zero between strides."""
    down, across = window.stride
    strides = ["if (y < 0 || x < 0) return 0;"]
    if max(window.stride) > 1:
        strides.append(f"if (y % {down} || x % {across}) return 0;")
        return [*strides, f"y /= {down}, x /= {across};", *_bounded_read(w, window, image, "g")]
    if window.op != "pooled_grad_input":
        return _bounded_read(w, window, image, "g")
    tall, wide = window.pool
    indices = (f"(y / {tall})", f"(x / {wide})", "channel")
    _, rows, columns, _ = shape_of(w.kernel, operand(window, "g"))
    is_maximum = f"(int){read(w, window, 'index', image, *indices)} == y % {tall} * {wide} + x % {wide}"
    return [
        *strides,
        f"if (y / {tall} >= {w.extent(rows)} || x / {wide} >= {w.extent(columns)}) return 0;",
        f"return {is_maximum} ? {read(w, window, 'g', image, *indices)} : 0;",
    ]


# -- pixels ----------------------------------------------------------------------------------------------------------


def render_direct(w: GpuWriter, window: Window) -> None:
    """One block per band of an image and group of outputs; a thread item is some pixels and outputs."""
    s, type = shape(w.kernel, window), STORED[_dtype(w, window)]
    tall, wide, band, across, groups, each = w.schedule.tile
    bands, segments = ceil(ceil(s.rows / tall) / band), ceil(ceil(s.columns / wide) / across)
    sets = ceil(s.outputs / (groups * each))
    w.emit(f"const int own = blockIdx.x % {sets} * {groups * each}, at = blockIdx.x / {sets};")
    w.emit(f"const int from = at % {segments} * {across}, top = at / {segments} % {bands} * {band};")
    w.emit(f"const int image = at / {segments * bands};")
    w.emit(f"if (image >= {w.axis_extent(0)}) return;")
    sizes = f"{s.channels}, {tall}, {wide}, {band}, {across}, {groups}, {each}, {w.schedule.threads}"
    w.emit(f"ws_convolve<{type}, {s.text}, {sizes}>(")
    w.depth += 1
    head = f"[&](int row, int column, int channel) -> {type}"
    pixel = [
        f"int y = top*{tall * s.stride[0]} + row - {s.low[0]};",
        f"int x = from*{wide * s.stride[1]} + column - {s.low[1]};",
    ]
    forward = window.op == "conv2d"
    _function(
        w, head, [*pixel, *(_bounded_read(w, window, "image", "x") if forward else _gradient(w, window, "image"))]
    )
    down, far = (f"tap / {s.wide}", f"tap % {s.wide}")
    if forward:
        weight = read(w, window, "weight", "j", f"({down})", f"({far})", "channel")
    else:
        weight = read(w, window, "weight", "channel", f"({s.tall - 1} - {down})", f"({s.wide - 1} - {far})", "j")
    lines = ["const int j = own + output;", f"return j < {s.outputs} ? {weight} : 0;"]
    _function(w, f"[&](int tap, int channel, int output) -> {type}", lines)
    with w.block(f"[&](int row, int column, int output, const {type} (&sums)[{tall * wide}][{each}])", "});"):
        (_render_pooled if window.pooled is not None else _render_pixels)(w, window, s)
    w.depth -= 1


def _render_pixels(w: GpuWriter, window: Window, s: Shape) -> None:
    tall, wide, *_, each = w.schedule.tile
    (level,) = window.levels
    acc = next(i for i in level.body if i.op == "acc")
    outer_axes = dict(w.axes)
    w.axes |= {0: "image", 1: "i1", 2: "i2", 3: "i3"}
    w.emit("#pragma unroll")
    with w.block(f"for (int p = 0; p < {tall * wide}; p++)"):
        w.emit(f"const int i1 = (top + row)*{tall} + p / {wide}, i2 = (from + column)*{wide} + p % {wide};")
        w.emit(f"if (i1 >= {s.rows} || i2 >= {s.columns}) continue;")
        w.emit("#pragma unroll")
        with w.block(f"for (int e = 0; e < {each}; e++)"):
            w.emit("const int i3 = own + output + e;")
            w.emit(f"if (i3 >= {s.outputs}) continue;")
            w.emit(f"const {LOCAL[acc.dtype]} v{acc.id} = sums[p][e];")
            w.instructions((*level.row, *level.body))
            w.stores((*level.row_stores, *level.stores))
    w.axes = outer_axes


def _render_pooled(w: GpuWriter, window: Window, s: Shape) -> None:
    """The pixels of an item form one pooling window; ties go to the first element, and the first NaN wins."""
    tall, wide, *_, each = w.schedule.tile
    convolution, epilogue = window.levels
    acc = next(i for i in convolution.body if i.op == "acc")
    assert window.pooled is not None
    source = w.dtypes[window.pooled]
    dtype = accumulator(source)
    outer_axes = dict(w.axes)
    w.axes |= {0: "image", 1: "i1", 2: "i2", 3: "i3", POOL_AXES[0]: f"(p / {wide})", POOL_AXES[1]: f"(p % {wide})"}
    w.emit("const int i1 = top + row, i2 = from + column;")
    w.emit(f"if (i1 >= {s.rows // tall} || i2 >= {s.columns // wide}) return;")
    w.emit("#pragma unroll")
    with w.block(f"for (int e = 0; e < {each}; e++)"):
        w.emit("const int i3 = own + output + e;")
        w.emit(f"if (i3 >= {s.outputs}) continue;")
        w.emit(f"{LOCAL[dtype]} best = ws_lowest(({LOCAL[dtype]})0); int position = 0;")
        w.emit("#pragma unroll")
        with w.block(f"for (int p = 0; p < {tall * wide}; p++)"):
            w.emit(f"const {LOCAL[acc.dtype]} v{acc.id} = sums[p][e];")
            w.instructions((*convolution.row, *convolution.body))
            w.emit(f"const {LOCAL[dtype]} seen = {widen_operand(w.values[window.pooled], source, dtype)};")
            w.emit("if (ws_exceeds(seen, best)) best = seen, position = p;")
        bind_window_results(w, epilogue, cast_text("best", dtype, source), "position")
        w.instructions(epilogue.body)
        w.stores(epilogue.stores)
    w.axes = outer_axes


# -- weights ---------------------------------------------------------------------------------------------------------


def render_gradient(w: GpuWriter, window: Window) -> None:
    """One block per tile of weights and slice of the image bands."""
    s, type = shape(w.kernel, window), STORED[_dtype(w, window)]
    deep, across, items, split, band = w.schedule.tile
    threads, bands = w.schedule.threads, -(-s.rows // band)
    sizes = f"{s.channels}, {s.outputs}, {deep}, {across}, {items}, {split}, {band}, {s.columns}, {threads}"
    images = w.extent(shape_of(w.kernel, operand(window, "g"))[0])
    capacity = max(1, w.schedule.chunks)
    slices = costs_of(w.plan).convolution.batch_slices
    w.emit(f"const int bands = {images}*{bands}, parts = bands < {slices} ? bands : {slices};")
    w.emit("if (blockIdx.y >= parts) return;")
    w.emit(f"const int begin = blockIdx.x*{items}, part = blockIdx.y;")
    w.emit("const int first = (int)((long long)part*bands / parts);")
    w.emit("const int last = (int)((long long)(part + 1)*bands / parts);")
    w.emit(f"ws_gradient<{type}, {s.text}, {sizes}> sums;")
    w.emit("sums.add(begin, first, last,")
    w.depth += 1
    pixel = [
        f"const int y = band % {bands}*{band * s.stride[0]} + row - {s.low[0]}, x = column - {s.low[1]};",
        *_bounded_read(w, window, f"(band / {bands})", "x"),
    ]
    _function(w, f"[&](int band, int row, int column, int channel) -> {type}", pixel)
    gradient = read(w, window, "g", f"(band / {bands})", "y", "column", "output")
    lines = [f"const int y = band % {bands}*{band} + row;", f"return y < {s.rows} ? {gradient} : 0;"]
    _function(w, f"[&](int band, int row, int column, int output) -> {type}", lines, "});")
    w.depth -= 1
    if capacity > 1:
        count = items * deep * across
        each = f"(long long)blockIdx.x*{(capacity + -(-capacity // JOINED)) * count}"
        joined = f"({type} *)scratch + {each}, counters + blockIdx.x*{1 + -(-capacity // JOINED)}"
        w.emit(f"if (!ws_join_parts<{type}, {count}, {threads}, {JOINED}>(sums.own, {joined}, part, parts)) return;")
    (result,) = window.results
    outer_axes = dict(w.axes)
    w.axes |= dict(zip(result.axes, ("output", "row", "column", "channel"), strict=True))
    with w.block(f"sums.finish(begin, [&](int output, int row, int column, int channel, {type} v0)", "});"):
        w.values[0], w.dtypes[0] = "v0", _dtype(w, window)
        w.stores((Store(result.load, 0),))
    w.axes = outer_axes


def render_pooled_gradient(w: GpuWriter, window: Window) -> None:
    """One block per slice of the batch and tile of weights; only the pixels that are maxima have a gradient."""
    s, type = shape(w.kernel, window), STORED[_dtype(w, window)]
    images, parts = w.extent(shape_of(w.kernel, operand(window, "g"))[0]), w.axis_extent(0)
    w.emit(f"const int first = (int)((long long)blockIdx.x*{images} / {parts});")
    w.emit(f"const int last = (int)((long long)(blockIdx.x + 1)*{images} / {parts});")
    weights, split = w.schedule.tile
    sizes = f"{s.channels}, {s.outputs}, {s.rows}, {s.columns}, {s.pool[0]}, {s.pool[1]}, {weights}, {split}"
    w.emit(f"ws_pooled_gradient<{type}, {s.text}, {sizes}, {w.schedule.threads}>(blockIdx.y*{weights}, first, last,")
    w.depth += 1
    pixel = [f"const int y = row - {s.low[0]}, x = column - {s.low[1]};", *_bounded_read(w, window, "image", "x")]
    _function(w, f"[&](int image, int row, int column, int channel) -> {type}", pixel)
    at = ("image", "row", "column", "output")
    won = f"return {{{read(w, window, 'g', *at)}, (int){read(w, window, 'index', *at)}}};"
    _function(w, f"[&](int image, int row, int column, int output) -> ws_won<{type}>", [won])
    (result,) = window.results
    channels = f"number / {s.channels}"
    names = ("(int)blockIdx.x", f"({channels} / {s.tall * s.wide})", f"({channels} / {s.wide} % {s.tall})")
    outer_axes = dict(w.axes)
    w.axes |= dict(zip(result.axes, (*names, f"({channels} % {s.wide})", f"(number % {s.channels})"), strict=True))
    with w.block(f"[&](int number, {type} v0)", "});"):
        w.values[0], w.dtypes[0] = "v0", _dtype(w, window)
        w.stores((Store(result.load, 0),))
    w.axes = outer_axes
    w.depth -= 1


OWN: Mapping[str, Callable[[GpuWriter, Window], None]] = {
    Form.DIRECT: render_direct,
    Form.GRADIENT: render_gradient,
    Form.POOLED_GRADIENT: render_pooled_gradient,
}
