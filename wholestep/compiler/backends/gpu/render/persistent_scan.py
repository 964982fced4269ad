"""Persistent scan kernel: `native/persistent_scan.h` around the epilogues of products and the elementwise kernels.

each block loads its columns of the weights into shared memory
for each step:
  blocks of the same rows wait at a barrier before they multiply rows of others; meanwhile they prefetch inputs
  the kernels of the step run one after the other, each over the block's own rows and units
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from wholestep.compiler.backends.gpu.kernel_schedule import THREADS, schedule_of
from wholestep.compiler.backends.gpu.persistent.scan import (
    PersistentScan,
    chunks_of,
    columns_of,
    depth_of,
    lanes_of,
    padded_row_stride,
    row_axis,
    tile_of,
    unit_axis,
)
from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED, widen_operand
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.ir.types import float32
from wholestep.compiler.plan.io.report import origin_comment
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Instr, Kernel, Load, Plan, Store

# parameters of every device function
GIVEN = "const ws_step *step, const int turn, const int m0, const int u0, char *const memory, void *const *given"


@dataclass(frozen=True)
class Room:
    """Shared memory layout of a block: byte offsets."""

    weights: dict[int, int]  # position of the kernel -> offset
    rows: int
    halves: int  # staging for half-precision rows
    parts: int
    tiles: dict[int, int]  # buffer -> offset

    @staticmethod
    def of(loop: PersistentScan) -> Room:
        at, weights, tiles = 0, dict[int, int](), dict[int, int]()
        dots = {place: k for place, k in enumerate(loop.kernels) if isinstance(k.body, Dot)}
        for place, k in dots.items():
            weights[place] = at
            at += 4 * _width(loop, k) * padded_row_stride(depth_of(k))
        rows, at = at, at + 4 * loop.rows * max(padded_row_stride(depth_of(k)) for k in dots.values())
        halves, at = at, at + loop.half_bytes
        parts, at = at, at + 4 * max(8 * chunks_of(k) * loop.rows * _width(loop, k) for k in dots.values())
        for buffer in (*sorted(loop.inside), *sorted(loop.carried)):
            tiles[buffer] = at
            at += 4 * loop.rows * loop.width * tile_of(loop.kernels, buffer, loop.units)
        assert at == loop.bytes, "the plan's shared memory size matches"
        return Room(weights, rows, halves, parts, tiles)


def _width(loop: PersistentScan, kernel: Kernel) -> int:
    """Columns of a kernel that a block owns."""
    return columns_of(kernel) // loop.units * loop.width


class LoopWriter(GpuWriter):
    """Writes a kernel over the block's elements: `row` and `column` in its tile, `i` and `j` in the whole array."""

    ends_loops = False

    def __init__(self, plan: Plan, kernel: Kernel, loop: PersistentScan, room: Room) -> None:
        super().__init__(plan, kernel)
        self._loop, self._room, self._storing = loop, room, False
        self.width = _width(loop, kernel)
        self.axes |= {row_axis(kernel): "i", unit_axis(kernel): "j"}
        written = {load.buffer for k in loop.kernels for load in k.body.stores()}
        self.early = tuple(_early(kernel, written))

    def element(self, load: Load) -> str:
        if load.buffer in self._loop.inside:
            return self._tile(load)
        if load.buffer in self._loop.carried and not self._storing and load.index[-1].terms[-1:] == self._own_terms:
            return f"(turn ? {self._tile(load)} : {super().element(load)})"
        return super().element(load)

    @property
    def _own_terms(self) -> tuple[tuple[int, int], ...]:
        return ((unit_axis(self.kernel), 1),)

    def _tile(self, load: Load) -> str:
        """Expression of a block-local element in shared memory."""
        start, loop = load.index[-1].offset, self._loop
        assert isinstance(start, int), "`find_persistent_scan` has checked it"
        times = tile_of(loop.kernels, load.buffer, loop.units)
        column = f"{start // loop.units * loop.width} + column" if start else "column"
        return f"((float *)(memory + {self._room.tiles[load.buffer]}))[row*{times * loop.width} + {column}]"

    def stores(self, items: Sequence[Store]) -> None:
        self._storing = True
        super().stores(items)
        self._storing = False
        for s in items:
            if s.load.buffer in self._loop.carried:
                self.emit(f"{self._tile(s.load)} = {self.values[s.value]};")

    def place(self) -> None:
        """Emits the global indices of a tile element."""
        self.emit("const int i = m0 + row;")
        if self.width == self._loop.width:
            self.emit("const int j = u0 + column;")
        else:
            w, units = self._loop.width, self._loop.units
            self.emit(f"const int j = column / {w} * {units} + u0 + column % {w};")

    @contextmanager
    def elements(self) -> Iterator[None]:
        """Loop over the tile; each element has the same thread in every step."""
        tile = self._loop.rows * self.width
        self.emit("#pragma unroll")
        with self.block(f"for (int which = 0; which < {-(-tile // THREADS)}; which++)"):
            self.emit(
                f"const int at = which*{THREADS} + threadIdx.x, row = at / {self.width}, column = at % {self.width};"
            )
            self.emit(f"if (at >= {tile} || m0 + row >= {self.extent(self._loop.batch)}) break;")
            self.place()
            yield

    def rest(self) -> None:
        """Emits the computation of an element; prefetched values are already in `early`."""
        (level,) = self.kernel.levels
        ids = {i.id for i in self.early}
        for i in self.early:
            self.emit(f"const {LOCAL[i.dtype]} v{i.id} = early[which].v{i.id};")
        self.instructions([i for i in (*level.row, *level.body) if i.id not in ids])
        self.stores(level.stores)


def _early(kernel: Kernel, written: set[int]) -> Iterator[Instr]:
    """Loads of values that no step of the loop writes: they can be issued while blocks wait at a barrier."""
    loaded = set[int]()
    (level,) = kernel.levels
    for i in (*level.row, *level.body):
        if i.op != "load" or i.load is None or i.guards or i.load.buffer in written:
            continue
        if all(index.value is None or index.value in loaded for index in i.load.index):
            loaded.add(i.id)
            yield i


@dataclass(frozen=True)
class PersistentScanText:
    """The source of a loop, as a function named NAME, and the buffers of each of its kernels."""

    text: str
    buffers: tuple[tuple[int, ...], ...]


def render_persistent_scan(plan: Plan, loop: PersistentScan) -> PersistentScanText:
    """The source of a persistent loop."""
    room, texts, buffers = Room.of(loop), [], []
    for position, kernel in enumerate(loop.kernels):
        name, w = f"NAME_{position}", LoopWriter(plan, kernel, loop, room)
        texts.append(origin_comment(kernel))
        texts += _prefetch_lines(plan, kernel, loop, room, name)
        if isinstance(kernel.body, Dot):
            texts.append(_load_weights_text(plan, kernel, loop, room, name, room.weights[position]))
            _product(w, kernel.body, loop, room, room.weights[position])
        else:
            with w.elements():
                w.rest()
        early = f", const {name}_early *const early" if w.early else ""
        texts.append(w.device_function(f"void {name}({GIVEN}{early})"))
        buffers.append(w.buffers)
    texts.append(_main(plan, loop, buffers))
    return PersistentScanText("\n".join(texts), tuple(buffers))


def _prefetch_lines(plan: Plan, kernel: Kernel, loop: PersistentScan, room: Room, name: str) -> list[str]:
    """Source of the function that loads a thread's `early` values before the kernel runs."""
    w = LoopWriter(plan, kernel, loop, room)
    if not w.early:
        return []
    fields = " ".join(f"{LOCAL[i.dtype]} v{i.id};" for i in w.early)
    with w.elements():
        w.instructions(w.early)
        for i in w.early:
            w.emit(f"early[which].v{i.id} = v{i.id};")
    return [
        f"struct {name}_early {{ {fields} }};",
        w.device_function(f"void {name}_read({GIVEN}, {name}_early *const early)"),
    ]


def _load_weights_text(plan: Plan, kernel: Kernel, loop: PersistentScan, room: Room, name: str, at: int) -> str:
    """Source of the function that loads a block's columns of the weights."""
    w, dot = LoopWriter(plan, kernel, loop, room), kernel.body
    assert isinstance(dot, Dot)
    w.axes[dot.k] = "k"
    head = f"ws_hold<{w.width}, {depth_of(kernel)}>((float *)(memory + {at}), [&](int k, int column) -> float"
    with w.block(head, "});"):
        w.emit("const int row = 0;")
        w.place()
        w.emit(f"return {widen_operand(w.element(dot.b), w.buffer_dtype(dot.b), float32)};")
    return w.device_function(f"void {name}_hold({GIVEN})")


def _product(w: LoopWriter, dot: Dot, loop: PersistentScan, room: Room, at: int) -> None:
    """Emits the product of loaded rows with the resident columns, and its epilogue."""
    kernel, batch = w.kernel, w.extent(loop.batch)
    acc, depth, lanes = next(i for i in w.instrs if i.op == "acc"), depth_of(kernel), lanes_of(loop.rows, w.width)
    assert lanes is not None, "`find_persistent_scan` has checked it"
    w.axes[dot.k] = "k"
    dtype = w.buffer_dtype(dot.a)
    type, widened = STORED[dtype], widen_operand("x", dtype, float32)
    w.emit(f"const ws_rows<{type}, {loop.rows}, {depth}> rows = {{")
    w.emit(f"    (float *)(memory + {room.rows}), ({type} *)(memory + {room.halves})}};")
    with w.block(f"rows.bring({batch} - m0, [&](int row, int k) -> const {type} *", "});"):
        w.emit("const int i = m0 + row;")
        w.emit(f"return &{GpuWriter.element(w, dot.a)};")
    chunk = schedule_of(kernel).chunk or padded_row_stride(depth)
    w.emit(f"ws_held_product<{loop.rows}, {w.width}, {depth}, {chunk}, {lanes[0]}, {lanes[1]}>(")
    w.emit(f"    (float *)(memory + {room.parts}), rows, (const float *)(memory + {at}),")
    w.emit(f"    []({type} x) -> float {{ return {widened}; }},")
    with w.block(f"    [&](int row, int column, float v{acc.id}, int which)", "    });"):
        w.emit(f"if (m0 + row >= {batch}) return;")
        w.place()
        w.rest()


def _main(plan: Plan, loop: PersistentScan, buffers: Sequence[Sequence[int]]) -> str:
    """The global function: the loop over the steps."""
    writers = [LoopWriter(plan, k, loop, Room.of(loop)) for k in loop.kernels]
    w = writers[0]
    starts = [sum(map(len, buffers[:position])) for position in range(len(buffers))]
    length = w.extent(plan.loops[loop.kernels[0].loop or 0].length)
    w.emit(f"const int down = blockIdx.x / {loop.across}, m0 = down*{loop.rows};")
    w.emit(f"const int u0 = blockIdx.x % {loop.across} * {loop.width}, steps = {length};")
    w.emit(f"if (m0 >= {w.extent(loop.batch)} || steps <= 0) return;")
    w.emit("char *const memory = ws_shared_memory();")
    w.emit("int *const here = come + down;")
    w.emit("int met = 0;")

    def call(position: int, what: str, turn: str) -> str:
        early = f", early{position}" if writers[position].early and what != "_hold" else ""
        return f"NAME_{position}{what}(step, {turn}, m0, u0, memory, given.at + {starts[position]}{early});"

    def read(position: int, turn: str) -> str:
        return call(position, "_read", turn) if writers[position].early else ""

    for position, kernel in enumerate(loop.kernels):
        if writers[position].early:
            w.emit(f"NAME_{position}_early early{position}[{-(-loop.rows * _width(loop, kernel) // THREADS)}];")
        if isinstance(kernel.body, Dot):
            w.emit(call(position, "_hold", "0"))
    w.emit("__syncthreads();")
    ahead = range(min(loop.barriers, default=0))
    for line in filter(None, (read(position, "0") for position in ahead)):
        w.emit(line)
    with w.block("for (int turn = 0; turn < steps; turn++)"):
        for position in range(len(loop.kernels)):
            if position in loop.barriers:
                _barrier(w, loop, position, read)
            elif not loop.barriers and (line := read(position, "turn")):
                w.emit(line)
            w.emit(call(position, "", "turn"))
            w.emit("__syncthreads();")
    w.emit(f"if (ws_is_last(come + {loop.down} + down, {loop.across}) && threadIdx.x == 0) *here = 0;")
    count = max(1, sum(map(len, buffers)))
    head = (
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1) NAME(const ws_step *step, int *come, '
        f"const __grid_constant__ ws_given<{count}> given) {{"
    )
    sizes = [line for line in w.size_declarations() if "turn" not in line]
    return "\n".join([head, "  ws_wait_for_others();", *sizes, *w.lines, "}"])


def _barrier(w: LoopWriter, loop: PersistentScan, position: int, read: Callable[[int, str], str]) -> None:
    """Emits a split barrier of the blocks with the same rows; the next kernels' loads are issued while they wait."""
    condition = "if (turn) " if position == 0 else ""  # the very first kernel has no predecessor to wait for
    barriers, count = sorted(loop.barriers), len(loop.kernels)
    following = next((m for m in barriers if m > position), barriers[0] + count)
    w.emit(f"{condition}ws_arrive(here);")
    for other in range(position, following):
        guard, turn = ("", "turn") if other < count else ("if (turn + 1 < steps) ", "turn + 1")
        if line := read(other % count, turn):
            w.emit(f"{guard}{line}")
    w.emit(f"{condition}ws_await(here, ++met * {loop.across});")
