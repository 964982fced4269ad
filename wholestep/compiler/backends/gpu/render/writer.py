"""Common code of all kernels: function signature, addresses, expressions, stores, reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.gpu.render.language import LOCAL, OPS, STORED, cast_text, extent_text, literal
from wholestep.compiler.backends.gpu.schedule import sizes_in
from wholestep.compiler.ir.types import DType, Extent, evaluate, float32, float64, product
from wholestep.compiler.plan.io.traffic import loads, stores
from wholestep.compiler.plan.model.kernel import Index, Instr, Kernel, Kind, Level, Load, Plan, Reduce, Space, Store

INT = 1 << 31  # limit of 32-bit indices


class GpuWriter:
    """Collects the lines of one kernel.  Its buffers are the parameters x0, x1, ... in order of use."""

    ends_loops = True  # does the kernel return past the end of its loop?

    def __init__(self, plan: Plan, kernel: Kernel) -> None:
        self.plan, self.kernel, self.schedule = plan, kernel, schedule_of(kernel)
        loop = () if kernel.loop is None else (plan.loops[kernel.loop].symbol,)
        self.symbols = (*plan.symbols, *loop)
        self.lines: list[str] = []
        self.depth = 1
        used = dict.fromkeys(access.buffer for access in (*loads(kernel), *stores(kernel)) if access.buffer >= 0)
        self.work = [b for b in used if plan.buffers[b].space is Space.WORK]
        self.params = {b: f"x{i}" for i, b in enumerate(b for b in used if b not in self.work)}
        self.params |= {b: f"w{i}" for i, b in enumerate(self.work)}
        self.axes = {a: f"i{a}" for a in range(len(kernel.axes))}
        self.instrs = [i for level in kernel.levels for i in (*level.row, *level.body)]
        self.values: dict[int, str] = {}
        self.dtypes: dict[int, DType] = {}
        for i in self.instrs:
            self.dtypes[i.id] = i.dtype
            self.values[i.id] = (
                literal(i.const, i.dtype)
                if i.op == "const"
                else f"s{i.slot}_{i.dtype.name}"
                if i.op == "scalar"
                else f"v{i.id}"
            )
        self.row_values = {i.id for level in kernel.levels for i in level.row if i.op != "const"}
        for level in kernel.levels:
            for r in level.reduces:
                self.values[r.id], self.dtypes[r.id] = f"v{r.id}", r.dtype
                self.row_values |= {r.id} if kernel.kind is Kind.NEST else set()
        self.int = self._index_type()
        self.resident = 0  # required co-resident blocks per multiprocessor; 0: no requirement

    def _index_type(self) -> str:
        """32-bit indices if all addresses and elements are below 2^31, since their divisions are cheaper."""
        sizes = sizes_in(self.plan, self.kernel)
        counts = [evaluate(self.plan.buffers[b].type.elements, sizes) for b in self.params]
        counts.append(evaluate(product(self.kernel.axes[: self.kernel_axes]), sizes))
        return "int" if max(counts) < INT // 2 else "long long"

    @property
    def kernel_axes(self) -> int:
        """Number of axes distributed over threads: not the depth of a product, nor the operand axes of a window."""
        kinds = {"nest": len(self.kernel.axes), "columns": len(self.kernel.axes) - 1, "window": 4, "call": 2}
        return kinds.get(self.kernel.kind.value, len(self.kernel.axes) - (self.kernel.kind.value == "dot"))

    @cached_property
    def is_half(self) -> bool:
        """Are results and operands half precision?  Then functions may use faster approximations."""
        stored = {self.buffer_dtype(s.load) for level in self.kernel.levels for s in level.stores}
        read = [self.buffer_dtype(i.load) for i in self.instrs if i.load is not None]
        return bool(stored) and all(t.is_half for t in stored) and any(t.is_half for t in read)

    @cached_property
    def reads_half(self) -> bool:
        """Are all elements read along the rows half precision?  Then 20 bits of a function's result are enough."""
        accesses = [i.load for i in self.instrs if i.load is not None and i.load.buffer not in self.work]
        row_accesses = [
            x for x in accesses if any(a == self.kernel.vector for index in x.index for a, _ in index.terms)
        ]
        return bool(row_accesses) and all(self.buffer_dtype(x).is_half for x in row_accesses)

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

    def decompose(self, number: str, axes: Sequence[int]) -> None:
        """Emits the indices of a row-major linear index; the outermost needs no remainder."""
        if not axes:
            return
        rest = number
        for position, axis in enumerate(reversed(axes)):
            extent = self.axis_extent(axis)
            if position == len(axes) - 1:
                self.emit(f"const {self.int} i{axis} = {rest};")
            else:
                self.emit(f"const {self.int} i{axis} = {rest} % {extent}, n{axis} = {rest} / {extent};")
                rest = f"n{axis}"

    def axis_extent(self, axis: int) -> str:
        return self.extent(self.kernel.axes[axis])

    def extent(self, e: Extent) -> str:
        return extent_text(e, self.symbols)

    def count(self, axes: Sequence[int]) -> str:
        """The number of points of some axes."""
        return "*".join(f"({self.int}){self.axis_extent(a)}" for a in axes) or "1"

    # -- addresses -------------------------------------------------------------------------------------------------
    def times(self, text: str, stride: Extent) -> str:
        if stride == 1:
            return text
        return f"{text}*{self.extent(stride)}" if text != "0" else "0"

    def index(self, i: Index, extent: Extent, scale: Extent = 1) -> list[str]:
        """The terms of scale * index."""
        if i.over != 1:
            numerator = " + ".join(self.index(replace(i, over=1), extent)) or "0"
            return [self.times(f"(({numerator})/{i.over})", scale)]
        terms = [self.times(self.axes[a], c * scale) for a, c in i.terms]
        if i.offset != 0:
            terms.append(self.extent(i.offset * scale))
        if i.value is not None:
            value = self.values[i.value]
            place = value if i.is_behind_start else f"({self.int})ws_clamp({value}, {self.extent(extent - 1)})"
            terms.append(self.times(place, scale))
        return [t for t in terms if t != "0"]

    def offset(self, load: Load) -> str:
        terms: list[str] = []
        for d, i in enumerate(load.index):
            terms += self.index(i, load.shape[d], product(load.shape[d + 1 :]))
        return " + ".join(terms) or "0"

    def element(self, load: Load) -> str:
        return f"{self.params[load.buffer]}[{self.offset(load)}]"

    def guard(self, index: Index, lo: Extent, hi: Extent) -> str:
        at = " + ".join(self.index(index, 0)) or "0"
        return f"{self.extent(lo)} <= {at} && {at} < {self.extent(hi)}"

    def buffer_dtype(self, load: Load) -> DType:
        return self.plan.buffers[load.buffer].type.dtype

    # -- values ----------------------------------------------------------------------------------------------------
    def expression(self, i: Instr) -> str:
        args = tuple(self.values[a] for a in i.args)
        if i.op == "load":
            assert i.load is not None
            text = self.element(i.load)
            if i.guards:
                inside = " && ".join(self.guard(g.index, g.lo, g.hi) for g in i.guards)
                assert i.fill is not None
                text = f"({inside}) ? ({LOCAL[i.dtype]}){text} : {self.values[i.fill]}"
            return text
        if i.op == "index":
            assert i.index is not None
            return f"({LOCAL[i.dtype]})({' + '.join(self.index(i.index, 0)) or '0'})"
        if i.op == "random":
            assert i.index is not None
            element = " + ".join(self.index(i.index, 0)) or "0"
            suffix = "f32" if i.dtype == float32 else "f64"
            return f"ws_uniform_{suffix}(step, {i.key}ull, (ws_long_word)({element}))"
        if i.op == "cast":
            return cast_text(args[0], self.dtypes[i.args[0]], i.dtype)
        if i.op == "div" and i.dtype.is_float and i.args[1] in self.row_values and i.args[0] not in self.row_values:
            return f"({args[0]} * ({literal(1.0, i.dtype)} / {args[1]}))"  # one division per row
        if i.op == "tanh" and i.dtype == float32 and self.is_half:
            return f"ws_tanh_half({args[0]})"
        if i.op == "exp" and i.dtype == float32 and self.reads_half:
            return f"ws_exp_half({args[0]})"
        of = self.dtypes[i.args[1] if i.op == "where" else i.args[0]]
        return OPS[i.op](of, args)

    def instructions(self, instrs: Sequence[Instr]) -> None:
        for i in instrs:
            if i.op not in ("const", "scalar", "acc", "position"):
                self.emit(f"const {LOCAL[i.dtype]} v{i.id} = {self.expression(i)};")

    def stores(self, items: Sequence[Store]) -> None:
        for s in items:
            bounded = [(i, e) for i, e in zip(s.load.index, s.load.shape, strict=True) if i.is_behind_start]
            inside = " && ".join(self.guard(i, 0, e) for i, e in bounded)
            self.emit(f"{f'if ({inside}) ' if inside else ''}{self.element(s.load)} = {self.stored(s)};")

    def stored(self, store: Store) -> str:
        """The value in the dtype of its buffer; the kernel that writes a state also writes its half-precision copy."""
        of, to = self.dtypes[store.value], self.buffer_dtype(store.load)
        return cast_text(self.values[store.value], of, to) if to.is_half else self.values[store.value]

    def pass_over(self, level: Level, without_work: bool = False) -> None:
        self.instructions(level.body)
        for r in level.reduces:
            self.accumulate(r)
        self.stores([s for s in level.stores if not (without_work and s.load.buffer in self.work)])

    # -- reductions ------------------------------------------------------------------------------------------------
    def start(self, r: Reduce) -> None:
        """Declares a reduction's accumulator with its neutral element."""
        type = STORED[self.dtypes[r.value]]
        if r.op == "argmax":
            self.emit(f"ws_best<{type}> r{r.id} = {{ws_lowest(({type})0), -1}};")
        else:
            first = "0" if r.op == "sum" else f"ws_lowest(({type})0)"
            self.emit(f"{type} r{r.id} = {first};")

    def accumulate(self, r: Reduce, axis: int | None = None, of: str = "") -> None:
        value, type = self.values[r.value], STORED[self.dtypes[r.value]]
        if r.op == "argmax":
            at = self.axes[self.kernel.vector if axis is None else axis]  # type: ignore[index]
            self.emit(f"r{r.id} = ws_better(r{r.id}, ws_best<{type}>{{({type}){value}, (int){at}}});")
        else:
            join = "add" if r.op == "sum" else "max"
            self.emit(f"r{r.id}{of} = ws_{join}(r{r.id}{of}, ({type}){value});")

    def finish(self, r: Reduce, text: str) -> None:
        """Assigns the result of a reduction to its value name."""
        result = f"{text}.at" if r.op == "argmax" else text
        result = f"({result} < 0 ? 0 : {result})" if r.op == "argmax" else result
        self.emit(f"const {LOCAL[r.dtype]} v{r.id} = {result};")

    # -- the function ----------------------------------------------------------------------------------------------
    @property
    def buffers(self) -> tuple[int, ...]:
        """The buffers of its parameters, in order."""
        return tuple(b for b in self.params if b not in self.work)

    def parameters(self) -> list[str]:
        return [f"{STORED[self.plan.buffers[b].type.dtype]} *{self.params[b]}" for b in self.buffers]

    def declared(self) -> list[str]:
        """Declarations of its buffers, loaded from an address table."""
        types = [(STORED[self.plan.buffers[b].type.dtype], self.params[b]) for b in self.buffers]
        return [f"  {type} *const {x} = ({type} *)given[{i}];" for i, (type, x) in enumerate(types)]

    def function(self, name: str) -> str:
        """The kernel's source; its additional parameters depend on the source alone."""
        step = () if self.kernel.loop is None else ("int turn",)
        scratch = ("char *scratch", "int *counters") if self.schedule.scratch else ()
        parameters = ["const ws_step *step", *step, *scratch, *self.parameters()]
        bounds = f"{self.schedule.threads}{f', {self.resident}' if self.resident else ''}"
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({", ".join(parameters)}) {{'
        return "\n".join([head, "  ws_wait_for_others();", *self.opening(), *self.lines, "}"])

    def opening(self) -> list[str]:
        """Declarations of the dimensions and scalars that its lines use of a step record."""
        text, head = "\n".join(self.lines), []
        last = len(self.symbols) - 1
        loop = None if self.kernel.loop is None else self.plan.loops[self.kernel.loop]
        needed = text if loop is None else f"{text} {self.extent(loop.length)}"
        used = [k for k in range(len(self.plan.symbols)) if f"d{k}" in needed]
        head += [f"  const {self.int} d{k} = ({self.int})step->dims[{k}];" for k in used]
        if loop is not None:
            length = self.extent(loop.length)
            head += [f"  if (turn >= {length}) return;"] if self.ends_loops else []
            head.append(f"  const {self.int} d{last} = {f'{length} - 1 - turn' if loop.reverse else 'turn'};")
        for slot, dtype in dict.fromkeys((i.slot, i.dtype) for i in self.instrs if i.op == "scalar"):
            value = cast_text(f"step->slots[{slot}]", float64, dtype)
            head.append(f"  const {LOCAL[dtype]} s{slot}_{dtype.name} = {value};")
        return head
