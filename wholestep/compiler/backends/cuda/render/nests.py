"""Nests and column sums: a thread an element, a warp or a block a row, 32 columns a block."""

from __future__ import annotations

from wholestep.compiler.backends.cuda.render.language import STORED
from wholestep.compiler.backends.cuda.render.writer import Writer
from wholestep.compiler.backends.cuda.schedule import WARP
from wholestep.compiler.backends.cuda.scheduled import ELEMENTS
from wholestep.compiler.plan.bodies import Columns, Nest
from wholestep.compiler.plan.kernel import Level, Reduce
from wholestep.compiler.plan.layout import aligned


def render_nest(w: Writer) -> None:
    nest = w.kernel.body
    assert isinstance(nest, Nest)
    if w.schedule.form == ELEMENTS:
        render_elements(w, nest)
    else:
        render_rows(w, nest)


def over_elements(w: Writer, axes: tuple[int, ...]) -> str:
    """The head of a loop in which every point of some axes is one thread's."""
    w.emit(f"const {w.int} total = {w.count(axes)};")
    first, stride = f"({w.int})blockIdx.x*blockDim.x + threadIdx.x", f"({w.int})gridDim.x*blockDim.x"
    return f"for ({w.int} at = {first}; at < total; at += {stride})"


def render_elements(w: Writer, nest: Nest) -> None:
    """Nothing is reduced: whatever a row needs once, each of its elements computes for itself."""
    inner = () if nest.vector is None else (nest.vector,)
    with w.block(over_elements(w, (*nest.rows, *inner))):
        w.decompose("at", (*nest.rows, *inner))
        for level in nest.levels:
            w.instructions(level.row)
            if level.row_stores:
                with w.block("" if nest.vector is None else f"if (i{nest.vector} == 0)"):
                    w.stores(level.row_stores)
            w.pass_over(level)


def render_rows(w: Writer, nest: Nest) -> None:
    """Each thread has the same elements of the row in every level, so that what it carries is its own."""
    width, workers = w.schedule.width, w.schedule.threads // w.schedule.width
    one = workers == 1
    w.emit(f"const int lane = threadIdx.x{'' if one else f' % {width}'};")
    w.emit(f"const int worker = {'0' if one else f'threadIdx.x / {width}'};")
    carry(w, workers)
    w.emit(f"const {w.int} total = {w.count(nest.rows)};")
    first = "blockIdx.x" if one else f"({w.int})blockIdx.x*{workers} + worker"
    step = "gridDim.x" if one else f"({w.int})gridDim.x*{workers}"
    with w.block(f"for ({w.int} at = {first}; at < total; at += {step})"):
        w.decompose("at", nest.rows)
        for level in nest.levels:
            w.instructions(level.row)
            if level.row_stores:
                with w.block("if (lane == 0)"):
                    w.stores(level.row_stores)
            render_row(w, nest, level)


def carry(w: Writer, workers: int) -> None:
    """Rows that levels carry: in shared memory, or behind the arena where they are too long."""
    start = 0
    for buffer in w.work:
        of = w.plan.buffers[buffer]
        elements = aligned(of.bytes) // of.type.dtype.size
        type, name = STORED[of.type.dtype], w.params[buffer]
        if w.schedule.scratch:
            place = f"scratch + (long long)blockIdx.x*{w.schedule.scratch // w.schedule.blocks} + {start}"
            w.emit(f"{type} *const {name} = ({type} *)({place});")
            start += aligned(of.bytes)
            continue
        w.emit(f"__shared__ {type} {name}_rows[{workers}][{elements}];")
        w.emit(f"{type} *const {name} = {name}_rows[worker];")


def render_row(w: Writer, nest: Nest, level: Level) -> None:
    if not (level.body or level.stores or level.reduces):
        return
    assert nest.vector is not None
    for r in level.reduces:
        w.start(r)
    with w.loop(f"i{nest.vector}", "lane", w.axis_extent(nest.vector), str(w.schedule.width)):
        w.pass_over(level)
    for r in level.reduces:
        w.finish(r, joined(w, r))


def joined(w: Writer, r: Reduce) -> str:
    """What the threads of a row have found, together."""
    warp, threads = w.schedule.width == WARP, w.schedule.threads
    if r.op == "argmax":
        return f"ws_warp_best(r{r.id})" if warp else f"ws_block_best<{threads}>(r{r.id})"
    return f"ws_warp<ws_{r.op}_op>(r{r.id})" if warp else f"ws_block<ws_{r.op}_op, {threads}>(r{r.id})"


# -- sums over columns -----------------------------------------------------------------------------------------------


def render_columns(w: Writer) -> None:
    """Warp p of a block adds up rows p, p + 8, ... of 32 columns; then the warps are added in order.

    Of a long axis a block has one chunk; the block that comes last adds the chunks in the same way.
    """
    columns = w.kernel.body
    assert isinstance(columns, Columns)
    sums, epilogue = columns.levels
    extent, parts = w.axis_extent(columns.vector), w.schedule.threads // WARP
    w.emit(f"const int lane = threadIdx.x % {WARP}, part = threadIdx.x / {WARP};")
    w.emit(f"const {w.int} across = ({extent} + {WARP - 1}) / {WARP}, total = {w.count(columns.rows)} * across;")
    for r in sums.reduces:
        type = STORED[w.dtypes[r.value]]
        kind = f"ws_best<{type}>" if r.op == "argmax" else type
        w.emit(f"__shared__ {kind} parts{r.id}[{parts}][{WARP}];")
    chunks(w, columns)
    with w.block(f"for ({w.int} at = blockIdx.x; at < total; at += gridDim.x)"):
        w.emit(f"const {w.int} i{columns.vector} = at % across * {WARP} + lane, row = at / across;")
        w.emit(f"const bool inside = i{columns.vector} < {extent};")
        w.decompose("row", columns.rows)
        for r in sums.reduces:
            w.start(r)
        begin, end = ("first", "last") if w.schedule.chunk else ("0", w.axis_extent(columns.reduced))
        with w.block("if (inside)"), w.loop(f"i{columns.reduced}", f"{begin} + part", end, str(parts)):
            w.instructions(sums.body)
            for r in sums.reduces:
                w.accumulate(r, columns.reduced)
        add_parts(w, sums.reduces, parts)
        if w.schedule.chunk:
            add_chunks(w, sums.reduces, parts)
        with w.block("if (inside && part == 0)"):
            for r in sums.reduces:
                w.finish(r, f"r{r.id}")
            w.instructions(epilogue.body)
            w.stores(epilogue.stores)


def add_parts(w: Writer, reduces: tuple[Reduce, ...], parts: int) -> None:
    """Thread by thread of the first warp: what the warps have found, in order."""
    w.emit("__syncthreads();")
    for r in reduces:
        w.emit(f"parts{r.id}[part][lane] = r{r.id};")
    w.emit("__syncthreads();")
    for r in reduces:
        join = {"argmax": "better", "sum": "add", "max": "max"}[r.op]
        w.emit(f"r{r.id} = parts{r.id}[0][lane];")
        w.emit("#pragma unroll")
        w.emit(f"for (int p = 1; p < {parts}; p++) r{r.id} = ws_{join}(r{r.id}, parts{r.id}[p][lane]);")


def chunks(w: Writer, columns: Columns) -> None:
    """Which rows this block adds up; blocks behind the end of a call's axis have nothing to do."""
    if not w.schedule.chunk:
        return
    length, chunk = w.axis_extent(columns.reduced), w.schedule.chunk
    w.emit(f"const {w.int} chunks = {length} > {chunk} ? ({length} + {chunk - 1}) / {chunk} : 1;")
    w.emit("if (blockIdx.y >= chunks) return;")
    w.emit(f"const {w.int} first = ({w.int})blockIdx.y*{chunk};")
    w.emit(f"const {w.int} last = first + {chunk} < {length} ? first + {chunk} : {length};")


def add_chunks(w: Writer, reduces: tuple[Reduce, ...], parts: int) -> None:
    start = "scratch"
    for r in reduces:
        type = STORED[w.dtypes[r.value]]
        w.emit(f"{type} *const chunks{r.id} = ({type} *)({start});")
        start = f"(char *)(chunks{r.id} + (long long)gridDim.y*total*{WARP})"
    with w.block("if (chunks > 1)"):
        with w.block("if (part == 0)"):
            for r in reduces:
                w.emit(f"chunks{r.id}[((long long)blockIdx.y*total + at)*{WARP} + lane] = r{r.id};")
        w.emit("if (!ws_is_last(counters + at, chunks)) continue;")
        for r in reduces:
            type, join = STORED[w.dtypes[r.value]], "add" if r.op == "sum" else "max"
            w.emit(f"r{r.id} = {'0' if r.op == 'sum' else f'ws_lowest(({type})0)'};")
            with w.block(f"for ({w.int} c = part; c < chunks; c += {parts})"):
                w.emit(f"r{r.id} = ws_{join}(r{r.id}, chunks{r.id}[((long long)c*total + at)*{WARP} + lane]);")
        add_parts(w, reduces, parts)
