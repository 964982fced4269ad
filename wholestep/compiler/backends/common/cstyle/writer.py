"""Writer of one kernel's function in a dialect of C: lines, loops, addresses, expressions and stores.

The C and the CUDA writer derive from `CStyleWriter`.  They add the signature, reductions and the distribution of the
axes over vector lanes or threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from wholestep.compiler.backends.common.cstyle.language import Language, extent_text
from wholestep.compiler.ir.types import DType, Extent, float32, product
from wholestep.compiler.plan.model.kernel import Index, Instr, Kernel, Load, Plan, Store

WITHOUT_STATEMENT = ("const", "scalar", "acc", "position")  # instructions whose value is substituted where it is read


class CStyleWriter:
    """Collects the lines of one kernel's function.

    `axes`, `values` and `params` map axes, values and buffers to their expressions at the current line; renderers of
    kernels change them while they traverse a loop nest.
    """

    language: ClassVar[Language]
    random_stream: ClassVar[str]  # arguments of the random number generator that identify the step
    random_counter: ClassVar[str]  # type of the generator's element indices

    def __init__(self, plan: Plan, kernel: Kernel) -> None:
        self.plan, self.kernel = plan, kernel
        # The last symbol is the iteration number of a scan.
        self.symbols = (*plan.symbols, *(() if kernel.loop is None else (plan.loops[kernel.loop].symbol,)))
        self.lines: list[str] = []
        self.depth = 1
        self.int = "long"  # type of indices
        self.params: dict[int, str] = {}
        self.axes = {a: f"i{a}" for a in range(len(kernel.axes))}
        self.instrs = [i for level in kernel.levels for i in (*level.row, *level.body)]
        slots = dict.fromkeys((i.slot, i.dtype) for i in self.instrs if i.op == "scalar")
        self.scalars = {(slot, dtype): self.scalar_name(n, slot, dtype) for n, (slot, dtype) in enumerate(slots)}
        reduces = [r for level in kernel.levels for r in level.reduces]
        self.dtypes = {i.id: i.dtype for i in self.instrs} | {r.id: r.dtype for r in reduces}
        self.values = {id: f"v{id}" for id in self.dtypes}
        self.values |= {i.id: self.language.literal(i.const, i.dtype) for i in self.instrs if i.op == "const"}
        self.values |= {i.id: self.scalars[i.slot, i.dtype] for i in self.instrs if i.op == "scalar"}

    def scalar_name(self, number: int, slot: int, dtype: DType) -> str:
        """The variable of a runtime scalar: number `number` of this kernel, slot `slot` of the step."""
        raise NotImplementedError

    # -- lines -----------------------------------------------------------------------------------------------------
    def emit(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block(self, head: str, end: str = "}") -> Iterator[None]:
        self.emit(f"{head} {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.emit(end)

    @contextmanager
    def loop(self, var: str, lo: str, hi: str, step: str = "1") -> Iterator[None]:
        advance = f"{var}++" if step == "1" else f"{var} += {step}"
        with self.block(f"for ({self.int} {var} = {lo}; {var} < {hi}; {advance})"):
            yield

    # -- addresses -------------------------------------------------------------------------------------------------
    def extent(self, e: Extent) -> str:
        return extent_text(e, self.symbols)

    def times(self, text: str, stride: Extent) -> str:
        if stride == 1:
            return text
        return f"{text}*{self.extent(stride)}" if text != "0" else "0"

    def index(self, i: Index, extent: Extent, scale: Extent = 1) -> list[str]:
        """The terms of scale * index; a computed index is clamped to the extent, unless a guard checks it."""
        if i.over != 1:
            dividend = " + ".join(self.index(replace(i, over=1), extent)) or "0"
            return [self.times(f"(({dividend})/{i.over})", scale)]
        terms = [self.times(self.axes[a], c * scale) for a, c in i.terms]
        if i.offset != 0:
            terms.append(self.extent(i.offset * scale))
        if i.value is not None:
            value = self.values[i.value]
            terms.append(self.times(value if i.is_behind_start else self.clamp(value, self.extent(extent - 1)), scale))
        return [t for t in terms if t != "0"]

    def clamp(self, value: str, last: str) -> str:
        return f"ws_clamp({value}, {last})"

    def index_sum(self, i: Index) -> str:
        return " + ".join(self.index(i, 0)) or "0"

    def row_major_terms(self, load: Load) -> list[str]:
        strides = [product(load.shape[d + 1 :]) for d in range(len(load.shape))]
        return [t for i, e, s in zip(load.index, load.shape, strides, strict=True) for t in self.index(i, e, s)]

    def offset(self, load: Load) -> str:
        return " + ".join(self.row_major_terms(load)) or "0"

    def address(self, load: Load) -> str:
        return f"{self.params[load.buffer]} + {self.offset(load)}"

    def element(self, load: Load) -> str:
        return f"{self.params[load.buffer]}[{self.offset(load)}]"

    def guard(self, index: Index, lo: Extent, hi: Extent) -> str:
        at = self.index_sum(index)
        return f"{self.extent(lo)} <= {at} && {at} < {self.extent(hi)}"

    def buffer_dtype(self, load: Load) -> DType:
        return self.plan.buffers[load.buffer].type.dtype

    # -- values ----------------------------------------------------------------------------------------------------
    def expression(self, i: Instr) -> str:
        if i.op == "load":
            assert i.load is not None
            return self.guarded_load(i, self.element(i.load)) if i.guards else self.element(i.load)
        if i.op in ("index", "random"):
            assert i.index is not None
            at = self.index_sum(i.index)
            return f"({self.language.local[i.dtype]})({at})" if i.op == "index" else self.random_number(i, at)
        args = tuple(self.values[a] for a in i.args)
        if i.op == "cast":
            return self.language.cast(args[0], self.dtypes[i.args[0]], i.dtype)
        return self.language.ops[i.op](self.dtypes[i.args[1] if i.op == "where" else i.args[0]], args)

    def guarded_load(self, i: Instr, element: str) -> str:
        """The element if its guards hold, otherwise the fill value."""
        assert i.fill is not None
        inside = " && ".join(self.guard(g.index, g.lo, g.hi) for g in i.guards)
        return f"({inside}) ? {element} : {self.values[i.fill]}"

    def random_number(self, i: Instr, element: str) -> str:
        """A uniform random number, a function of the step, the instruction's key and the element's index."""
        suffix = "f32" if i.dtype == float32 else "f64"
        return f"ws_uniform_{suffix}({self.random_stream}, {i.key}ull, ({self.random_counter})({element}))"

    def instructions(self, instrs: Sequence[Instr]) -> None:
        for i in instrs:
            if i.op not in WITHOUT_STATEMENT:
                self.emit(f"const {self.language.local[i.dtype]} v{i.id} = {self.expression(i)};")

    def stores(self, items: Sequence[Store]) -> None:
        for s in items:
            bounded = [(i, e) for i, e in zip(s.load.index, s.load.shape, strict=True) if i.is_behind_start]
            inside = " && ".join(self.guard(i, 0, e) for i, e in bounded)
            self.emit(f"{f'if ({inside}) ' if inside else ''}{self.element(s.load)} = {self.store_operand(s)};")

    def store_operand(self, store: Store) -> str:
        """The value in the dtype of its buffer: a kernel that writes a state also writes its half-precision copy."""
        of, to = self.dtypes[store.value], self.buffer_dtype(store.load)
        return self.language.cast(self.values[store.value], of, to) if to.is_half else self.values[store.value]
