"""Attention kernels: calls of the functions of native/attention.h with accessors for operands and results."""

from __future__ import annotations

from wholestep.compiler.backends.gpu.grids.attention import Axes, makes_keys, makes_queries
from wholestep.compiler.backends.gpu.render.gemm import accumulator
from wholestep.compiler.backends.gpu.render.language import STORED, cast_text, literal, widen_operand
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.strides import start_of, stride_of
from wholestep.compiler.ir.types import Dim, Extent, bfloat16, float16, float32, float64
from wholestep.compiler.plan.model.bodies import Call

# Operands and results that are accessed row by row.
ROWS = frozenset({"q", "k", "v", "gradient", "out", "dq", "dk", "dv"})
KINDS = {bfloat16: "ws_bf16", float16: "ws_f16", float32: "ws_plain", float64: "ws_plain"}
PIECE = 16  # bytes of a vector access


def is_odd(extent: Extent, each: int) -> bool:
    """Can the size have a value that is not a multiple of `each`?"""
    return any(c % each for _, c in extent.terms) if isinstance(extent, Dim) else bool(extent % each)


def render_call(w: GpuWriter) -> None:
    call = w.kernel.body
    assert isinstance(call, Call)
    tile, group = w.schedule.tile
    text = _Text(w, call, tile, group)
    w.emit(f"const int queries = {w.axis_extent(text.axes.queries)}, keys = {w.axis_extent(text.axes.keys)};")
    w.emit(f"const int down = queries > 0 ? (queries + {tile - 1}) / {tile} : 1;")
    w.emit(f"const int lead = {w.count(text.axes.lead)}, heads = {w.axis_extent(text.axes.group)};")
    kind = "FORWARD" if call.routine == "attention" else "BACKWARD"
    w.emit(f"__shared__ __align__(16) {text.type} memory[ws_heads<{text.sizes}>::{kind}];")
    if call.routine == "attention":
        text.over_queries("blockIdx.x", "ws_attention", ("q", "k", "v", "mask"), ("out", "lse"))
        return
    first = "0"
    if makes_keys(call):
        w.emit(f"const int across = keys > 0 ? (keys + {tile - 1}) / {tile} : 1, first = lead * across;")
        with w.block("if (blockIdx.x < first)"):
            text.over_keys()
        first = "first"
    if makes_queries(call):
        operands = ("q", "k", "v", "mask", "gradient", "out", "lse")
        with w.block(f"if (blockIdx.x >= {first})"):
            text.over_queries(f"(blockIdx.x - {first})", "ws_attention_queries", operands, ("dq", "dmask"))


class _Text:
    """The parts of a call: its template arguments, and accessor lambdas."""

    def __init__(self, w: GpuWriter, call: Call, tile: int, group: int) -> None:
        self.w, self.call, self.tile, self.axes = w, call, tile, Axes.of(w.kernel)
        self.operands = {o.name: o.load for o in call.operands}
        self.results = {o.name: o.load for o in call.results}
        self.dtype = accumulator(call.dtype)
        self.type = STORED[self.dtype]
        axes = self.axes
        self.sizes = f"{self.type}, {group}, {tile}, {w.axis_extent(axes.width)}, {w.axis_extent(axes.values)}"
        self.causal = bool(dict(call.extents)["causal"])
        flags = ", ".join("true" if x else "false" for x in (self.causal, "mask" in self.operands))
        stored = self.operands.get("out") or next((load for name, load in self.results.items() if name in ROWS), None)
        kinds = [KINDS[call.dtype], KINDS[self.dtype if stored is None else w.buffer_dtype(stored)]]
        aligned = "true" if self.is_aligned() else "false"
        self.template = f"{self.type}, {', '.join(kinds)}, {aligned}, {self.sizes.partition(', ')[2]}, {flags}"
        w.axes |= {axes.group: "h", axes.queries: "i", axes.keys: "j", axes.width: "0", axes.values: "0"}

    def is_aligned(self) -> bool:
        """Are all rows aligned to 16 bytes, whatever the sizes?"""
        inner = (self.axes.width, self.axes.values)
        for name, load in (*self.operands.items(), *self.results.items()):
            if name in ROWS:
                each = PIECE // self.w.buffer_dtype(load).size
                outer = {a for i in load.index for a, _ in i.terms} - set(inner)
                steps = [start_of(load), *(stride_of(load, a) for a in outer), *(self.w.kernel.axes[a] for a in inner)]
                if any(is_odd(step, max(4, each)) for step in steps):
                    return False
        return True

    def arguments(self, name: str, with_head: bool) -> str:
        """Parameters that identify a row, or an element of an operand without rows."""
        indices = {"mask": "i j", "dmask": "i j", **dict.fromkeys(("k", "v", "dk", "dv"), "j")}
        head = ["h"] if with_head and name not in ("k", "v", "dk", "dv") else []
        return ", ".join(f"int {x}" for x in (*head, *indices.get(name, "i").split()))

    def reads(self, name: str, with_head: bool = False) -> str:
        """A lambda that returns a row of an operand, or an element."""
        load, parameters = self.operands.get(name), self.arguments(name, with_head)
        if load is None:
            return f"[&]({parameters}) -> {self.type} {{ return 0; }}"
        dtype = self.w.buffer_dtype(load)
        if name in ROWS:
            return f"[&]({parameters}) -> const {STORED[dtype]} * {{ return &{self.w.element(load)}; }}"
        return (
            f"[&]({parameters}) -> {self.type} {{ return {widen_operand(self.w.element(load), dtype, self.dtype)}; }}"
        )

    def writes(self, name: str) -> str:
        """A lambda that returns a row of a result, or stores an element."""
        load, parameters = self.results.get(name), self.arguments(name, False)
        if name in ROWS:
            type = STORED[self.dtype if load is None else self.w.buffer_dtype(load)]
            return f"[&]({parameters}) -> {type} * {{ return {'0' if load is None else f'&{self.w.element(load)}'}; }}"
        if load is None:
            return f"[&]({parameters}, {self.type}) {{}}"
        value = cast_text("x", self.dtype, self.w.buffer_dtype(load))
        return f"[&]({parameters}, {self.type} x) {{ {self.w.element(load)} = {value}; }}"

    def over_queries(self, block: str, function: str, operands: tuple[str, ...], results: tuple[str, ...]) -> None:
        """One block per tile of queries of one head; causal tiles run longest first."""
        w = self.w
        at = f"{block} % down"
        w.emit(
            f"const int each = {block} / down, q0 = {f'(down - 1 - {at})' if self.causal else f'({at})'} * {self.tile};"
        )
        w.emit("if (each >= lead * heads) return;")
        w.emit("const int h = each % heads, outer = each / heads;")
        w.decompose("outer", self.axes.lead)
        self.call_of(function, "queries, keys, q0", [*map(self.reads, operands), *map(self.writes, results)])

    def over_keys(self) -> None:
        """One block per tile of keys; the first causal tile is the longest."""
        w = self.w
        w.emit(f"const int outer = blockIdx.x / across, k0 = blockIdx.x % across * {self.tile};")
        w.decompose("outer", self.axes.lead)
        accessors = [self.reads(name, True) for name in ("q", "k", "v", "mask", "gradient", "out", "lse")]
        self.call_of(
            "ws_attention_keys", "heads, queries, keys, k0", [*accessors, self.writes("dk"), self.writes("dv")]
        )

    def call_of(self, function: str, sizes: str, functions: list[str]) -> None:
        scale = literal(dict(self.call.numbers)["scale"], self.dtype)
        self.w.emit(f"{function}<{self.template}>(")
        self.w.emit(f"    memory, {sizes}, {scale},")
        for text in functions[:-1]:
            self.w.emit(f"    {text},")
        self.w.emit(f"    {functions[-1]});")
