"""Attention on a GPU: a graph of cuDNN for half numbers, else a kernel of ours.  Who computes what is decided here."""

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

TILE, NARROW_TILE = 32, 16  # rows of a block; of wide heads and of float64, for whom shared memory is small
GROUP = 8  # threads that share rows, in native/attention.h,
OWN = ((512, 4), (200, 2))  # and how many rows they share where there are so many blocks
WIDE_HEAD = 256  # bytes of a row from which on a head is wide
WIDEST_HEAD = 512  # bytes of a row that our kernel takes
LEAST_WORK = 16_000_000  # floating-point operations from which on a library's attention beats ours
STEP, MOST_WIDTH = 8, 128  # of cuDNN: heads have a multiple of it, and at most so many columns
ALIGNMENT = 16  # bytes, of every operand
SCORES_TILE = 128  # queries and keys: cuDNN keeps gradients of scores in whole tiles,
SPARE_WORKSPACE = 1 << 20  # and may want a little more


@dataclass(frozen=True)
class Axes:
    """The axes of a call of attention, by number."""

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
    """The rows of a tile; bits depend on it, and it on the type and the widths alone."""
    size = call.dtype.accumulate.size
    wide = any(not isinstance(e, int) or e * size > WIDE_HEAD for e in (width, values))
    return NARROW_TILE if size > 4 or wide else TILE


def schedule_attention(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> CudaSchedule:
    """A graph of the library, or a grid of ours: blocks for tiles of keys, where they have results, and of queries."""
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
    own = next((own for least, own in OWN if blocks >= least and tile == TILE), 1)
    return CudaSchedule(ATTENTION, tile // own * GROUP, max(1, blocks), tile=(tile, own))


def makes_keys(call: Call) -> bool:
    """Has a call results for each key?"""
    return any(r.name in ("dk", "dv") for r in call.results)


def makes_queries(call: Call) -> bool:
    """Has a call results for each query?"""
    return any(r.name not in ("dk", "dv") for r in call.results)


def why_not_cudnn(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> str | None:
    """Why an attention is not the library's; None where it is."""
    call, axes = kernel.body, Axes.of(kernel)
    assert isinstance(call, Call)
    width, values = (kernel.axes[a] for a in (axes.width, axes.values))
    wanted = {"attention": ({"out"}, {"out", "lse"}), "attention_grad": ({"dq", "dk", "dv"},)}[call.routine]
    if not call.dtype.is_half:
        return f"cuDNN has none in {call.dtype}"
    if width != values or not isinstance(width, int) or width % STEP or width > MOST_WIDTH:
        return f"cuDNN's heads have a multiple of {STEP} columns, at most {MOST_WIDTH}, not {width} and {values}"
    if any(o.name == "mask" for o in call.operands):
        return "it has a mask"
    if kernel.loop is not None or len(axes.lead) > 2 or {r.name for r in call.results} not in wanted:
        return "it is one of a loop, or has other axes or results"
    if call.work < LEAST_WORK:
        return f"it has fewer than {LEAST_WORK // 1_000_000} million operations"
    if not all(_is_taken(plan, kernel, o, sizes) for o in (*call.operands, *call.results)):
        return "an operand does not lie as cuDNN reads it"
    return None


def _is_taken(plan: Plan, kernel: Kernel, item: Operand, sizes: Mapping[str, int]) -> bool:
    """Is an operand of the type that the library has, with rows that begin at multiples of 16 bytes?"""
    call, dtype = kernel.body, plan.buffers[item.load.buffer].type.dtype
    assert isinstance(call, Call)
    if item.name == "lse":
        return dtype == call.dtype.accumulate
    array, place = _array(plan, kernel, item, sizes), start_of(item.load)
    aligned = [evaluate(place, sizes), *array.steps[:-1]]
    moves = all(step > 0 or extent == 1 for step, extent in zip(array.steps, array.shape, strict=True))
    return (
        dtype == call.dtype and array.steps[-1] == 1 and moves and all(a * dtype.size % ALIGNMENT == 0 for a in aligned)
    )


def _array(plan: Plan, kernel: Kernel, item: Operand, sizes: Mapping[str, int]) -> CudnnTensor:
    """An operand as the library has it: sequences, heads, rows, columns."""
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
    for i in (1, 0):  # an axis of one element has a step nevertheless
        steps[i] = steps[i] or shape[i + 1] * steps[i + 1]
    return CudnnTensor(item.name, tuple(shape), tuple(steps), plan.buffers[item.load.buffer].type.dtype)


def _workspace(plan: Plan, kernel: Kernel) -> int:
    """Backward the gradients of all scores are kept, so that what is added to what does not depend on who is first."""
    call, axes = kernel.body, Axes.of(kernel)
    assert isinstance(call, Call)
    if call.routine == "attention":
        return SPARE_WORKSPACE
    heads = prod(evaluate(kernel.axes[a], plan.sizes) for a in (*axes.lead, axes.group))
    extents = (evaluate(kernel.axes[a], plan.sizes) for a in (axes.queries, axes.keys))
    queries, keys = (-(-extent // SCORES_TILE) * SCORES_TILE for extent in extents)
    return heads * queries * (keys * call.dtype.size + call.dtype.accumulate.size) + SPARE_WORKSPACE


FORWARD_NAMES = {"q": "q", "k": "k", "v": "v"}  # argument of the library -> operand
BACKWARD_NAMES = {**FORWARD_NAMES, "o": "out", "dO": "gradient", "stats": "lse"}


def describe_call(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> LibraryCall:
    """What cuDNN is told of an attention in a call of these sizes."""
    call = kernel.body
    assert isinstance(call, Call)
    numbers = (("attn_scale", dict(call.numbers)["scale"]), ("use_causal_mask", bool(dict(call.extents)["causal"])))
    results = {r.name for r in call.results}
    if call.routine == "attention":
        made = tuple(n for n in ("out", "lse") if n in results)
        op = CudnnOp("sdpa", tuple(FORWARD_NAMES.items()), made, (*numbers, ("generate_stats", "lse" in results)))
    else:
        options = (*numbers, ("use_deterministic_algorithm", True))
        op = CudnnOp("sdpa_backward", tuple(BACKWARD_NAMES.items()), ("dq", "dk", "dv"), options)
    items = (*call.operands, *call.results)
    arrays = tuple(_array(plan, kernel, item, sizes) for item in items)
    places = tuple(
        TensorAddress(i.name, i.load.buffer, evaluate(start_of(i.load), sizes) * a.dtype.size)
        for i, a in zip(items, arrays, strict=True)
    )
    # Which algorithm adds in order is said by an option; the notes are not about it.
    return LibraryCall(Description((op,), arrays, _workspace(plan, kernel), without=()), places)


def notes_of(plan: Plan) -> tuple[str, ...]:
    """Who computes the attention of a plan, and why, for people."""
    found: dict[str, int] = {}
    for kernel in plan.kernels:
        if isinstance(kernel.body, Call):
            why = why_not_cudnn(plan, kernel, plan.sizes)
            kind = "attention" if kernel.body.routine == "attention" else "gradients of attention"
            who = f"{kind} by cuDNN, adding in a fixed order" if why is None else f"{kind} by a kernel of ours: {why}"
            found[who] = found.get(who, 0) + 1
    return tuple(f"{count} x {who}" for who, count in found.items())
