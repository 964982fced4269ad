"""Medium-size GEMM: a call of `ws_middle_product` of native/middle.h with operand accessors and epilogue."""

from __future__ import annotations

from wholestep.compiler.backends.gpu.gemm_medium import along
from wholestep.compiler.backends.gpu.render.gemm import early_loads
from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.plan.model.bodies import Dot


def render_medium_gemm(w: GpuWriter) -> None:
    dot = w.kernel.body
    assert isinstance(dot, Dot)
    (level,), (tall, wide, deep) = dot.levels, w.schedule.tile
    acc = next(i for i in level.body if i.op == "acc")
    w.axes |= {dot.m: "i", dot.n: "j", dot.k: "k"}
    w.emit(f"const int m = {w.axis_extent(dot.m)}, n = {w.axis_extent(dot.n)}, depth = {w.axis_extent(dot.k)};")
    w.emit(f"const int down = (m + {tall - 1}) / {tall}, across = (n + {wide - 1}) / {wide};")
    w.emit("const int tile = blockIdx.x % (down * across), each = blockIdx.x / (down * across);")
    w.emit(f"if (each >= {w.count(dot.batch)}) return;")
    w.decompose("each", dot.batch)
    groups = 256 // tall
    rounds = 2 if groups * tall * wide > 8192 else 1
    count = max(groups * deep * (tall + wide + 8), groups * tall * wide // rounds)  # as in `ws_middle`
    w.emit(f"__shared__ __align__(16) float operands[{count}];")
    early = early_loads(level)
    seen = "Early" if early else "ws_nothing"
    if early:
        w.emit(f"struct Early {{ {' '.join(f'{STORED[i.dtype]} v{i.id};' for i in early)} }};")
    flags = ["true" if along(w.kernel, x, axis) else "false" for x, axis in ((dot.a, dot.m), (dot.b, dot.n))]
    w.emit(f"ws_middle_product<{tall}, {wide}, {deep}, {', '.join(flags)}>(")
    w.emit(f"    operands, m, n, depth, tile / across * {tall}, tile % across * {wide},")
    w.emit(f"    [&](int i, int k) -> const float * {{ return &{w.element(dot.a)}; }},")
    w.emit(f"    [&](int k, int j) -> const float * {{ return &{w.element(dot.b)}; }},")
    w.emit(f"    [&](int i, int j) -> {seen} {{ return {{{', '.join(w.expression(i) for i in early)}}}; }},")
    w.depth += 1
    with w.block(f"[&](int i, int j, float v{acc.id}, const {seen} &early)", "});"):
        for i in early:
            w.emit(f"const {LOCAL[i.dtype]} v{i.id} = early.v{i.id};")
        ids = {i.id for i in early}
        w.instructions([i for i in (*level.row, *level.body) if i.id not in ids])
        w.stores((*level.row_stores, *level.stores))
    w.depth -= 1
