"""Plan -> C source.  Names are derived from kernel ids: no string of the user ever appears in the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wholestep.compiler.backends.common.cstyle.language import extent_text
from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PANELS
from wholestep.compiler.backends.cpu.render.call import headers
from wholestep.compiler.backends.cpu.render.dedup_kernels import KernelTemplate, find_templates, may_share
from wholestep.compiler.backends.cpu.render.kernels import RENDER
from wholestep.compiler.backends.cpu.render.language import HOST, STORED, cast_text, literal
from wholestep.compiler.backends.cpu.render.writer import CWriter
from wholestep.compiler.backends.cpu.runtime.compiler import ENTRY_FILE
from wholestep.compiler.ir.types import float64
from wholestep.compiler.plan.model.kernel import Buffer, HostValue, Kernel, Layout, Loop, Plan, Space

PRELUDE = """\
{}#undef WS_EXPORT
#define WS_EXPORT __attribute__((visibility("default")))
"""

KERNELS_OF_A_FILE = 12  # gcc takes about 0.04 s for each kernel, and 0.1 s for the headers and shared code of a file
KERNELS_BESIDE_ENTRY = 6  # up to this many kernels are compiled in one file with the entry point
BARRIER = -1  # stands for a kernel's id in the profile of a barrier


@dataclass(frozen=True)
class CSource:
    """The C source of a plan, in parts."""

    prelude: str
    kernels: tuple[str, ...]  # static functions
    entry: str
    host: str  # the scalar prologue and the refresh of copies

    @property
    def text(self) -> str:
        """The program as a single file."""
        return "\n\n".join([self.prelude, *self.kernels, self.host, self.entry]) + "\n"

    @property
    def files(self) -> dict[str, str]:
        """The program as several files of a few kernels each, which are compiled in parallel.

        The entry point has its own file: it only calls kernels, so it needs none of their headers.  Long files are
        first, so that the compilers finish at about the same time.
        """
        if len(self.kernels) <= KERNELS_BESIDE_ENTRY:
            return {"plan.c": self.text}
        count = -(-len(self.kernels) // (2 * KERNELS_OF_A_FILE)) * 2  # even, for two cores
        shared = [kernel.removeprefix("static ") for kernel in self.kernels]
        heads = [kernel.partition(" {\n")[0] + ";" for kernel in shared]
        # Round robin: neighbouring kernels are similar, so each file gets an equal share of the slowly compiled
        # kernels.
        parts = {f"kernels{i}.c": shared[i::count] for i in range(count)}
        parts["kernels0.c"].append(self.host)
        texts = {name: "\n\n".join([self.prelude, *part]) + "\n" for name, part in parts.items()}
        texts[ENTRY_FILE] = "\n\n".join([prelude(["ws.h"]), *heads, self.entry]) + "\n"
        return dict(sorted(texts.items(), key=lambda item: -len(item[1])))


def render(plan: Plan, prefix: str = "ws", profile: bool = False) -> str:
    """The C source of a plan as one file."""
    return source(plan, prefix, profile).text


def source(plan: Plan, prefix: str = "ws", profile: bool = False) -> CSource:
    """The C source of a plan: its kernels, the scalar prologue, the entry point, the refresh of copies.

    Kernels that differ only in sizes share one function.  `prefix` begins every exported name, so that several plans
    can be in one file.  With `profile` every kernel and barrier records its start and end; the kernels are the same.
    """
    rendered = []
    for kernel in plan.kernels:
        writer = CWriter(plan, kernel)
        RENDER[kernel.kind](writer)
        rendered.append((kernel, writer, writer.function("@")))
    forms = find_templates(dict.fromkeys(text for kernel, _, text in rendered if may_share(kernel)))
    functions: dict[str, str] = {}  # text of a kernel without its name -> name
    texts, calls = [], {}
    for kernel, writer, text in rendered:
        form = forms.get(text, KernelTemplate(text, ()))
        if form.text not in functions:
            functions[form.text] = name = f"{prefix}_k{kernel.id}"
            texts.append(form.text.replace("@", name, 1))
        calls[kernel.id] = with_timestamps(
            call_text(kernel, functions[form.text], writer, form.sizes), kernel.id, profile
        )
    notes = '#include "profile.h"\n\n' if profile else ""
    barrier = with_timestamps("call->api->barrier();", BARRIER, profile)
    begin = prelude(["ws.h", "reduce.h", "turn.h", "math_prologue.h", *headers(plan)])
    host = "\n\n".join([prologue(plan, prefix), refresh(plan, prefix)])
    return CSource(begin, tuple(texts), notes + entry(plan, calls, prefix, barrier), host)


def prelude(included: Sequence[str]) -> str:
    """The first lines of a file: its includes."""
    return PRELUDE.format("".join(f'#include "{name}"\n' for name in included))


def call_text(kernel: Kernel, function: str, writer: CWriter, sizes: Sequence[str]) -> str:
    step = [] if kernel.loop is None else ["step"]
    buffers = [f"b{b}" for b in writer.arguments().values()]
    return f"{function}({', '.join(['call', 'lo', 'hi', *step, *buffers, *sizes])});"


def with_timestamps(statement: str, what: int, profile: bool) -> str:
    """A statement, with `profile` between time stamps that are recorded under a kernel's id."""
    if not profile:
        return statement
    return f"{{ const int64_t begun = ws_now_ns(); {statement} ws_note(id, {what}, begun); }}"


def pointer(buffer: Buffer, position: Mapping[int, int]) -> str:
    """The declaration of b<id>, the address of a buffer."""
    type = STORED[buffer.type.dtype]
    address = {
        Space.ARENA: f"(call->arena + {buffer.offset})",
        Space.WORK: f"(call->work + id*call->work_bytes + {buffer.offset})",
    }.get(buffer.space)
    if address is None:
        address = f"call->buffers[{position[buffer.id]}]"
    return f"  {type} *const b{buffer.id} = ({type} *){address}; (void)b{buffer.id};"


def entry(plan: Plan, calls: Mapping[int, str], prefix: str, barrier: str) -> str:
    """The entry point: regions of kernels with barriers between them; each thread runs the ranges that it owns."""
    lines = [f"WS_EXPORT void {prefix}_entry(const ws_call *call, int id, int threads) {{", "  long lo, hi;"]
    lines += [f"  const long d{k} = call->dims[{k}]; (void)d{k};" for k in range(len(plan.symbols))]
    position = {b.id: i for i, b in enumerate(plan.pointer_buffers())}
    lines += [pointer(b, position) for b in plan.buffers]
    region, loop = 0, None
    for k in plan.kernels:
        if k.loop != loop:
            lines += [] if loop is None else close_loop(plan.loops[loop], barrier)
        schedule = schedule_of(k)
        if schedule.region != region:
            region = schedule.region
            lines.append(f"  {barrier}  /* region {region} */")
        if k.loop != loop:
            loop = k.loop
            lines += [] if loop is None else open_loop(plan.loops[loop], plan.symbols)
        if schedule.split is None:
            lines.append(f"  lo = hi = 0; if (id == 0) {calls[k.id]}")
        else:
            extent = extent_text(k.axes[schedule.split], plan.symbols)
            lines.append(f"  ws_own({extent}, {schedule.granule}, id, threads, &lo, &hi); if (lo < hi) {calls[k.id]}")
    lines += [] if loop is None else close_loop(plan.loops[loop], barrier)
    return "\n".join([*lines, "}"])


def open_loop(loop: Loop, symbols: tuple[str, ...]) -> list[str]:
    steps = extent_text(loop.length, symbols)
    step = f"{steps} - 1 - n" if loop.reverse else "n"
    return [f"  for (long n = 0; n < {steps}; n++) {{", f"  const long step = {step}; (void)step;"]


def close_loop(loop: Loop, barrier: str) -> list[str]:
    return [*([f"  {barrier}"] if loop.barrier else []), "  }"]


def host_text(value: HostValue, symbols: tuple[str, ...]) -> str:
    if value.op == "const":
        return literal(value.const, float64)
    if value.op == "scalar":
        return f"call->scalars[{value.index}]"
    if value.op == "size":
        return f"(double)({extent_text(value.extent, symbols)})"
    args = tuple(f"h{a}" for a in value.args)
    if value.op == "cast":
        assert value.dtype is not None
        rounded = cast_text(args[0], float64, value.dtype)
        return cast_text(rounded, value.dtype, float64) if value.dtype.is_half else f"(double){rounded}"
    text = HOST[value.op].format(*args)
    if value.dtype is not None and value.dtype.is_half:
        return cast_text(cast_text(text, float64, value.dtype), value.dtype, float64)
    return f"(double)(float)({text})" if value.dtype is not None and value.dtype.name == "float32" else text


def prologue(plan: Plan, prefix: str) -> str:
    """Evaluates everything that depends only on runtime scalars and sizes, in float64, once per step."""
    lines = [f"WS_EXPORT void {prefix}_prologue(const ws_call *call) {{"]
    lines += [f"  const long d{k} = call->dims[{k}]; (void)d{k};" for k in range(len(plan.symbols))]
    for v in plan.host:
        lines.append(f"  const double h{v.id} = {host_text(v, plan.symbols)}; (void)h{v.id};")
        if v.slot is not None:
            lines.append(f"  call->derived[{v.slot}] = h{v.id};")
    return "\n".join([*lines, "  (void)call;", "}"])


def refresh(plan: Plan, prefix: str) -> str:
    """Rewrites every copy from its state after another program changed the state; one C function per kind of copy."""
    position = {b.id: i for i, b in enumerate(plan.pointer_buffers())}
    lines, functions = [], dict[str, str]()  # the text of a function without its name -> name
    for copy in plan.buffers:
        if copy.space is not Space.COPY:
            continue
        assert copy.source is not None
        state = plan.buffers[copy.source]
        name = functions.setdefault(_copy_statement(state, copy), f"{prefix}_copy{len(functions)}")
        lines += [p for p in (pointer(state, position), pointer(copy, position)) if p not in lines]
        rows, columns = state.type.shape
        assert copy.type.shape == ((columns, rows) if copy.transposed else (rows, columns)), (
            "a copy has the shape of its state"
        )
        lines.append(f"  {name}(b{copy.id}, b{state.id}, {rows}, {columns});")
    head = [f"WS_EXPORT void {prefix}_refresh(const ws_call *call) {{", "  const int id = 0; (void)id; (void)call;"]
    return "\n\n".join(
        [*(text.replace("@", name) for text, name in functions.items()), "\n".join([*head, *lines, "}"])]
    )


def _copy_statement(state: Buffer, copy: Buffer) -> str:
    """The C function that writes one copy."""
    source, to = STORED[state.type.dtype], STORED[copy.type.dtype]
    at = "i*columns + j" if state.layout == Layout.ROWS else panel_offset("i", "j", "rows")
    value = f"from[{at}]"
    if copy.type.dtype.is_half:
        value = cast_text(value, state.type.dtype, copy.type.dtype)
    return "\n".join(
        [
            f"WS_APART void @({to} *restrict to, const {source} *restrict from, long rows, long columns) {{",
            "  for (long i = 0; i < rows; i++)",
            f"    for (long j = 0; j < columns; j++) to[{copy_offset(copy)}] = {value};",
            "}",
        ]
    )


def copy_offset(copy: Buffer) -> str:
    """C expression for the offset in the copy of element (i, j) of a state of rows x columns."""
    row, column, height = ("j", "i", "columns") if copy.transposed else ("i", "j", "rows")
    if copy.layout == PANELS:
        return panel_offset(row, column, height)
    return f"({column}/{LANES})*(({height} + 1)/2*{2 * LANES}) + ({row}/2)*{2 * LANES} + {column}%{LANES}*2 + {row}%2"


def panel_offset(row: str, column: str, rows: str) -> str:
    return f"({column}/{LANES})*({rows}*{LANES}) + {row}*{LANES} + {column}%{LANES}"
