"""Texts that attention kernels share: accessor lambdas of operands and results, and the indices of their blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from wholestep.compiler.backends.gpu.grids.attention_calls import Axes
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
FORWARD = ("q", "k", "v", "mask")  # operands of the functions of the native headers, in order
BACKWARD = (*FORWARD, "gradient", "out", "lse")


def is_odd(extent: Extent, each: int) -> bool:
    """Can the size have a value that is not a multiple of `each`?"""
    return any(c % each for _, c in extent.terms) if isinstance(extent, Dim) else bool(extent % each)


def flags(*values: bool) -> str:
    """Template arguments."""
    return ", ".join("true" if value else "false" for value in values)


class AttentionText(ABC):
    """The parts of a call: template arguments, accessor lambdas, and block indices."""

    def __init__(self, w: GpuWriter, rows: int) -> None:
        call = w.kernel.body
        assert isinstance(call, Call)
        self.w, self.call, self.rows, self.axes = w, call, rows, Axes.of(w.kernel)
        self.operands = {o.name: o.load for o in call.operands}
        self.results = {o.name: o.load for o in call.results}
        self.dtype = accumulator(call.dtype)
        self.type = STORED[self.dtype]
        self.causal, self.masked = bool(dict(call.extents)["causal"]), "mask" in self.operands
        stored = self.operands.get("out") or next((load for name, load in self.results.items() if name in ROWS), None)
        self.out = KINDS[self.dtype if stored is None else w.buffer_dtype(stored)]
        axes = self.axes
        w.axes |= {axes.group: "h", axes.queries: "i", axes.keys: "j", axes.width: "0", axes.values: "0"}

    @abstractmethod
    def forward(self) -> str:
        """The text of a call of the forward function, without the size arguments, which follow."""

    @abstractmethod
    def backward_queries(self) -> str:
        """The same for the backward function of a tile of queries."""

    @abstractmethod
    def backward_keys(self) -> Sequence[str]:
        """The same for the backward function of a tile of keys: one or more calls, in separate blocks."""

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
        """Source of a lambda that returns the address of a row of an operand, or an element."""
        load, parameters = self.operands.get(name), self.arguments(name, with_head)
        if load is None:
            return f"[&]({parameters}) -> {self.type} {{ return 0; }}"
        dtype = self.w.buffer_dtype(load)
        if name in ROWS:
            return f"[&]({parameters}) -> const {STORED[dtype]} * {{ return &{self.w.element(load)}; }}"
        return (
            f"[&]({parameters}) -> {self.type} {{ return {widen_operand(self.w.element(load), dtype, self.dtype)}; }}"
        )

    def writes(self, name: str, with_head: bool = False) -> str:
        """A lambda that returns a row of a result, or stores an element."""
        load, parameters = self.results.get(name), self.arguments(name, with_head)
        if name in ROWS:
            type = STORED[self.dtype if load is None else self.w.buffer_dtype(load)]
            return f"[&]({parameters}) -> {type} * {{ return {'0' if load is None else f'&{self.w.element(load)}'}; }}"
        if load is None:
            return f"[&]({parameters}, {self.type}) {{}}"
        value = cast_text("x", self.dtype, self.w.buffer_dtype(load))
        return f"[&]({parameters}, {self.type} x) {{ {self.w.element(load)} = {value}; }}"

    def over_queries(self, block: str, head: str, operands: Sequence[str], results: Sequence[str]) -> None:
        """One block per tile of queries of one head; causal tiles run longest first."""
        w, at = self.w, f"{block} % down"
        at = f"(down - 1 - {at})" if self.causal else f"({at})"
        w.emit(f"const int each = {block} / down, q0 = {at} * {self.rows};")
        w.emit("if (each >= lead * heads) return;")
        w.emit("const int h = each % heads, outer = each / heads;")
        w.decompose("outer", self.axes.lead)
        self.emit_call(head, "queries, keys, q0", [*map(self.reads, operands), *map(self.writes, results)])

    def over_keys(self, block: str, head: str) -> None:
        """One block per tile of keys; the first causal tile is the longest."""
        self.w.emit(f"const int outer = {block} / across, k0 = {block} % across * {self.rows};")
        self.w.decompose("outer", self.axes.lead)
        accessors = [self.reads(name, True) for name in BACKWARD]
        self.emit_call(head, "heads, queries, keys, k0", [*accessors, self.writes("dk"), self.writes("dv")])

    def over_heads(self, head: str) -> None:
        """One block per head of keys."""
        self.w.emit("const int outer = blockIdx.x;")
        self.w.emit("if (outer >= lead) return;")
        self.w.decompose("outer", self.axes.lead)
        accessors = [self.reads(name, True) for name in BACKWARD]
        results = [self.writes(name, True) for name in ("dq", "dmask", "dk", "dv")]
        self.emit_call(head, "heads, queries, keys", [*accessors, *results])

    def emit_call(self, head: str, sizes: str, functions: Sequence[str]) -> None:
        scale = literal(dict(self.call.numbers)["scale"], self.dtype)
        self.w.emit(head)
        self.w.emit(f"    {sizes}, {scale},")
        for text in functions[:-1]:
            self.w.emit(f"    {text},")
        self.w.emit(f"    {functions[-1]});")
