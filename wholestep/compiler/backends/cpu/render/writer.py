"""Writer of one kernel's C function: signature, instructions, stores, and loops over the vector axis.

Elementwise code is scalar C in `#pragma omp simd` loops, which gcc vectorizes (decision 004).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from wholestep.compiler.backends.common.cstyle.writer import CStyleWriter
from wholestep.compiler.backends.cpu.kernel_schedule import Blocks, Inner, Queries, schedule_of
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PAIRS, PANELS
from wholestep.compiler.backends.cpu.render.address import pair_terms, panel_terms
from wholestep.compiler.backends.cpu.render.language import LOCAL, LOWEST, OPS, STORED, SUFFIX, C, cast_text
from wholestep.compiler.backends.cpu.render.row_tails import can_widen, stores_rounded_as_vector, write_masked_lanes
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import DType, bfloat16, divide, float32, float64, int32, int64, uint8
from wholestep.compiler.plan.io.traffic import loads, stores
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Index, Instr, Kernel, Level, Load, Plan, Reduce, Space, Store

TRANSCENDENTAL = ops_with(Trait.TRANSCENDENTAL)
REDUCE_SUFFIX = {float32: "f32", float64: "f64", int32: "i32", int64: "i64", uint8: "u8"}

# Not inlined: gcc would take minutes for an entry function that contains all tiles of the window kernels.
NOINLINE = "__attribute__((noinline)) "
DIMENSION = re.compile(r"\bd\d+\b")  # a dimension of the step, in the text of a kernel


def block_and_word(element: Index) -> tuple[Index, int] | None:
    """The block of four random words of an element, and its word in it, if that is the same in all iterations."""
    quarters = [(axis, divide(stride, 4)) for axis, stride in element.terms]
    if not isinstance(element.offset, int) or element.over != 1 or element.value is not None:
        return None
    terms = tuple((axis, stride) for axis, stride in quarters if stride is not None)
    if len(terms) != len(quarters):
        return None
    return Index(terms, element.offset // 4), element.offset % 4


class CWriter(CStyleWriter):
    """Collects the lines of one kernel's function.  Its buffers are the parameters x0, x1, ... in order of use.

    `axis_panels` maps an axis that is iterated in panels to the expressions of (axis / 16, axis % 16).
    """

    language = C
    random_stream, random_counter = "call->seed, call->step", "uint64_t"

    def __init__(self, plan: Plan, kernel: Kernel) -> None:
        super().__init__(plan, kernel)
        used = dict.fromkeys(access.buffer for access in (*loads(kernel), *stores(kernel)))
        names = {storage: f"x{i}" for i, storage in enumerate(dict.fromkeys(self.place(b) for b in used))}
        self.schedule = schedule_of(kernel)
        self.params = {b: names[self.place(b)] for b in used} | workspace(self.schedule.inner)
        self.axis_panels: dict[int, tuple[str, str]] = {}
        casts = (i for i in self.instrs if i.op == "cast" and i.dtype == bfloat16)
        self.rounded = {i.id: i for i in casts if self.dtypes[i.args[0]] == float32}
        self.unread = set(self.rounded) - self.read_as_half()

    def read_as_half(self) -> set[int]:
        """The ids of the values that instructions other than casts back to float32, reductions or stores read."""
        read = {a for i in self.instrs if not self.is_rounded_in_place(i) for a in i.args}
        read |= {i.fill for i in self.instrs if i.fill is not None}
        levels = self.kernel.levels
        read |= {reduce.value for level in levels for reduce in level.reduces}
        return read | {s.value for level in levels for s in (*level.row_stores, *level.stores, *level.sums)}

    def is_rounded_in_place(self, i: Instr) -> bool:
        """Is an instruction a cast to bfloat16 and back to float32, which needs no conversion to 16 bits?"""
        return i.op == "cast" and i.dtype == float32 and i.args[0] in self.rounded

    def scalar_name(self, number: int, slot: int, dtype: DType) -> str:
        return f"s{number}"

    def span(self, axis: int) -> tuple[str, str]:
        """The range of an axis that this thread iterates over."""
        return ("lo", "hi") if axis == self.schedule.split else ("0", self.extent(self.kernel.axes[axis]))

    def offset(self, load: Load) -> str:
        layout = self.plan.buffers[load.buffer].layout
        if layout == PANELS:
            terms = panel_terms(self, load, self.axis_panels)
        else:
            terms = pair_terms(self, load) if layout == PAIRS else self.row_major_terms(load)
        return " + ".join(terms) or "0"

    def expression(self, i: Instr) -> str:
        if self.is_rounded_in_place(i):
            source = self.rounded[i.args[0]]
            return f"ws_rounded_{SUFFIX[source.dtype]}({self.values[source.args[0]]})"
        return super().expression(i)

    def random_number(self, i: Instr, element: str) -> str:
        """A random number; a fixed word of a block of four, so that gcc computes one block for all four of them."""
        assert i.index is not None
        moving = tuple(term for term in i.index.terms if self.kernel.axes[term[0]] != 1)
        if (place := block_and_word(replace(i.index, terms=moving))) is None:
            return super().random_number(i, element)
        block, word = place
        at = f"(uint64_t)({self.index_sum(block)}), {word}"
        return f"ws_uniform_of_block_{REDUCE_SUFFIX[i.dtype]}({self.random_stream}, {i.key}ull, {at})"

    def instructions(self, instrs: Sequence[Instr]) -> None:
        super().instructions([i for i in instrs if i.id not in self.unread])

    # -- the vector axis -------------------------------------------------------------------------------------------
    def is_paneled(self, level: Level) -> bool:
        """Does the level traverse a paneled buffer along the vector axis?"""
        accesses = [i.load for i in level.body if i.load] + [s.load for s in level.stores]
        return any(
            self.plan.buffers[x.buffer].layout == PANELS and x.index[-1].plain == self.kernel.vector for x in accesses
        )

    def body(self, level: Level) -> None:
        self.instructions(level.body)
        for r in level.reduces:
            self.accumulate(r)
        self.stores(level.stores)

    def accumulate(self, r: Reduce) -> None:
        value, lane = self.values[r.value], f"r{r.id}[l]"
        if r.op == "argmax":
            exceeds = f"ws_exceeds_{REDUCE_SUFFIX[self.dtypes[r.value]]}({value}, {lane})"
            self.emit(f"const int b{r.id} = (a{r.id}[l] < 0) | {exceeds};")
            self.emit(f"{lane} = b{r.id} ? {value} : {lane};")
            self.emit(f"a{r.id}[l] = b{r.id} ? (int32_t)({self.axes[self.kernel.vector or 0]}) : a{r.id}[l];")
        else:
            combine = OPS["add" if r.op == "sum" else "maximum"]
            self.emit(f"{lane} = {combine(self.dtypes[r.value], (lane, value))};")

    def start_reductions(self, reduces: Sequence[Reduce]) -> None:
        for r in reduces:
            dtype = self.dtypes[r.value]
            first = "0" if r.op == "sum" else LOWEST[dtype]
            self.emit(f"{STORED[dtype]} r{r.id}[{LANES}]; for (int l = 0; l < {LANES}; l++) r{r.id}[l] = {first};")
            if r.op == "argmax":
                self.emit(f"int32_t a{r.id}[{LANES}]; for (int l = 0; l < {LANES}; l++) a{r.id}[l] = -1;")

    def finish_reductions(self, reduces: Sequence[Reduce]) -> None:
        for r in reduces:
            suffix = REDUCE_SUFFIX[self.dtypes[r.value]]
            at = f", a{r.id}" if r.op == "argmax" else ""
            self.emit(f"const {LOCAL[r.dtype]} v{r.id} = ws_lanes_{r.op}_{suffix}(r{r.id}{at});")

    def lanes(self, level: Level, count: str, p: str, base: str = "") -> None:
        """The body of a level over `count` lanes of panel `p`."""
        vector = self.kernel.vector
        assert vector is not None
        saved = self.axes[vector]
        self.axes[vector] = f"({base or f'{p}*{LANES}'} + l)"
        if not base:
            self.axis_panels[vector] = (p, "l")
        if count.isdigit() and int(count) < LANES and can_widen(level):
            write_masked_lanes(self, level, int(count), simd(level))
        elif count == str(LANES) and (rounded := stores_rounded_as_vector(self, level)):
            self.round_after_loop(level, rounded, p, base)
        else:
            self.emit(simd(level))
            with self.block(f"for (long l = 0; l < {count}; l++)"):
                self.body(level)
        self.axes[vector] = saved
        self.axis_panels.pop(vector, None)

    def round_after_loop(self, level: Level, rounded: Mapping[Store, Instr], p: str, base: str) -> None:
        """A full panel of a level whose half-precision results are rounded after the loop, 16 at a time."""
        vector, casts = self.kernel.vector, {cast.id for cast in rounded.values()}
        assert vector is not None
        for id in sorted(casts):
            self.emit(f"float h{id}[{LANES}];")
        self.emit(simd(level))
        with self.block(f"for (long l = 0; l < {LANES}; l++)"):
            for i in level.body:
                if i.id in casts:
                    self.emit(f"h{i.id}[l] = {self.values[i.args[0]]};")
                else:
                    self.instructions([i])
            for r in level.reduces:
                self.accumulate(r)
            self.stores([s for s in level.stores if s not in rounded])
        self.axes[vector], self.axis_panels[vector] = base or f"{p}*{LANES}", (p, "0")
        if base:
            self.axis_panels.pop(vector)
        for s, cast in rounded.items():
            self.emit(f"ws_round_{SUFFIX[cast.dtype]}(&{self.element(s.load)}, h{cast.id});")

    def panels(self, level: Level, lo: str, hi: str) -> None:
        """A level over [lo, hi) of the vector axis: full panels, then the remaining lanes."""
        no_tail = hi.isdigit() and int(hi) % LANES == 0
        small = hi.isdigit() and int(hi) < LANES and lo == "0"
        if not small:
            with self.loop("p", panel(lo), f"({hi})/{LANES}"):
                self.lanes(level, str(LANES), "p")
        if not no_tail:
            with self.block("" if hi.isdigit() and lo == "0" else f"if (({hi})%{LANES} && {lo} < {hi})"):
                self.emit(f"const long p = ({hi})/{LANES};")
                self.lanes(level, str(int(hi) % LANES) if hi.isdigit() else f"({hi})%{LANES}", "p")

    def vector_loop(self, level: Level) -> None:
        """The complete body of a level: a flat loop, or panels if the layout or a reduction requires them."""
        if not (level.body or level.stores or level.reduces):
            return
        vector = self.kernel.vector
        assert vector is not None
        lo, hi = self.span(vector)
        self.start_reductions(level.reduces)
        if level.reduces or self.is_paneled(level) or stores_rounded_as_vector(self, level):
            self.panels(level, lo, hi)
        else:
            self.emit(simd(level))
            with self.loop(f"i{vector}", lo, hi):
                self.body(level)
        self.finish_reductions(level.reduces)

    def place(self, buffer: int) -> object:
        """Identifies a buffer's memory: aliases (in-place results) are one parameter, since all are `restrict`."""
        info = self.plan.buffers[buffer]
        return (info.offset, info.bytes) if info.space is Space.ARENA else buffer

    # -- the function ----------------------------------------------------------------------------------------------
    def parameters(self) -> str:
        return "".join(
            f", {STORED[self.plan.buffers[b].type.dtype]} *restrict {x}" for x, b in self.arguments().items()
        )

    def arguments(self) -> dict[str, int]:
        """The parameters by name, each with the buffer that is passed."""
        out: dict[str, int] = {}
        for b, name in self.params.items():
            out.setdefault(name, b)
        return out

    def function(self, name: str) -> str:
        attribute = NOINLINE if isinstance(self.kernel.body, Window) else ""
        # The last symbol is the iteration number of the loop.
        step = "" if self.kernel.loop is None else f", long d{len(self.symbols) - 1}"
        head = [f"static {attribute}void {name}(const ws_call *call, long lo, long hi{step}{self.parameters()}) {{"]
        named = set(DIMENSION.findall("\n".join(self.lines)))
        dims = len(self.symbols) - (self.kernel.loop is not None)
        used = [k for k in range(dims) if f"d{k}" in named]
        head += [f"  const long d{k} = call->dims[{k}];" for k in used]
        for (slot, dtype), name in self.scalars.items():
            value = f"call->derived[{slot}]"
            value = cast_text(value, float64, dtype) if dtype.is_half else f"({LOCAL[dtype]}){value}"
            head.append(f"  const {LOCAL[dtype]} {name} = {value};")
        return "\n".join([*head, *self.lines, "}"])


def workspace(inner: Inner | None) -> dict[int, str]:
    """The pieces of a thread's workspace that native code uses, and the names of their parameters."""
    if isinstance(inner, Blocks):
        pieces = {inner.work: "block", inner.pairs: "pairs"}
        return {b: name for b, name in pieces.items() if b is not None}
    if isinstance(inner, Queries):
        return {inner.work: "work"}
    return {} if inner is None else {b: name for name, b in inner.work}


def simd(level: Level) -> str:
    """The pragma of a level's vector loop: polynomials gain from the widest vectors, memory-bound loops do not."""
    wide = any(i.op in TRANSCENDENTAL and i.dtype == float32 for i in level.body)
    return f"#pragma omp simd simdlen({LANES})" if wide else "#pragma omp simd"


def panel(lo: str) -> str:
    return "0" if lo == "0" else f"{lo}/{LANES}"
