"""Attention on a GPU: cuDNN's fused attention for half types, else our flash attention kernel; selection and grids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from wholestep.compiler.backends.cuda.libraries.cudnn import CudnnOp, CudnnTensor, Description
from wholestep.compiler.backends.cuda.libraries.cudnn_graphs import LibraryCall, TensorAddress
from wholestep.compiler.backends.cuda.libraries.gemm_library import start_of, stride_of
from wholestep.compiler.backends.gpu.kernel_schedule import ATTENTION, GRAPH, CudaSchedule
from wholestep.compiler.ir.types import Extent, evaluate
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Kernel, Operand, Plan

TILE, NARROW_TILE = 32, 16  # rows per block; the second for wide heads and float64, which need more shared memory
GROUP = 8  # threads that share rows, in native/attention.h
OWN = ((512, 4), (200, 2))  # (smallest number of blocks, rows per group of threads)
WIDE_HEAD = 256  # bytes per row: wider heads use NARROW_TILE
WIDEST_HEAD = 512  # bytes per row that our kernel supports
LEAST_WORK = 16_000_000  # FLOPs: cuDNN's attention is faster than ours for at least this many
STEP, MOST_WIDTH = 8, 128  # cuDNN: the head width is a multiple of the first, and at most the second
ALIGNMENT = 16  # bytes, of every operand
SCORES_TILE = 128  # queries and keys: cuDNN stores score gradients in full tiles,
SPARE_WORKSPACE = 1 << 20  # and may need this many bytes more


@dataclass(frozen=True)
class Axes:
    """Axis numbers of an attention call."""

    lead: tuple[int, ...]
    group: int
    queries: int
    keys: int
    width: int
    values: int

    @staticmethod
    def of(kernel: Kernel) -> Axes:
        assert isinstance(kernel.body, Call)
        rows = kernel.body.rows
        return Axes(rows, *range(len(rows), len(rows) + 5))


def tile_of(call: Call, width: Extent, values: Extent) -> int:
    """Rows per tile; it determines the bits, and depends on the type and the head widths only."""
    size = call.dtype.accumulate.size
    wide = any(not isinstance(e, int) or e * size > WIDE_HEAD for e in (width, values))
    return NARROW_TILE if size > 4 or wide else TILE


def schedule_attention(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> CudaSchedule:
    """A cuDNN graph, or our grid: blocks for tiles of keys, if they have results, then for tiles of queries."""
    call, axes = kernel.body, Axes.of(kernel)
    assert isinstance(call, Call)
    if why_not_cudnn(plan, kernel, sizes) is None:
        return CudaSchedule(GRAPH, workspace=_workspace(plan, kernel))
    tile = tile_of(call, kernel.axes[axes.width], kernel.axes[axes.values])
    lead = prod(evaluate(kernel.axes[a], sizes) for a in axes.lead)
    down, across = (max(1, -(-evaluate(kernel.axes[a], sizes) // tile)) for a in (axes.queries, axes.keys))
    heads = evaluate(kernel.axes[axes.group], sizes)
    blocks = lead * heads * down if makes_queries(call) else 0
    blocks += lead * across if makes_keys(call) else 0
    rows = next((rows for least, rows in OWN if blocks >= least and tile == TILE), 1)
    return CudaSchedule(ATTENTION, tile // rows * GROUP, max(1, blocks), tile=(tile, rows))


def makes_keys(call: Call) -> bool:
    """Does a call compute results per key?"""
    return any(r.name in ("dk", "dv") for r in call.results)


def makes_queries(call: Call) -> bool:
    """Does a call compute results per query?"""
    return any(r.name not in ("dk", "dv") for r in call.results)


def why_not_cudnn(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> str | None:
    """Why an attention call is not computed by cuDNN; None if it is."""
    call, axes = kernel.body, Axes.of(kernel)
    assert isinstance(call, Call)
    width, values = (kernel.axes[a] for a in (axes.width, axes.values))
    supported_results = {"attention": ({"out"}, {"out", "lse"}), "attention_grad": ({"dq", "dk", "dv"},)}[call.routine]
    if not call.dtype.is_half:
        return f"cuDNN does not support {call.dtype}"
    if width != values or not isinstance(width, int) or width % STEP or width > MOST_WIDTH:
        return (
            f"cuDNN needs a head width that is a multiple of {STEP} and at most {MOST_WIDTH}, not {width} and {values}"
        )
    if any(o.name == "mask" for o in call.operands):
        return "it has a mask"
    if kernel.loop is not None or len(axes.lead) > 2 or {r.name for r in call.results} not in supported_results:
        return "it is in a loop, or has unsupported axes or results"
    if call.work < LEAST_WORK:
        return f"it has fewer than {LEAST_WORK // 1_000_000} million operations"
    if not all(_is_supported(plan, kernel, o, sizes) for o in (*call.operands, *call.results)):
        return "cuDNN does not support an operand's layout"
    return None


def _is_supported(plan: Plan, kernel: Kernel, item: Operand, sizes: Mapping[str, int]) -> bool:
    """Does an operand have the library's type, and rows aligned to 16 bytes?"""
    call, dtype = kernel.body, plan.buffers[item.load.buffer].type.dtype
    assert isinstance(call, Call)
    if item.name == "lse":
        return dtype == call.dtype.accumulate
    array, place = _array(plan, kernel, item, sizes), start_of(item.load)
    aligned = [evaluate(place, sizes), *array.steps[:-1]]
    has_strides = all(step > 0 or extent == 1 for step, extent in zip(array.steps, array.shape, strict=True))
    return (
        dtype == call.dtype
        and array.steps[-1] == 1
        and has_strides
        and all(a * dtype.size % ALIGNMENT == 0 for a in aligned)
    )


def _array(plan: Plan, kernel: Kernel, item: Operand, sizes: Mapping[str, int]) -> CudnnTensor:
    """An operand in the library's axis order: sequences, heads, rows, columns."""
    axes = Axes.of(kernel)
    outer: list[int | None] = [None, None, *axes.lead][-2:]
    queried = axes.group in item.axes
    rows = item.axes[1:] if queried else item.axes
    shape = [1 if a is None else evaluate(kernel.axes[a], sizes) for a in (*outer, *rows)]
    steps = [0 if a is None else evaluate(stride_of(item.load, a), sizes) for a in (*outer, *rows)]
    group = evaluate(kernel.axes[axes.group], sizes)
    if queried and group > 1:
        shape[1] *= group
        steps[1] = evaluate(stride_of(item.load, axes.group), sizes)
    if item.name == "lse":
        shape, steps = [*shape, 1], [*steps, 1]
    for i in (1, 0):  # the library needs a stride even for an axis of one element
        steps[i] = steps[i] or shape[i + 1] * steps[i + 1]
    return CudnnTensor(item.name, tuple(shape), tuple(steps), plan.buffers[item.load.buffer].type.dtype)


def _workspace(plan: Plan, kernel: Kernel) -> int:
    """Workspace bytes; the deterministic backward pass stores the gradients of all scores."""
    call, axes = kernel.body, Axes.of(kernel)
    assert isinstance(call, Call)
    if call.routine == "attention":
        return SPARE_WORKSPACE
    heads = prod(evaluate(kernel.axes[a], plan.sizes) for a in (*axes.lead, axes.group))
    extents = (evaluate(kernel.axes[a], plan.sizes) for a in (axes.queries, axes.keys))
    queries, keys = (-(-extent // SCORES_TILE) * SCORES_TILE for extent in extents)
    return heads * queries * (keys * call.dtype.size + call.dtype.accumulate.size) + SPARE_WORKSPACE


FORWARD_NAMES = {"q": "q", "k": "k", "v": "v"}  # argument of the library -> our operand
BACKWARD_NAMES = {**FORWARD_NAMES, "o": "out", "dO": "gradient", "stats": "lse"}


def describe_call(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> LibraryCall:
    """The cuDNN call of an attention at these sizes."""
    call = kernel.body
    assert isinstance(call, Call)
    options_of_both = (
        ("attn_scale", dict(call.numbers)["scale"]),
        ("use_causal_mask", bool(dict(call.extents)["causal"])),
    )
    results = {r.name for r in call.results}
    if call.routine == "attention":
        computed = tuple(n for n in ("out", "lse") if n in results)
        op = CudnnOp(
            "sdpa", tuple(FORWARD_NAMES.items()), computed, (*options_of_both, ("generate_stats", "lse" in results))
        )
    else:
        options = (*options_of_both, ("use_deterministic_algorithm", True))
        op = CudnnOp("sdpa_backward", tuple(BACKWARD_NAMES.items()), ("dq", "dk", "dv"), options)
    items = (*call.operands, *call.results)
    arrays = tuple(_array(plan, kernel, item, sizes) for item in items)
    addresses = tuple(
        TensorAddress(i.name, i.load.buffer, evaluate(start_of(i.load), sizes) * a.dtype.size)
        for i, a in zip(items, arrays, strict=True)
    )
    # An option selects the deterministic algorithm; numerical notes do not cover it.
    return LibraryCall(Description((op,), arrays, _workspace(plan, kernel), without=()), addresses)


def notes_of(plan: Plan) -> tuple[str, ...]:
    """Report notes: what computes the attention of a plan, and why."""
    counts: dict[str, int] = {}
    for kernel in plan.kernels:
        if isinstance(kernel.body, Call):
            reason = why_not_cudnn(plan, kernel, plan.sizes)
            kind = "attention" if kernel.body.routine == "attention" else "attention backward"
            implementation = (
                f"{kind} by cuDNN, with a deterministic algorithm"
                if reason is None
                else f"{kind} by our flash attention kernel: {reason}"
            )
            counts[implementation] = counts.get(implementation, 0) + 1
    return tuple(f"{count} x {implementation}" for implementation, count in counts.items())
