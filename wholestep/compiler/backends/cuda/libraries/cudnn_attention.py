"""cuDNN's fused attention for half types: which calls the library computes, and their operation graphs."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from wholestep.compiler.backends.cuda.libraries.cudnn import (
    CudnnOp,
    CudnnTensor,
    Description,
    LibraryCall,
    TensorAddress,
)
from wholestep.compiler.backends.gpu.grids.attention_calls import Axes
from wholestep.compiler.backends.gpu.kernel_schedule import Form, GpuSchedule
from wholestep.compiler.backends.gpu.strides import start_of, stride_of
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Operand

STEP, MOST_WIDTH = 8, 128  # cuDNN: the head width is a multiple of the first, and at most the second
ALIGNMENT = 16  # bytes; required of every operand
SCORES_TILE = 128  # queries and keys per tile: cuDNN stores score gradients in full tiles
SPARE_WORKSPACE = 1 << 20  # additional bytes that cuDNN may need


def why_not_cudnn(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> str | None:
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
    if call.routine == "attention_grad" and kernel.axes[axes.group] != 1:
        return "cuDNN has no deterministic gradient of keys that several heads share"
    least = costs_of(plan).library.attention_flops
    if call.work < least:
        return f"it has fewer than {least // 1_000_000} million operations"
    if not all(_is_supported(plan, kernel, o, sizes) for o in (*call.operands, *call.results)):
        return "cuDNN does not support an operand's layout"
    return None


def _is_supported(plan: Draft, kernel: Kernel, item: Operand, sizes: Mapping[str, int]) -> bool:
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


def _array(plan: Draft, kernel: Kernel, item: Operand, sizes: Mapping[str, int]) -> CudnnTensor:
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


def schedule(plan: Draft, kernel: Kernel) -> GpuSchedule:
    return GpuSchedule(Form.GRAPH, workspace=_workspace(plan, kernel))


def _workspace(plan: Draft, kernel: Kernel) -> int:
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


def describe_call(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> LibraryCall:
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
