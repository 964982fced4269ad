"""Row reductions: a thread, a warp or a block per row; each thread loads its elements once and keeps them in registers.

Later levels reuse registers or recompute values (rematerialization).  Long half-precision rows are double-buffered:
the next row is copied to shared memory by cp.async while the current one is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from wholestep.compiler.backends.gpu.grids.row_loads import (
    is_register_resident,
    is_unrolled,
    register_loads,
    row_bytes,
    sources_of,
    vectors_per_thread,
)
from wholestep.compiler.backends.gpu.kernel_schedule import WARP
from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED
from wholestep.compiler.backends.gpu.render.vectorize import VectorizedLevel, values_used
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Instr, Level, Load, Reduce

LEAVES = ("load", "const", "scalar", "index")
LEAST_OPS = 2  # fewest operations of a value that is kept in a register; cheaper values are recomputed


def render_rows(w: GpuWriter, nest: Nest) -> None:
    """Emits the loop over rows; a thread has the same elements in every level, so kept values stay in its registers."""
    width, workers = w.schedule.width, w.schedule.threads // w.schedule.width
    one = workers == 1
    w.emit(f"const int lane = threadIdx.x{'' if one else f' % {width}'};")
    w.emit(f"const {w.int} total = {w.count(nest.rows)};")
    first = "blockIdx.x" if one else f"({w.int})blockIdx.x*{workers} + threadIdx.x / {width}"
    step = "gridDim.x" if one else f"({w.int})gridDim.x*{workers}"
    row = RowLevels(w, nest)
    row.start_sums()
    row.begin_ahead()
    with row_loop(w, width, first, step):
        w.decompose("at", nest.rows)
        row.render_all()
    row.finish_sums(workers)
    costs = costs_of(w.plan).reductions
    if not row.sums and w.schedule.threads == costs.resident_threads and row.words <= costs.resident_words:
        w.resident = costs.resident_blocks


@contextmanager
def row_loop(w: GpuWriter, width: int, first: str, step: str) -> Iterator[None]:
    """The loop over rows `at`.  If rows share a warp, all of its threads make every iteration, for the shuffles: those
    without a row load the last one again and store nothing.
    """
    if not 1 < width < WARP:
        with w.block(f"for ({w.int} at = {first}; at < total; at += {step})"):
            yield
        return
    rows = WARP // width
    own = first.replace(f"threadIdx.x / {width}", f"threadIdx.x / {WARP} * {rows}")
    with w.block(f"for ({w.int} next = {own}; next < total; next += {step})"):
        w.emit(f"const {w.int} own = next + threadIdx.x % {WARP} / {width}, at = own < total ? own : total - 1;")
        w.emit("const bool live = own < total;")
        yield


class RowLevels:
    """The levels of a row: loads and values stay in a thread's registers if they are few.

    A value that would need too many registers is recomputed in the later level that needs it.
    """

    def __init__(self, w: GpuWriter, nest: Nest) -> None:
        self.w, self.nest = w, nest
        self.count, self.costs = w.schedule.vector, costs_of(w.plan).reductions
        words = self.costs.register_words  # registers per thread for one value
        length = 1 if nest.vector is None else w.kernel.axes[nest.vector]
        self.length = length if isinstance(length, int) else None
        across = w.schedule.width * self.count
        self.pieces = vectors_per_thread(w.kernel, nest, w.schedule)
        self.is_whole = self.length is not None and self.length % across == 0
        self.shares_warp = 1 < w.schedule.width < WARP
        self.packs = VectorizedLevel(w, -1 if nest.vector is None else nest.vector, self.count)
        self.instructions: dict[int, tuple[int, Instr]] = {
            i.id: (n, i) for n, level in enumerate(nest.levels) for i in level.body
        }
        self.sources = sources_of(nest)
        reused = {v for v in self.sources.values() if v in self.instructions}
        fits = self.pieces and self.pieces * self.count <= words
        if fits and not reused and not any(level.sums for level in nest.levels):  # column sums need the registers
            self.nest, self.sources = eliminate_common_subexpressions(nest, words // (self.pieces * self.count))
            reused = set(self.sources.values())
        self.registers = {v: f"c{v}[j*{self.count} + e]" for v in reused} if fits else {}
        self.loaded: dict[Load, str] = {}
        self.ahead = register_loads(w.plan, w.kernel, nest, w.schedule) if w.schedule.ahead else {}
        sums = [s for level in nest.levels for s in level.sums]
        self.sums = {s: f"z{n}" for n, s in enumerate(sums)}

    @property
    def words(self) -> int:
        """Registers per thread for loaded and kept values."""
        size = sum(self.w.buffer_dtype(x).size for x in self.loaded) + sum(
            self.w.dtypes[v].size for v in self.registers
        )
        return self.pieces * self.count * size // 4

    @property
    def before_last(self) -> str:
        """The condition that a vector is not its thread's last one, which alone may reach past the end of the row."""
        return f"j + 1 < {self.pieces}" if self.pieces > 1 else ""

    @property
    def inside(self) -> str:
        """The condition that a vector begins inside the row.

        In a row that is prefetched it is tested for every vector, although only the last may begin beyond the row:
        without these branches the compiler keeps float32 values of the whole row for the next level, and spills.
        """
        after = f"base < {self.length}"
        return f"({self.before_last} || {after})" if self.before_last and not self.w.schedule.ahead else after

    def start_sums(self) -> None:
        """Zero-initialises a thread's column sums."""
        for name in self.sums.values():
            self.w.emit(f"float {name}[{self.pieces * self.count}];")
            self.w.emit("#pragma unroll")
            self.w.emit(f"for (int i = 0; i < {self.pieces * self.count}; i++) {name}[i] = 0;")

    def finish_sums(self, workers: int) -> None:
        """Adds the column sums of the block's warps in order and writes them as this block's part."""
        w, count = self.w, self.count
        if self.sums and workers > 1:
            w.emit(f"__shared__ float shares[{workers}][{self.length}];")
        for n, (s, name) in enumerate(self.sums.items()):
            address = f"{w.params[s.load.buffer]} + (long long)blockIdx.x*{self.length}"
            column = f"(j*{w.schedule.width} + lane)*{count} + e"
            destination = f"shares[threadIdx.x / {w.schedule.width}]" if workers > 1 else f"({address})"
            inside = "" if self.is_whole else f"if ({column} < {self.length}) "
            if workers > 1 and n:
                w.emit("__syncthreads();")
            w.emit("#pragma unroll")
            with w.block(f"for (int j = 0; j < {self.pieces}; j++)"):
                w.emit("#pragma unroll")
                w.emit(f"for (int e = 0; e < {count}; e++) {inside}{destination}[{column}] = {name}[j*{count} + e];")
            if workers > 1:
                w.emit("__syncthreads();")
                with w.block(f"for (int c = threadIdx.x; c < {self.length}; c += {w.schedule.threads})"):
                    w.emit("float all = shares[0][c];")
                    w.emit("#pragma unroll")
                    w.emit(f"for (int p = 1; p < {workers}; p++) all += shares[p][c];")
                    w.emit(f"({address})[c] = all;")

    def render_all(self) -> None:
        """Emits level by level: the values computed once per row, then the elements."""
        for n, level in enumerate(self.nest.levels):
            self.w.instructions(level.row)
            if level.row_stores:
                with self.w.block("if (live && lane == 0)" if self.shares_warp else "if (lane == 0)"):
                    self.w.stores(level.row_stores)
            self.render(n)

    def render(self, n: int) -> None:
        w, level, axis = self.w, self.nest.levels[n], self.nest.vector
        if n == 0:
            for v in self.registers:
                w.emit(f"{LOCAL[w.dtypes[v]]} c{v}[{self.pieces * self.count}];")
        self.hold(n)
        if not (level.body or level.stores or level.reduces or level.sums):
            return
        assert axis is not None
        for r in level.reduces:
            w.start(r)
        level, names = self.with_earlier_levels(n)
        if self.length is None:
            with w.loop(f"i{axis}", "lane", w.axis_extent(axis), str(w.schedule.width)):
                w.values |= names
                w.pass_over(replace(level, body=tuple(i for i in level.body if i.id not in names)), without_work=True)
        else:
            if is_unrolled(w.plan, self.pieces, w.schedule):
                w.emit("#pragma unroll")
            with w.block(f"for (int j = 0; j < {self.pieces}; j++)"):
                w.emit(f"const {w.int} base = (j*{w.schedule.width} + lane)*{self.count};")
                inside = [self.inside] * (not self.is_whole) + ["live"] * self.shares_warp
                with w.block(f"if ({' && '.join(inside)})") if inside else nullcontext():
                    here = {v: text for v, text in self.registers.items() if self.instructions[v][0] == n}
                    into = {s: f"{self.sums[s]}[j*{self.count} + e]" for s in level.sums}
                    loaded = {k: f"{x}[j]" for k, x in self.loaded.items()}
                    self.packs.render(level, loaded, names, here, into, inside=self.before_last)
        for r in level.reduces:
            w.finish(r, combine_threads(w, r))

    def hold(self, n: int) -> None:
        """Emits the register-resident loads of the row, as early as possible."""
        w, levels = self.w, self.nest.levels
        if n == 0 and self.ahead:
            self.take_ahead()
        for m in range(n, len(levels)):
            for i in levels[m].body:
                if i.load is None or i.load in self.loaded or i.id in self.sources:
                    continue
                if not is_register_resident(w.plan, w.kernel, self.nest, w.schedule, i):
                    continue
                if m > n and any(index.value is not None for index in i.load.index):
                    continue  # the load's address is not computed yet
                name = self.declare(i)
                with self.over_packs():
                    self.packs.read(i.load, f"{name}[j]", declare=False)

    def declare(self, instr: Instr) -> str:
        """Declares the registers of a load of the row."""
        assert instr.load is not None
        self.loaded[instr.load] = name = f"h{instr.id}"
        self.w.emit(f"{self.pack(instr.load)} {name}[{self.pieces}];")
        return name

    def pack(self, load: Load) -> str:
        return f"ws_pack<{STORED[self.w.buffer_dtype(load)]}, {self.count}>"

    @contextmanager
    def over_packs(self) -> Iterator[None]:
        """Emits a loop in which the enclosed lines run for each vector of this thread, which starts at `base`."""
        w = self.w
        w.emit("#pragma unroll")
        with w.block(f"for (int j = 0; j < {self.pieces}; j++)"):
            w.emit(f"const {w.int} base = (j*{w.schedule.width} + lane)*{self.count};")
            if not self.is_whole:
                w.emit(f"if ({self.inside})")
            yield

    def begin_ahead(self) -> None:
        """Starts the asynchronous copy of the first row."""
        if self.ahead:
            self.w.emit("char *const slots = ws_shared_memory() + lane*16;")
            self.w.emit(f"const {self.w.int} first = blockIdx.x;")
            self.send("first")

    def take_ahead(self) -> None:
        """Waits for the row and starts to copy the next.  A thread reads only elements that it copied: no barrier."""
        self.w.emit("ws_copy_wait<0>();")
        for load, instr in self.ahead.items():
            name = self.declare(instr)
            with self.over_packs():
                self.w.emit(f"{name}[j].take({self.slot(load)});")
        self.w.emit(f"const {self.w.int} next = at + gridDim.x;")
        self.send("next")

    def send(self, row: str) -> None:
        """Copies this thread's vectors of a row, if it exists, to its slots in shared memory."""
        w = self.w
        with w.block(f"if ({row} < total)"):
            w.decompose(row, self.nest.rows)
            for load in self.ahead:
                with self.over_packs():
                    w.emit(f"{self.pack(load)}::send({self.slot(load)}, {self.packs.place(load)});")
        w.emit("ws_copy_commit();")

    def slot(self, load: Load) -> str:
        """Address of vector j of a load, and the stride between its pieces; lanes of a warp read adjacent addresses."""
        before = list(self.ahead)[: list(self.ahead).index(load)]
        start = sum(row_bytes(self.w.plan, self.w.kernel, self.nest, self.w.schedule, x) for x in before)
        assert self.length is not None, "prefetched rows have a static length"
        first = f"slots + {start}" if start else "slots"
        return f"{first} + j*{16 * self.w.schedule.width}, {16 * -(-self.length // self.count)}"

    def with_earlier_levels(self, n: int) -> tuple[Level, dict[int, str]]:
        """A level with its inputs from earlier levels: registers, and instructions to recompute the other inputs."""
        level, names, recomputed = self.nest.levels[n], dict[int, str](), dict[int, Instr]()

        def require(value: int) -> None:
            """Makes a value of an earlier level available before this level's own instructions."""
            if value in recomputed or value not in self.instructions or self.instructions[value][0] == n:
                return
            if value in self.registers:
                names[value] = self.registers[value]
                return
            instr = self.instructions[value][1]
            if value in self.sources:
                require(self.sources[value])
                names[value] = names.get(self.sources[value], f"v{self.sources[value]}")
            else:
                for used in values_used(instr):
                    require(used)
            recomputed[value] = instr

        for i in level.body:
            if i.id in self.sources:
                source = self.sources[i.id]
                require(source)
                names[i.id] = names.get(source, self.w.values[source])
        return replace(level, body=(*recomputed.values(), *level.body)), names


def combine_threads(w: GpuWriter, r: Reduce) -> str:
    """The reduction over the threads of a row."""
    if w.schedule.width == 1:
        return f"r{r.id}"
    width, threads = w.schedule.width, w.schedule.threads
    if r.op == "argmax":
        return f"ws_lanes_best<{width}>(r{r.id})" if width <= WARP else f"ws_block_best<{threads}>(r{r.id})"
    return (
        f"ws_lanes<ws_{r.op}_op, {width}>(r{r.id})" if width <= WARP else f"ws_block<ws_{r.op}_op, {threads}>(r{r.id})"
    )


# -- common subexpressions --------------------------------------------------------------------------------------------


def eliminate_common_subexpressions(nest: Nest, most: int) -> tuple[Nest, dict[int, int]]:
    """Drops instructions of later levels that repeat earlier instructions; returns the nest and value -> earlier value.

    Args:
        most: values that a thread can keep of its part of a row.
    """
    first, level_of = _first_of_equals(nest), {i.id: n for n, level in enumerate(nest.levels) for i in level.body}
    instructions = {i.id: i for level in nest.levels for i in level.body}
    registers, replacements, levels = set[int](), dict[int, int](), [nest.levels[0]]
    for n, level in enumerate(nest.levels[1:], 1):
        needed = {s.value for s in (*level.stores, *level.sums)} | {r.value for r in level.reduces}
        body: list[Instr] = []
        for i in reversed(level.body):
            if i.id not in needed:
                continue
            body.append(i)
            earlier = first[i.id]
            if (
                level_of[earlier] < n
                and _ops(earlier, instructions) >= LEAST_OPS
                and len(registers | {earlier}) <= most
            ):
                registers.add(earlier)
                replacements[i.id] = earlier
            else:
                needed.update(values_used(i))
        levels.append(replace(level, body=tuple(reversed(body))))
    return replace(nest, levels=tuple(levels)), replacements


def _first_of_equals(nest: Nest) -> dict[int, int]:
    """Value numbering: value -> first value computed by the same operation from the same operands."""
    written = {load.buffer for load in nest.stores()}
    seen: dict[Instr, int] = {}
    numbers: dict[int, int] = {}
    for i in (i for level in nest.levels for i in level.body):
        is_unmodified = i.load is None or i.load.buffer not in written
        expression = replace(i, id=-1, args=tuple(numbers.get(a, a) for a in i.args))
        numbers[i.id] = seen.setdefault(expression, i.id) if is_unmodified else i.id
    return numbers


def _ops(value: int, instructions: Mapping[int, Instr]) -> int:
    """Per-element operations needed to compute a value."""
    if value not in instructions or instructions[value].op in LEAVES:
        return 0
    return 1 + sum(_ops(used, instructions) for used in values_used(instructions[value]))
