"""Max-pools and their adjoints: one thread per element, or per vector of adjacent channels of a pixel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wholestep.compiler.backends.gpu.grids.convolution_operands import operand, shape_of
from wholestep.compiler.backends.gpu.render.convolution.direct import bind_window_results, read
from wholestep.compiler.backends.gpu.render.elementwise import over_elements
from wholestep.compiler.backends.gpu.render.gemm import accumulator
from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED, cast_text, literal, widen_operand
from wholestep.compiler.backends.gpu.render.vectorize import VectorizedLevel
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Level


@contextmanager
def pixel_loop(w: GpuWriter) -> Iterator[None]:
    """A loop over all pixels and, for each, vectors of adjacent channels, of which `base` is the first channel."""
    across = f"({w.axis_extent(3)}/{w.schedule.vector})"
    w.emit(f"const {w.int} total = {w.count((0, 1, 2))} * {across};")
    first, stride = f"({w.int})blockIdx.x*blockDim.x + threadIdx.x", f"({w.int})gridDim.x*blockDim.x"
    with w.block(f"for ({w.int} at = {first}; at < total; at += {stride})"):
        w.emit(f"const {w.int} base = at % {across} * {w.schedule.vector}, pixel = at / {across};")
        w.decompose("pixel", (0, 1, 2))
        yield


def load_channels(w: GpuWriter, window: Window, name: str, row: str, column: str) -> None:
    """Loads the vector of an operand's channels at a pixel of the image `i0` into the array of its name."""
    item, each, outer_axes = operand(window, name), w.schedule.vector, dict(w.axes)
    w.axes |= dict(zip(item.axes, ("i0", row, column, "base"), strict=True))
    element, type = w.element(item.load), STORED[w.buffer_dtype(item.load)]
    w.axes = outer_axes
    if each == 1:
        w.emit(f"const {type} {name}[1] = {{{element}}};")
        return
    w.emit(f"ws_pack<{type}, {each}> {name}_pack; {name}_pack.read(&{element});")
    w.emit(f"{type} {name}[{each}]; {name}_pack.split({name});")


def store_channels(w: GpuWriter, window: Window, level: Level, value: str, position: str = "") -> None:
    """The epilogue of each channel, given the texts of its value and of the position of its maximum."""
    dtype = w.buffer_dtype(window.operands[0].load)
    texts = {"acc": cast_text(value, accumulator(dtype), dtype), "position": position}
    results = {i.id: f"(({LOCAL[i.dtype]}){texts[i.op]})" for i in level.body if i.op in texts}
    VectorizedLevel(w, 3, w.schedule.vector).render(level, computed=results)


def over_channels(w: GpuWriter) -> str:
    return f"for (int e = 0; e < {w.schedule.vector}; e++)"


def render_max_pool(w: GpuWriter, window: Window) -> None:
    """Max-pool; ties go to the first element, and a NaN wins, the first one."""
    (level,), images = window.levels, shape_of(w.kernel, operand(window, "x"))
    source = w.buffer_dtype(window.operands[0].load)
    type, each, (tall, wide) = LOCAL[accumulator(source)], w.schedule.vector, window.pool
    (down, across), (top, left) = window.stride, window.low
    with pixel_loop(w):
        w.emit(f"{type} best[{each}]; int position[{each}];")
        w.emit("#pragma unroll")
        w.emit(f"{over_channels(w)} best[e] = ws_lowest(({type})0), position[e] = 0;")
        w.emit("#pragma unroll 4")
        with w.block(f"for (int tap = 0; tap < {tall * wide}; tap++)"):
            w.emit(f"const int y = i1*{down} + tap / {wide} - {top}, x_of = i2*{across} + tap % {wide} - {left};")
            inside = f"y >= 0 && y < {w.extent(images[1])} && x_of >= 0 && x_of < {w.extent(images[2])}"
            with w.block(f"if ({inside})"):
                load_channels(w, window, "x", "y", "x_of")
                w.emit("#pragma unroll")
                with w.block(over_channels(w)):
                    w.emit(f"const {type} seen = {widen_operand('x[e]', source, accumulator(source))};")
                    w.emit("if (ws_exceeds(seen, best[e])) best[e] = seen, position[e] = tap;")
        store_channels(w, window, level, "best[e]", "position[e]")


def render_max_pool_grad(w: GpuWriter, window: Window) -> None:
    """A pixel sums the gradients of all windows whose maximum it is."""
    (level,), g = window.levels, shape_of(w.kernel, operand(window, "g"))
    source = w.buffer_dtype(window.operands[0].load)
    dtype, each = accumulator(source), w.schedule.vector
    (tall, wide), (down, across), (top, left) = window.pool, window.stride, window.low
    with pixel_loop(w):
        w.emit(f"{LOCAL[dtype]} sum[{each}] = {{}};")
        w.emit(f"const int y = (int)i1 + {top}, x = (int)i2 + {left};")
        rows, columns = w.extent(g[1]), w.extent(g[2])
        w.emit(f"const int above = y < {tall} ? 0 : (y - {tall - down}) / {down};")
        w.emit(f"const int before = x < {wide} ? 0 : (x - {wide - across}) / {across};")
        with (
            w.block(f"for (int row = above; row <= y / {down} && row < {rows}; row++)"),
            w.block(f"for (int column = before; column <= x / {across} && column < {columns}; column++)"),
        ):
            w.emit(f"const int tap = (y - row*{down})*{wide} + x - column*{across};")
            load_channels(w, window, "index", "row", "column")
            load_channels(w, window, "g", "row", "column")
            value = widen_operand("g[e]", w.buffer_dtype(operand(window, "g").load), dtype)
            w.emit("#pragma unroll")
            w.emit(f"{over_channels(w)} if ((int)index[e] == tap) sum[e] += {value};")
        store_channels(w, window, level, "sum[e]")


def render_max_pool_pick(w: GpuWriter, window: Window) -> None:
    """The values of an image at the positions of the pool's maxima."""
    (level,), images = window.levels, shape_of(w.kernel, operand(window, "x"))
    source = w.buffer_dtype(operand(window, "x").load)
    (_, wide), (down, across), (top, left) = window.pool, window.stride, window.low
    with w.block(over_elements(w, (0, 1, 2, 3))):
        w.decompose("at", (0, 1, 2, 3))
        w.emit(f"const int tap = (int){read(w, window, 'index', 'i0', 'i1', 'i2', 'i3')};")
        w.emit(f"const int y = i1*{down} + tap / {wide} - {top}, x = i2*{across} + tap % {wide} - {left};")
        inside = f"y >= 0 && y < {w.extent(images[1])} && x >= 0 && x < {w.extent(images[2])}"
        type, dtype = LOCAL[accumulator(source)], accumulator(source)
        w.emit(f"const {type} seen = {inside} ? {read(w, window, 'x', 'i0', 'y', 'x', 'i3')} : {literal(0.0, dtype)};")
        bind_window_results(w, level, cast_text("seen", dtype, source), None)
        w.instructions(level.body)
        w.stores(level.stores)
