"""Common code of all GPU kernels: function signature, thread indices, fast approximations, reductions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from wholestep.compiler.backends.common.cstyle.writer import CStyleWriter
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of, sizes_in
from wholestep.compiler.backends.gpu.render.language import CUDA, LOCAL, STORED, cast_text, extent_text, literal
from wholestep.compiler.ir.types import DType, Extent, evaluate, float32, float64, product
from wholestep.compiler.plan.io.traffic import loads, stores
from wholestep.compiler.plan.model.kernel import Instr, Kernel, Kind, Level, Plan, Reduce, Space

INT = 1 << 31  # limit of 32-bit indices


class GpuWriter(CStyleWriter):
    """Collects the lines of one kernel.  Its buffers are the parameters x0, x1, ... in order of use."""

    language = CUDA
    random_stream, random_counter = "step", "ws_long_word"
    ends_loops = True  # does the kernel return past the end of its loop?

    def __init__(self, plan: Plan, kernel: Kernel) -> None:
        super().__init__(plan, kernel)
        self.schedule = schedule_of(kernel)
        used = dict.fromkeys(access.buffer for access in (*loads(kernel), *stores(kernel)) if access.buffer >= 0)
        self.work = [b for b in used if plan.buffers[b].space is Space.WORK]
        self.params = {b: f"x{i}" for i, b in enumerate(b for b in used if b not in self.work)}
        self.params |= {b: f"w{i}" for i, b in enumerate(self.work)}
        self.row_values = {i.id for level in kernel.levels for i in level.row if i.op != "const"}
        if kernel.kind is Kind.NEST:
            self.row_values |= {r.id for level in kernel.levels for r in level.reduces}
        self.int = self._index_type()
        self.resident = 0  # required co-resident blocks per multiprocessor; 0: no requirement

    def scalar_name(self, number: int, slot: int, dtype: DType) -> str:
        return f"s{slot}_{dtype.name}"

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

    # -- addresses -------------------------------------------------------------------------------------------------
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

    def clamp(self, value: str, last: str) -> str:
        return f"({self.int})ws_clamp({value}, {last})"

    # -- values ----------------------------------------------------------------------------------------------------
    def expression(self, i: Instr) -> str:
        args = tuple(self.values[a] for a in i.args)
        if i.op == "div" and i.dtype.is_float and i.args[1] in self.row_values and i.args[0] not in self.row_values:
            return f"({args[0]} * ({literal(1.0, i.dtype)} / {args[1]}))"  # one division per row
        if i.op == "tanh" and i.dtype == float32 and self.is_half:
            return f"ws_tanh_half({args[0]})"
        if i.op == "exp" and i.dtype == float32 and self.reads_half:
            return f"ws_exp_half({args[0]})"
        return super().expression(i)

    def guarded_load(self, i: Instr, element: str) -> str:
        return super().guarded_load(i, f"({LOCAL[i.dtype]}){element}")

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
        if r.op == "argmax":  # all threads of a warp take part in the shuffles, also those that found no element
            self.emit(f"const auto best{r.id} = {text};")
            text = f"(best{r.id}.at < 0 ? 0 : best{r.id}.at)"
        self.emit(f"const {LOCAL[r.dtype]} v{r.id} = {text};")

    # -- the function ----------------------------------------------------------------------------------------------
    @property
    def buffers(self) -> tuple[int, ...]:
        """The buffers of the kernel's parameters, in order."""
        return tuple(b for b in self.params if b not in self.work)

    def parameters(self) -> list[str]:
        return [f"{STORED[self.plan.buffers[b].type.dtype]} *{self.params[b]}" for b in self.buffers]

    def device_function(self, head: str) -> str:
        """The source of a function that other device code calls; its buffers come from an address table."""
        lines = [*self._table_declarations(), *self.size_declarations(), *self.lines]
        return "\n".join([f"static __device__ __forceinline__ {head} {{", *lines, "}"])

    def _table_declarations(self) -> list[str]:
        """Declarations of the kernel's buffers, loaded from an address table."""
        types = [(STORED[self.plan.buffers[b].type.dtype], self.params[b]) for b in self.buffers]
        return [f"  {type} *const {x} = ({type} *)given[{i}];" for i, (type, x) in enumerate(types)]

    def function(self, name: str) -> str:
        """The kernel's source; its additional parameters depend on the source alone."""
        step = () if self.kernel.loop is None else ("int turn",)
        scratch = ("char *scratch", "int *counters") if self.schedule.scratch else ()
        parameters = ["const ws_step *step", *step, *scratch, *self.parameters()]
        bounds = f"{self.schedule.threads}{f', {self.resident}' if self.resident else ''}"
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({", ".join(parameters)}) {{'
        return "\n".join([head, "  ws_wait_for_others();", *self.size_declarations(), *self.lines, "}"])

    def size_declarations(self) -> list[str]:
        """Declarations of the dimensions and scalars of the step record that the kernel's lines use."""
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
        for (slot, dtype), name in self.scalars.items():
            head.append(f"  const {LOCAL[dtype]} {name} = {cast_text(f'step->slots[{slot}]', float64, dtype)};")
        return head
