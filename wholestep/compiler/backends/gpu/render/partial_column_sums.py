"""Partial column sums: each block reduces a tile of columns over one slice of the rows and writes the partial sums.

A later kernel adds the slices.  Rows are dealt to the warps of all slices round-robin; within a block the warps'
results are added in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from wholestep.compiler.backends.gpu.grids.row_loads import is_plain_load
from wholestep.compiler.backends.gpu.kernel_schedule import WARP
from wholestep.compiler.backends.gpu.render.language import STORED
from wholestep.compiler.backends.gpu.render.vectorize import VectorizedLevel
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Load, Store


def render_sums(w: GpuWriter, nest: Nest) -> None:
    """Emits the row loop and the sum over the warps of the block."""
    assert nest.vector is not None
    each, warps, length = w.schedule.vector, w.schedule.threads // WARP, w.kernel.axes[nest.vector]
    assert isinstance(length, int), "partial sums need a static row length"
    wide, sums = WARP * each, {s: f"z{n}" for n, s in enumerate(nest.levels[0].sums)}
    across = -(-length // wide)
    w.emit(f"const int lane = threadIdx.x % {WARP}, warp = threadIdx.x / {WARP};")
    w.emit(f"const int group = blockIdx.x % {across}, part = blockIdx.x / {across};")
    w.emit(f"const {w.int} base = group*{wide} + lane*{each}, total = {w.count(nest.rows)};")
    for name in sums.values():
        w.emit(f"float {name}[{each}] = {{}};")
    with w.block(f"if (base < {length})"):
        add_rows(w, nest, sums, w.schedule.blocks // across * warps, f"({w.int})part*{warps} + warp")
    write_block_sums(w, sums, warps, wide, length)


def add_rows(w: GpuWriter, nest: Nest, sums: Mapping[Store, str], apart: int, first: str) -> None:
    """A thread has the same columns of every row; it loads several rows, then adds them in order.

    Past the end it loads the last row again and adds nothing, so that no load depends on a branch.
    """
    (level,), each, axis = nest.levels, w.schedule.vector, nest.vector
    assert axis is not None
    packs = VectorizedLevel(w, axis, each)
    registers = {x: f"h{n}" for n, x in enumerate(read_of_rows(nest, packs))}
    rows = max(
        1, costs_of(w.plan).reductions.loads_in_flight // max(16, sum(each * w.buffer_dtype(x).size for x in registers))
    )

    @contextmanager
    def over_rows(inside: str) -> Iterator[None]:
        w.emit("#pragma unroll")
        with w.block(f"for (int r = 0; r < {rows}; r++)"):
            w.emit(f"const {w.int} at = next + r*{apart} < total ? next + r*{apart} : total - 1;")
            w.decompose("at", nest.rows)
            with w.block(inside):
                yield

    with w.block(f"for ({w.int} next = {first}; next < total; next += {rows * apart})"):
        for load, name in registers.items():
            w.emit(f"ws_pack<{STORED[w.buffer_dtype(load)]}, {each}> {name}[{rows}];")
        with over_rows(""):
            for load, name in registers.items():
                packs.read(load, f"{name}[r]", declare=False)
        with over_rows(f"if (next + r*{apart} < total)"):
            w.instructions(level.row)
            into = {s: f"{name}[e]" for s, name in sums.items()}
            packs.render(level, {load: f"{name}[r]" for load, name in registers.items()}, into=into)


def read_of_rows(nest: Nest, packs: VectorizedLevel) -> list[Load]:
    """Per-row loads whose address does not depend on a computed value."""
    plain = dict.fromkeys(i.load for i in nest.levels[0].body if i.load is not None and is_plain_load(i))
    return [
        x
        for x in plain
        if packs.packs(x)
        and all(index.value is None for index in x.index)
        and any(a in nest.rows for index in x.index for a, _ in index.terms)
    ]


def write_block_sums(w: GpuWriter, sums: Mapping[Store, str], warps: int, wide: int, length: int) -> None:
    """Adds the warps' sums of the block in order and writes them as this slice's partial sums."""
    each, column = w.schedule.vector, f"group*{wide} + threadIdx.x"
    assert wide <= w.schedule.threads
    w.emit(f"__shared__ float shares[{warps}][{wide}];")
    for n, (s, name) in enumerate(sums.items()):
        if n:
            w.emit("__syncthreads();")
        w.emit("#pragma unroll")
        w.emit(f"for (int e = 0; e < {each}; e++) shares[warp][lane*{each} + e] = {name}[e];")
        w.emit("__syncthreads();")
        with w.block(f"if (threadIdx.x < {wide} && {column} < {length})"):
            w.emit("float all = shares[0][threadIdx.x];")
            w.emit("#pragma unroll")
            w.emit(f"for (int p = 1; p < {warps}; p++) all += shares[p][threadIdx.x];")
            w.emit(f"({w.params[s.load.buffer]} + (long long)part*{length})[{column}] = all;")
