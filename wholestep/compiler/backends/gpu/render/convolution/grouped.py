"""Grouped convolution kernels: calls of native/grouped.h with the addresses of a lane's pixels; vector epilogues."""

from __future__ import annotations

from math import ceil

from wholestep.compiler.backends.gpu.grids.convolution_operands import operand, shape_of
from wholestep.compiler.backends.gpu.grids.grouped_convolution import (
    GradientTile,
    GroupedShape,
    Lane,
    gradient_tile,
    grouped_shape,
    is_vectorized,
    most_slices,
)
from wholestep.compiler.backends.gpu.kernel_schedule import JOINED
from wholestep.compiler.backends.gpu.render.convolution.direct import read
from wholestep.compiler.backends.gpu.render.gemm import accumulator
from wholestep.compiler.backends.gpu.render.language import STORED
from wholestep.compiler.backends.gpu.render.vectorize import VectorizedLevel
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.strides import stride_of
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import bfloat16, float16, float32, float64
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Store

ELEMENTS = {float32: "ws_in_f32", float64: "ws_in_f64", bfloat16: "ws_in_bf16", float16: "ws_in_f16"}


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _pixels(w: GpuWriter, window: Window, name: str, image: str, channel: str) -> str:
    """The `ws_pixels` of a lane: its first channel in an image, and the distances of rows, columns and channels."""
    item = operand(window, name)
    _, rows, columns, _ = shape_of(w.kernel, item)
    outer_axes = dict(w.axes)
    w.axes |= dict(zip(item.axes, (image, "0", "0", channel), strict=True))
    start = f"{w.params[item.load.buffer]} + ((long long)0 + {w.offset(item.load)})"
    w.axes = outer_axes
    steps = ", ".join(f"(int)({w.extent(stride_of(item.load, a))})" for a in item.axes[1:])
    return f"{{{start}, {w.extent(rows)}, {w.extent(columns)}, {steps}}}"


# -- pixels ----------------------------------------------------------------------------------------------------------


def render_grouped(w: GpuWriter, window: Window) -> None:
    """One strip of one lane per thread and step; a block has adjacent strips of some lanes."""
    s = grouped_shape(w.kernel, window)
    count, together, inputs, outputs, lanes, taps, steps = w.schedule.tile
    lane, adjoint = Lane(together, inputs, outputs), window.op == "conv2d_grad_input"
    image = operand(window, "g" if adjoint else "x")
    stored = w.buffer_dtype(image.load)
    blocks, strips, per_block = lane.blocks(s), ceil(s.columns / count), w.schedule.threads // lanes
    tiles, all_lanes = ceil(lane.count(s) / lanes), lane.count(s)
    flags = f"{_flag(adjoint)}, {_flag(is_vectorized(image, together * inputs))}"
    tile = f"{count}, {together}, {inputs}, {outputs}, {blocks}, {lanes}, {taps}, {s.low[1]}"
    w.emit(f"typedef ws_strip<{ELEMENTS[stored]}, {s.text}, {flags}, {tile}> Strip;")
    w.emit(f"const int own = threadIdx.x % {lanes}, strip = threadIdx.x / {lanes};")
    w.emit(f"const int begin = blockIdx.x % {tiles} * {lanes};")
    _stage_weights(w, window, s, lane, adjoint)
    w.emit(f"if (begin + own >= {all_lanes} || strip >= {per_block}) return;")
    per_group = s.outputs // outputs
    w.emit(f"const int group = (begin + own) / {per_group} * {together};")
    w.emit(f"const int base = group*{s.outputs} + (begin + own) % {per_group} * {outputs};")
    with w.block(f"for (int turn_of = 0; turn_of < {steps}; turn_of++)"):
        w.emit(f"const int item = (blockIdx.x / {tiles} * {steps} + turn_of)*{per_block} + strip;")
        w.emit(f"const int i0 = item / {s.rows * strips}, i1 = item / {strips} % {s.rows};")
        w.emit(f"const int column = item % {strips} * {count};")
        w.emit(f"if (i0 >= {w.axis_extent(0)}) return;")
        pixels = _pixels(w, window, image.name, "i0", f"(group*{s.channels})")
        w.emit(f"const ws_pixels<{ELEMENTS[stored]}> image = {pixels};")
        w.emit("Strip of;")
        w.emit(f"of.add(image, i1, column, {s.low[0]}, weights + own*Strip::W::PIECE);")
        _render_epilogue(w, window, count, together * outputs, s.columns)
    words = stored.accumulate.size // 4
    w.resident = resident_blocks(w, words * (count * together * outputs + taps * lane.products))


def resident_blocks(w: GpuWriter, registers: int) -> int:
    """Blocks per multiprocessor for which the compiler limits registers; 0 if the sums alone need more."""
    costs = costs_of(w.plan).grouped
    if w.schedule.threads == costs.threads:
        return 2 if registers <= costs.many_registers else 0
    return 3 if registers <= costs.register_sums + costs.register_weights else 0


def _stage_weights(w: GpuWriter, window: Window, s: GroupedShape, lane: Lane, adjoint: bool) -> None:
    lanes = w.schedule.tile[4]
    type = STORED[accumulator(w.buffer_dtype(operand(window, "weight").load))]
    blocks, per_group = lane.blocks(s), s.outputs // lane.outputs
    size = s.window[0] * s.window[1] * blocks * lane.products * lanes
    w.emit(f"__shared__ __align__(16) {type} weights[{size}];")
    head = f"Strip::W::stage<{size}, {blocks}, {lanes}, {w.schedule.threads}>(weights,"
    with w.block(f"{head} [&](int lane, int tap, int block, int n) -> {type}", "});"):
        w.emit(f"if (begin + lane >= {lane.count(s)}) return 0;")
        w.emit(f"const int group = (begin + lane) / {per_group} * {lane.together} + n / {lane.inputs * lane.outputs};")
        w.emit(f"const int to = (begin + lane) % {per_group} * {lane.outputs} + n / {lane.inputs} % {lane.outputs};")
        w.emit(f"const int from = block*{lane.inputs} + n % {lane.inputs};")
        output, channel = (f"(group*{s.channels} + from)", "to") if adjoint else (f"(group*{s.outputs} + to)", "from")
        row, column = f"(tap / {s.window[1]})", f"(tap % {s.window[1]})"
        w.emit(f"return {read(w, window, 'weight', output, row, column, channel)};")


def _render_epilogue(w: GpuWriter, window: Window, count: int, channels: int, columns: int) -> None:
    (level,) = window.levels
    acc = next(i for i in level.body if i.op == "acc")
    w.emit("#pragma unroll")
    with w.block(f"for (int p = 0; p < {count}; p++)"):
        w.emit("const int i2 = column + p;")
        w.emit(f"if (i2 >= {columns}) break;")
        w.instructions(level.row)
        if level.row_stores:
            with w.block("if (base == 0)"):
                w.stores(level.row_stores)
        VectorizedLevel(w, 3, channels).render(level, computed={acc.id: "of.sums[p][e]"})


# -- weights ---------------------------------------------------------------------------------------------------------


def render_grouped_gradient(w: GpuWriter, window: Window) -> None:
    """One block per tile of weights and slice of the rows of the batch."""
    s, stored = grouped_shape(w.kernel, window), w.buffer_dtype(operand(window, "g").load)
    costs = costs_of(w.plan).grouped
    tile = gradient_tile(s, stored, costs)
    assert tile is not None, "its schedule says so"
    type, lane, strips = STORED[stored.accumulate], tile.lane, ceil(s.columns / tile.strip)
    lane_tiles, all_lanes = ceil(lane.count(s) / tile.lanes), lane.count(s)
    all_pairs = s.window[0] * ceil(s.window[1] / tile.taps)
    images = w.extent(shape_of(w.kernel, operand(window, "g"))[0])
    w.emit(f"const int rows = {images}*{s.rows}, fit = rows*{strips} / {tile.split * costs.least_strips};")
    w.emit(f"const int wanted = fit < {most_slices(tile, costs)} ? fit : {most_slices(tile, costs)};")
    w.emit("const int parts = wanted < 1 ? 1 : wanted < rows ? wanted : rows;")
    w.emit("if (blockIdx.y >= parts) return;")
    w.emit("const int part = blockIdx.y;")
    w.emit("const int first = (int)((long long)part*rows / parts);")
    w.emit("const int last = (int)((long long)(part + 1)*rows / parts);")
    w.emit(f"const int begin = blockIdx.x % {lane_tiles} * {tile.lanes};")
    w.emit(f"const int begin_pair = blockIdx.x / {lane_tiles} * {tile.pairs};")
    w.emit(f"const int number = begin + threadIdx.x % {tile.lanes};")
    w.emit(f"const int pair = begin_pair + threadIdx.x / {tile.lanes} % {tile.pairs};")
    x, g = operand(window, "x"), operand(window, "g")
    flags = ", ".join(_flag(is_vectorized(o, lane.together * n)) for o, n in ((x, lane.inputs), (g, lane.outputs)))
    sizes = f"{tile.strip}, {lane.together}, {lane.inputs}, {lane.outputs}, {tile.lanes}, {tile.pairs}, {tile.split}"
    w.emit(f"ws_group_gradient<{ELEMENTS[stored]}, {s.text}, {flags}, {sizes}, {tile.taps}, {tile.threads}> sums;")
    works = f"number < {all_lanes} && pair < {all_pairs} && threadIdx.x < {tile.lanes * tile.pairs * tile.split}"
    w.emit(f"const bool works = {works};")
    _lane_channels(w, s, lane, "number")
    w.emit(f"sums.add<{s.rows}, {strips}>(works, pair, first, last, {s.low[0]}, {s.low[1]},")
    pixels = f"ws_pixels<{ELEMENTS[stored]}>"
    seen = _pixels(w, window, "x", "image", f"(group*{s.channels} + from)")
    w.emit(f"    [&](int image) -> {pixels} {{ return {seen}; }},")
    seen = _pixels(w, window, "g", "image", f"(group*{s.outputs} + to)")
    w.emit(f"    [&](int image) -> {pixels} {{ return {seen}; }});")
    _join_slices(w, tile, type)
    _store_weights(w, window, s, tile, all_lanes, all_pairs, type)
    w.resident = 3  # as `GroupedCosts.gradient_blocks` assumes


def _lane_channels(w: GpuWriter, s: GroupedShape, lane: Lane, number: str) -> None:
    """Emits a lane's first group, and its first output and input channel within the group."""
    blocks, per_group = lane.blocks(s), s.outputs // lane.outputs
    w.emit(f"const int from = {number} % {blocks} * {lane.inputs};")
    w.emit(f"const int to = {number} / {blocks} % {per_group} * {lane.outputs};")
    w.emit(f"const int group = {number} / {blocks * per_group} * {lane.together};")


def _join_slices(w: GpuWriter, tile: GradientTile, type: str) -> None:
    capacity = max(1, w.schedule.chunks)
    if capacity == 1:
        return
    groups = -(-capacity // JOINED)
    place = f"({type} *)scratch + (long long)blockIdx.x*{(capacity + groups) * tile.values}"
    joined = f"{place}, counters + blockIdx.x*{1 + groups}"
    head = f"ws_join_parts<{type}, {tile.values}, {tile.threads}, {JOINED}>"
    w.emit(f"if (!{head}(sums.own, {joined}, part, parts)) return;")


def _store_weights(
    w: GpuWriter, window: Window, s: GroupedShape, tile: GradientTile, all_lanes: int, all_pairs: int, type: str
) -> None:
    (result,) = window.results
    lane, chunks = tile.lane, ceil(s.window[1] / tile.taps)
    outer_axes = dict(w.axes)
    with w.block(f"sums.finish([&](int own, int pair_of, int tap, int n, {type} v0)", "});"):
        w.emit("const int number = begin + own, pair = begin_pair + pair_of;")
        w.emit(f"const int column = pair % {chunks} * {tile.taps} + tap, row = pair / {chunks};")
        w.emit(f"if (number >= {all_lanes} || pair >= {all_pairs} || column >= {s.window[1]}) return;")
        _lane_channels(w, s, lane, "number")
        w.emit(f"const int of = group + n / {lane.inputs * lane.outputs};")
        w.emit(f"const int output = of*{s.outputs} + to + n / {lane.inputs} % {lane.outputs};")
        w.emit(f"const int channel = from + n % {lane.inputs};")
        w.axes |= dict(zip(result.axes, ("output", "row", "column", "channel"), strict=True))
        w.values[0], w.dtypes[0] = "v0", accumulator(w.buffer_dtype(operand(window, "g").load))
        w.stores((Store(result.load, 0),))
    w.axes = outer_axes
