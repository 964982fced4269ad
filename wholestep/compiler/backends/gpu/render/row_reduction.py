"""Nests that reduce: a warp or a block a row, which its threads read once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED
from wholestep.compiler.backends.gpu.render.row_cse import without_repeats
from wholestep.compiler.backends.gpu.render.vectorize import Packs, values_used
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.row_loads import (
    MOST_KEPT,
    MOST_PIECES,
    is_held,
    pieces_of,
    register_loads,
    row_bytes,
    sources_of,
)
from wholestep.compiler.backends.gpu.schedule import WARP
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Instr, Level, Load, Reduce

# Rows that a thread has little of: more warps on a multiprocessor hide more of memory's latency than registers do.
RESIDENT, RESIDENT_THREADS, RESIDENT_WORDS = 4, 256, 60


def render_rows(w: GpuWriter, nest: Nest) -> None:
    """Each thread has the same elements of the row in every level, so that what it keeps is its own."""
    width, workers = w.schedule.width, w.schedule.threads // w.schedule.width
    one = workers == 1
    w.emit(f"const int lane = threadIdx.x{'' if one else f' % {width}'};")
    w.emit(f"const {w.int} total = {w.count(nest.rows)};")
    first = "blockIdx.x" if one else f"({w.int})blockIdx.x*{workers} + threadIdx.x / {width}"
    step = "gridDim.x" if one else f"({w.int})gridDim.x*{workers}"
    row = RowLevels(w, nest)
    row.start_sums()
    row.begin_ahead()
    with w.block(f"for ({w.int} at = {first}; at < total; at += {step})"):
        w.decompose("at", nest.rows)
        row.render_all()
    row.finish_sums(workers)
    if not row.sums and w.schedule.threads == RESIDENT_THREADS and row.words <= RESIDENT_WORDS:
        w.resident = RESIDENT


class RowLevels:
    """The levels of a row: what a thread reads of it stays in registers where that is little, and so do its values.

    A value that is too much for that is computed again where a later level wants it.
    """

    def __init__(self, w: GpuWriter, nest: Nest) -> None:
        self.w, self.nest = w, nest
        self.count = w.schedule.vector
        length = 1 if nest.vector is None else w.kernel.axes[nest.vector]
        self.length = length if isinstance(length, int) else None
        across = w.schedule.width * self.count
        self.pieces = pieces_of(w.kernel, nest, w.schedule)
        self.is_whole = self.length is not None and self.length % across == 0
        self.packs = Packs(w, -1 if nest.vector is None else nest.vector, self.count)
        self.made: dict[int, tuple[int, Instr]] = {
            i.id: (n, i) for n, level in enumerate(nest.levels) for i in level.body
        }
        self.sources = sources_of(nest)
        wanted = {v for v in self.sources.values() if v in self.made}
        fits = self.pieces and self.pieces * self.count <= MOST_KEPT
        if fits and not wanted and not any(level.sums for level in nest.levels):  # which take registers themselves
            self.nest, self.sources = without_repeats(nest, MOST_KEPT // (self.pieces * self.count))
            wanted = set(self.sources.values())
        self.kept = {v: f"c{v}[j*{self.count} + e]" for v in wanted} if fits else {}
        self.held: dict[Load, str] = {}
        self.ahead = register_loads(w.plan, w.kernel, nest, w.schedule) if w.schedule.ahead else {}
        sums = [s for level in nest.levels for s in level.sums]
        self.sums = {s: f"z{n}" for n, s in enumerate(sums)}

    @property
    def words(self) -> int:
        """Registers of a thread for what it has read and kept."""
        size = sum(self.w.buffer_dtype(x).size for x in self.held) + sum(self.w.dtypes[v].size for v in self.kept)
        return self.pieces * self.count * size // 4

    def start_sums(self) -> None:
        """What a thread has added up so far of each of its columns."""
        for name in self.sums.values():
            self.w.emit(f"float {name}[{self.pieces * self.count}];")
            self.w.emit("#pragma unroll")
            self.w.emit(f"for (int i = 0; i < {self.pieces * self.count}; i++) {name}[i] = 0;")

    def finish_sums(self, workers: int) -> None:
        """Add up what the warps of a block have, in order, and leave it as this block's part."""
        w, count = self.w, self.count
        if self.sums and workers > 1:
            w.emit(f"__shared__ float shares[{workers}][{self.length}];")
        for n, (s, name) in enumerate(self.sums.items()):
            place = f"{w.params[s.load.buffer]} + (long long)blockIdx.x*{self.length}"
            column = f"(j*{w.schedule.width} + lane)*{count} + e"
            to = f"shares[threadIdx.x / {w.schedule.width}]" if workers > 1 else f"({place})"
            inside = "" if self.is_whole else f"if ({column} < {self.length}) "
            if workers > 1 and n:
                w.emit("__syncthreads();")
            w.emit("#pragma unroll")
            with w.block(f"for (int j = 0; j < {self.pieces}; j++)"):
                w.emit("#pragma unroll")
                w.emit(f"for (int e = 0; e < {count}; e++) {inside}{to}[{column}] = {name}[j*{count} + e];")
            if workers > 1:
                w.emit("__syncthreads();")
                with w.block(f"for (int c = threadIdx.x; c < {self.length}; c += {w.schedule.threads})"):
                    w.emit("float all = shares[0][c];")
                    w.emit("#pragma unroll")
                    w.emit(f"for (int p = 1; p < {workers}; p++) all += shares[p][c];")
                    w.emit(f"({place})[c] = all;")

    def render_all(self) -> None:
        """Level by level: what the row needs once, then its elements."""
        for n, level in enumerate(self.nest.levels):
            self.w.instructions(level.row)
            if level.row_stores:
                with self.w.block("if (lane == 0)"):
                    self.w.stores(level.row_stores)
            self.render(n)

    def render(self, n: int) -> None:
        w, level, axis = self.w, self.nest.levels[n], self.nest.vector
        if n == 0:
            for v in self.kept:
                w.emit(f"{LOCAL[w.dtypes[v]]} c{v}[{self.pieces * self.count}];")
        self.hold(n)
        if not (level.body or level.stores or level.reduces or level.sums):
            return
        assert axis is not None
        for r in level.reduces:
            w.start(r)
        level, known = self.with_earlier_levels(n)
        if self.length is None:
            with w.loop(f"i{axis}", "lane", w.axis_extent(axis), str(w.schedule.width)):
                w.values |= known
                w.pass_over(replace(level, body=tuple(i for i in level.body if i.id not in known)), without_work=True)
        else:
            if self.pieces <= MOST_PIECES:
                w.emit("#pragma unroll")
            with w.block(f"for (int j = 0; j < {self.pieces}; j++)"):
                w.emit(f"const {w.int} base = (j*{w.schedule.width} + lane)*{self.count};")
                with nullcontext() if self.is_whole else w.block(f"if (base < {self.length})"):
                    here = {v: text for v, text in self.kept.items() if self.made[v][0] == n}
                    into = {s: f"{self.sums[s]}[j*{self.count} + e]" for s in level.sums}
                    self.packs.render(level, {k: f"{x}[j]" for k, x in self.held.items()}, known, here, into)
        for r in level.reduces:
            w.finish(r, combine_threads(w, r))

    def hold(self, n: int) -> None:
        """Read what the row needs of memory once, as early as it can be."""
        w, levels = self.w, self.nest.levels
        if n == 0 and self.ahead:
            self.take_ahead()
        for m in range(n, len(levels)):
            for i in levels[m].body:
                if i.load is None or i.load in self.held or i.id in self.sources:
                    continue
                if not is_held(w.plan, w.kernel, self.nest, w.schedule, i):
                    continue
                if m > n and any(index.value is not None for index in i.load.index):
                    continue  # where to read is not known yet
                name = self.declare(i)
                with self.over_packs():
                    self.packs.read(i.load, f"{name}[j]", declare=False)

    def declare(self, instr: Instr) -> str:
        """Registers for what a load holds of the row."""
        assert instr.load is not None
        self.held[instr.load] = name = f"h{instr.id}"
        self.w.emit(f"{self.pack(instr.load)} {name}[{self.pieces}];")
        return name

    def pack(self, load: Load) -> str:
        return f"ws_pack<{STORED[self.w.buffer_dtype(load)]}, {self.count}>"

    @contextmanager
    def over_packs(self) -> Iterator[None]:
        """The line inside is that of each pack of this thread, from `base` on."""
        w = self.w
        w.emit("#pragma unroll")
        with w.block(f"for (int j = 0; j < {self.pieces}; j++)"):
            w.emit(f"const {w.int} base = (j*{w.schedule.width} + lane)*{self.count};")
            if not self.is_whole:
                w.emit(f"if (base < {self.length})")
            yield

    def begin_ahead(self) -> None:
        """Let the first row be on its way."""
        if self.ahead:
            self.w.emit("char *const slots = ws_shared_memory() + lane*16;")
            self.w.emit(f"const {self.w.int} first = blockIdx.x;")
            self.send("first")

    def take_ahead(self) -> None:
        """The row has come; let the next one be on its way.  A thread reads what it has sent itself: no barrier."""
        self.w.emit("ws_copy_wait<0>();")
        for load, instr in self.ahead.items():
            name = self.declare(instr)
            with self.over_packs():
                self.w.emit(f"{name}[j].take({self.slot(load)});")
        self.w.emit(f"const {self.w.int} next = at + gridDim.x;")
        self.send("next")

    def send(self, row: str) -> None:
        """Copy this thread's packs of a row, if there is one, to its own slots."""
        w = self.w
        with w.block(f"if ({row} < total)"):
            w.decompose(row, self.nest.rows)
            for load in self.ahead:
                with self.over_packs():
                    w.emit(f"{self.pack(load)}::send({self.slot(load)}, {self.packs.place(load)});")
        w.emit("ws_copy_commit();")

    def slot(self, load: Load) -> str:
        """Where pack j of a load is, and how far apart its pieces are: a warp has those of its lanes side by side."""
        before = list(self.ahead)[: list(self.ahead).index(load)]
        start = sum(row_bytes(self.w.plan, self.w.kernel, self.nest, x) for x in before)
        assert self.length is not None, "it is held"
        first = f"slots + {start}" if start else "slots"
        return f"{first} + j*{16 * self.w.schedule.width}, {16 * (self.length // self.count)}"

    def with_earlier_levels(self, n: int) -> tuple[Level, dict[int, str]]:
        """A level with what it takes from earlier ones: kept in registers, or computed again."""
        level, known, again = self.nest.levels[n], dict[int, str](), dict[int, Instr]()

        def need(value: int) -> None:
            """Compute a value of an earlier level before this level's own."""
            if value in again or value not in self.made or self.made[value][0] == n:
                return
            if value in self.kept:
                known[value] = self.kept[value]
                return
            instr = self.made[value][1]
            if value in self.sources:
                need(self.sources[value])
                known[value] = known.get(self.sources[value], f"v{self.sources[value]}")
            else:
                for used in values_used(instr):
                    need(used)
            again[value] = instr

        for i in level.body:
            if i.id in self.sources:
                source = self.sources[i.id]
                need(source)
                known[i.id] = known.get(source, self.w.values[source])
        return replace(level, body=(*again.values(), *level.body)), known


def combine_threads(w: GpuWriter, r: Reduce) -> str:
    """What the threads of a row have found, together."""
    warp, threads = w.schedule.width == WARP, w.schedule.threads
    if r.op == "argmax":
        return f"ws_warp_best(r{r.id})" if warp else f"ws_block_best<{threads}>(r{r.id})"
    return f"ws_warp<ws_{r.op}_op>(r{r.id})" if warp else f"ws_block<ws_{r.op}_op, {threads}>(r{r.id})"
