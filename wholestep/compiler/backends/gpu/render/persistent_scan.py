"""A loop over steps as one kernel: `native/loops.h` around what follows products, and what is element by element.

each block holds its columns of the weights
for each step:
  blocks of the same rows meet where one multiplies what others have made; meanwhile it reads what is known before
  the kernels of the step, one after the other, each over the block's own rows and units
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.gpu.persistent.scan import (
    THREADS,
    Looping,
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
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Instr, Kernel, Load, Plan, Store

GIVEN = "const ws_step *step, const int turn, const int m0, const int u0, char *const memory, void *const *given"


@dataclass(frozen=True)
class Room:
    """Where things are in a block's shared memory, in bytes."""

    weights: dict[int, int]  # by place among the kernels
    rows: int
    halves: int  # rows as they come
    parts: int
    tiles: dict[int, int]  # of buffers

    @staticmethod
    def of(loop: Looping) -> Room:
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
        assert at == loop.bytes, "it was planned so"
        return Room(weights, rows, halves, parts, tiles)


def _width(loop: Looping, kernel: Kernel) -> int:
    """Columns of a kernel that a block owns."""
    return columns_of(kernel) // loop.units * loop.width


class LoopWriter(GpuWriter):
    """A writer of what a block does with its own elements: `row` and `column` of its tile, `i` and `j` of all."""

    ends_loops = False

    def __init__(self, plan: Plan, kernel: Kernel, loop: Looping, room: Room) -> None:
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
        """The place of an own element in shared memory."""
        start, loop = load.index[-1].offset, self._loop
        assert isinstance(start, int), "it was looked at"
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
        """The element of a tile among all."""
        self.emit("const int i = m0 + row;")
        if self.width == self._loop.width:
            self.emit("const int j = u0 + column;")
        else:
            w, units = self._loop.width, self._loop.units
            self.emit(f"const int j = column / {w} * {units} + u0 + column % {w};")

    @contextmanager
    def elements(self) -> Iterator[None]:
        """Each element of the tile is a thread's, the same in every step."""
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
        """What is done with an element; what was read before is there."""
        (level,) = self.kernel.levels
        ids = {i.id for i in self.early}
        for i in self.early:
            self.emit(f"const {LOCAL[i.dtype]} v{i.id} = early[which].v{i.id};")
        self.instructions([i for i in (*level.row, *level.body) if i.id not in ids])
        self.stores(level.stores)

    def function_of(self, head: str) -> str:
        return "\n".join(
            [f"static __device__ __forceinline__ {head} {{", *self.declared(), *self.opening(), *self.lines, "}"]
        )


def _early(kernel: Kernel, written: set[int]) -> Iterator[Instr]:
    """What a kernel reads that no step of its loop makes: it can be read while blocks wait for each other."""
    known = set[int]()
    (level,) = kernel.levels
    for i in (*level.row, *level.body):
        if i.op != "load" or i.load is None or i.guards or i.load.buffer in written:
            continue
        if all(index.value is None or index.value in known for index in i.load.index):
            known.add(i.id)
            yield i


@dataclass(frozen=True)
class LoopText:
    """The text of a loop under the name NAME, and the buffers that each of its kernels is given."""

    text: str
    buffers: tuple[tuple[int, ...], ...]


def render_loop(plan: Plan, loop: Looping) -> LoopText:
    """The kernel of a loop."""
    room, texts, buffers = Room.of(loop), [], []
    for place, kernel in enumerate(loop.kernels):
        name, w = f"NAME_{place}", LoopWriter(plan, kernel, loop, room)
        texts.append(f"// {' '.join(kernel.origin)}")
        texts += _prefetch_lines(plan, kernel, loop, room, name)
        if isinstance(kernel.body, Dot):
            texts.append(_load_weights_text(plan, kernel, loop, room, name, room.weights[place]))
            _product(w, kernel.body, loop, room, room.weights[place])
        else:
            with w.elements():
                w.rest()
        early = f", const {name}_early *const early" if w.early else ""
        texts.append(w.function_of(f"void {name}({GIVEN}{early})"))
        buffers.append(w.buffers)
    texts.append(_main(plan, loop, buffers))
    return LoopText("\n".join(texts), tuple(buffers))


def _prefetch_lines(plan: Plan, kernel: Kernel, loop: Looping, room: Room, name: str) -> list[str]:
    """What a thread reads of its elements before the kernel runs."""
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
        w.function_of(f"void {name}_read({GIVEN}, {name}_early *const early)"),
    ]


def _load_weights_text(plan: Plan, kernel: Kernel, loop: Looping, room: Room, name: str, at: int) -> str:
    """A block's columns of the weights."""
    w, dot = LoopWriter(plan, kernel, loop, room), kernel.body
    assert isinstance(dot, Dot)
    w.axes[dot.k] = "k"
    head = f"ws_hold<{w.width}, {depth_of(kernel)}>((float *)(memory + {at}), [&](int k, int column) -> float"
    with w.block(head, "});"):
        w.emit("const int row = 0;")
        w.place()
        w.emit(f"return {widen_operand(w.element(dot.b), w.buffer_dtype(dot.b), float32)};")
    return w.function_of(f"void {name}_hold({GIVEN})")


def _product(w: LoopWriter, dot: Dot, loop: Looping, room: Room, at: int) -> None:
    """A product of rows that are brought with the columns that a block holds, and what follows it."""
    kernel, batch = w.kernel, w.extent(loop.batch)
    acc, depth, lanes = next(i for i in w.instrs if i.op == "acc"), depth_of(kernel), lanes_of(loop.rows, w.width)
    assert lanes is not None, "it was looked at"
    w.axes[dot.k] = "k"
    dtype = w.buffer_dtype(dot.a)
    type, wide = STORED[dtype], widen_operand("x", dtype, float32)
    w.emit(f"const ws_rows<{type}, {loop.rows}, {depth}> rows = {{")
    w.emit(f"    (float *)(memory + {room.rows}), ({type} *)(memory + {room.halves})}};")
    with w.block(f"rows.bring({batch} - m0, [&](int row, int k) -> const {type} *", "});"):
        w.emit("const int i = m0 + row;")
        w.emit(f"return &{GpuWriter.element(w, dot.a)};")
    chunk = schedule_of(kernel).chunk or padded_row_stride(depth)
    w.emit(f"ws_held_product<{loop.rows}, {w.width}, {depth}, {chunk}, {lanes[0]}, {lanes[1]}>(")
    w.emit(f"    (float *)(memory + {room.parts}), rows, (const float *)(memory + {at}),")
    w.emit(f"    []({type} x) -> float {{ return {wide}; }},")
    with w.block(f"    [&](int row, int column, float v{acc.id}, int which)", "    });"):
        w.emit(f"if (m0 + row >= {batch}) return;")
        w.place()
        w.rest()


def _main(plan: Plan, loop: Looping, buffers: Sequence[Sequence[int]]) -> str:
    """What a block does in all steps."""
    writers = [LoopWriter(plan, k, loop, Room.of(loop)) for k in loop.kernels]
    w = writers[0]
    starts = [sum(map(len, buffers[:place])) for place in range(len(buffers))]
    length = w.extent(plan.loops[loop.kernels[0].loop or 0].length)
    w.emit(f"const int down = blockIdx.x / {loop.across}, m0 = down*{loop.rows};")
    w.emit(f"const int u0 = blockIdx.x % {loop.across} * {loop.width}, steps = {length};")
    w.emit(f"if (m0 >= {w.extent(loop.batch)} || steps <= 0) return;")
    w.emit("char *const memory = ws_shared_memory();")
    w.emit("int *const here = come + down;")
    w.emit("int met = 0;")

    def call(place: int, what: str, turn: str) -> str:
        early = f", early{place}" if writers[place].early and what != "_hold" else ""
        return f"NAME_{place}{what}(step, {turn}, m0, u0, memory, given.at + {starts[place]}{early});"

    def read(place: int, turn: str) -> str:
        return call(place, "_read", turn) if writers[place].early else ""

    for place, kernel in enumerate(loop.kernels):
        if writers[place].early:
            w.emit(f"NAME_{place}_early early{place}[{-(-loop.rows * _width(loop, kernel) // THREADS)}];")
        if isinstance(kernel.body, Dot):
            w.emit(call(place, "_hold", "0"))
    w.emit("__syncthreads();")
    ahead = range(min(loop.meets, default=0))
    for line in filter(None, (read(place, "0") for place in ahead)):
        w.emit(line)
    with w.block("for (int turn = 0; turn < steps; turn++)"):
        for place in range(len(loop.kernels)):
            if place in loop.meets:
                _meet(w, loop, place, read)
            elif not loop.meets and (line := read(place, "turn")):
                w.emit(line)
            w.emit(call(place, "", "turn"))
            w.emit("__syncthreads();")
    w.emit(f"if (ws_is_last(come + {loop.down} + down, {loop.across}) && threadIdx.x == 0) *here = 0;")
    count = max(1, sum(map(len, buffers)))
    head = (
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1) NAME(const ws_step *step, int *come, '
        f"const __grid_constant__ ws_given<{count}> given) {{"
    )
    sizes = [line for line in w.opening() if "turn" not in line]
    return "\n".join([head, "  ws_wait_for_others();", *sizes, *w.lines, "}"])


def _meet(w: LoopWriter, loop: Looping, place: int, read: Callable[[int, str], str]) -> None:
    """Blocks of the same rows meet; what the kernels up to the next meeting read ahead is on its way meanwhile."""
    met = "if (turn) " if place == 0 else ""  # before the first kernel of all there is nothing to wait for
    meets, count = sorted(loop.meets), len(loop.kernels)
    following = next((m for m in meets if m > place), meets[0] + count)
    w.emit(f"{met}ws_arrive(here);")
    for other in range(place, following):
        while_more, turn = ("", "turn") if other < count else ("if (turn + 1 < steps) ", "turn + 1")
        if line := read(other % count, turn):
            w.emit(f"{while_more}{line}")
    w.emit(f"{met}ws_await(here, ++met * {loop.across});")
