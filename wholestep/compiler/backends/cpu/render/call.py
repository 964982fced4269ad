"""C source of calls to native routines; known strides and extents are literals, so that gcc specializes the code."""

from __future__ import annotations

from contextlib import ExitStack

from wholestep.compiler.backends.cpu.kernel_schedule import queries_of
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES
from wholestep.compiler.backends.cpu.render.address import axis_stride
from wholestep.compiler.backends.cpu.render.language import SUFFIX
from wholestep.compiler.backends.cpu.render.prefetch import prefetch_next_call
from wholestep.compiler.backends.cpu.render.writer import CWriter
from wholestep.compiler.ir.attrs import DATA, MODEL
from wholestep.compiler.ir.types import evaluate, float64, symbols_of
from wholestep.compiler.plan.model.bodies import Call, Exchange, Window
from wholestep.compiler.plan.model.kernel import Operand, Plan

# The header that defines each routine.
HEADERS = {"attention": "attention.h", "attention_grad": "attention.h"}
GROUP_DTYPES = {"float32": "WS_GROUP_F32", "float64": "WS_GROUP_F64", "int32": "WS_GROUP_I32", "int64": "WS_GROUP_I64"}
CALLS = {DATA: "ws_exchange", MODEL: "ws_exchange_model"}  # mesh axis of the collective -> C function


def headers(plan: Plan) -> list[str]:
    """The native headers that the calls and casts of a plan need."""
    windows = {_window_header(plan, k.body) for k in plan.kernels if isinstance(k.body, Window)}
    half = {"pair.h"} if has_half(plan) else set[str]()
    group = {"group.h"} if any(isinstance(k.body, Exchange) for k in plan.kernels) else set[str]()
    return sorted(windows | half | group | {HEADERS[k.body.routine] for k in plan.kernels if isinstance(k.body, Call)})


def _window_header(plan: Plan, body: Window) -> str:
    double = any(plan.buffers[o.load.buffer].type.dtype == float64 for o in (*body.operands, *body.results))
    return "conv_f64.h" if double else "conv.h"


def has_half(plan: Plan) -> bool:
    """Does a plan store or compute half-precision elements?"""
    computed = (i.dtype for k in plan.kernels for level in k.levels for i in (*level.row, *level.body))
    hosted = (value.dtype for value in plan.host if value.dtype is not None)
    return any(d.is_half for d in (*(b.type.dtype for b in plan.buffers), *computed, *hosted))


def render_call(w: CWriter) -> None:
    k, call = w.kernel, w.kernel.body
    assert isinstance(call, Call)
    suffix = SUFFIX[call.dtype]
    with ExitStack() as stack:
        for axis in k.rows:
            stack.enter_context(w.loop(f"i{axis}", *w.span(axis)))
        outside = dict(w.axes)
        w.axes.update({a: "0" for a in range(len(k.axes)) if a not in k.rows})
        prefetches = prefetch_next_call(w, (*call.operands, *call.results)) if w.schedule.prefetch else []
        w.emit(f"const ws_{call.routine}_{suffix} arguments = {{")
        for item in (*call.operands, *call.results):
            w.emit(f"  .{item.name} = {view_text(w, item)},")
        for name, extent in call.extents:
            w.emit(f"  .{name} = {w.extent(extent)},")
        w.emit(f"  .block = {queries_of(k).block},")
        for name, number in call.numbers:
            w.emit(f"  .{name} = {number.hex()},")
        w.emit("  .work = work,")
        if prefetches:
            w.emit(f"  .ahead = ahead, .aheads = {len(prefetches)},")
        w.emit("};")
        w.emit(f"ws_call_{call.routine}_{suffix}(call->api, &arguments);")
        w.axes.update(outside)


def render_exchange(w: CWriter) -> None:
    """A collective over complete tensors; one thread calls the process group."""
    body, symbols = w.kernel.body, {"all_reduce", "reduce_scatter", "all_gather", "broadcast"}
    assert isinstance(body, Exchange)
    assert body.collective in symbols
    w.emit("const ws_share shares[] = {")
    for source, to in zip(body.operands, body.results, strict=True):
        count = min((source.shape[0], to.shape[0]), key=lambda e: evaluate(e, dict.fromkeys(symbols_of([e]), 1)))
        w.emit(f"  {{{w.params[source.buffer]}, {w.params[to.buffer]}, {w.extent(count)}}},")
    w.emit("};")
    dtype = GROUP_DTYPES[body.dtype.name]
    call = CALLS[body.axis]
    w.emit(f"{call}(call->group, WS_{body.collective.upper()}, shares, {len(body.operands)}, {dtype});")


def view_text(w: CWriter, item: Operand) -> str:
    """{address, {strides along the routine's axes}, stride from one panel of 16 columns to the next}."""
    buffer = w.plan.buffers[item.load.buffer]
    steps = [axis_stride(item.load, axis, buffer) for axis in item.axes]
    panel = steps[-1][0] * LANES
    if steps[-1][1]:
        panel = item.load.shape[-2] * LANES
    return f"{{{w.address(item.load)}, {{{', '.join(w.extent(s) for s, _ in steps)}}}, {w.extent(panel)}}}"
