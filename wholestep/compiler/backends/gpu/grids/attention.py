"""Attention on a GPU: tiles and grid of our flash attention kernel, and the checks of a loaded plan's calls.

A call that a library computes instead (`Libraries.why_not`) has no tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, prod

from wholestep.compiler.backends.gpu.cost_model import AttentionCosts
from wholestep.compiler.backends.gpu.kernel_schedule import Form, GpuSchedule, sizes_in
from wholestep.compiler.backends.gpu.strides import is_affine, stride_of
from wholestep.compiler.backends.gpu.target import WIDEST_HEAD, target_of
from wholestep.compiler.ir.types import Extent, evaluate
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Operand
from wholestep.errors import PlanError

GROUP = 8  # threads that share rows, in native/attention.h


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


def tile_of(costs: AttentionCosts, call: Call, width: Extent, values: Extent) -> int:
    """Rows per tile; it determines the bits, and depends on the type and the head widths only."""
    size = call.dtype.accumulate.size
    wide = any(not isinstance(e, int) or e * size > costs.wide_head for e in (width, values))
    return costs.narrow_tile if size > 4 or wide else costs.tile


def schedule_attention(plan: Draft, kernel: Kernel) -> GpuSchedule:
    """A library call, or our grid: blocks for tiles of keys, if keys have results, then for tiles of queries."""
    call, axes, sizes = kernel.body, Axes.of(kernel), sizes_in(plan, kernel)
    assert isinstance(call, Call)
    target = target_of(plan)
    libraries, costs = target.load_libraries(), target.cost_model.attention
    if libraries.why_not(plan, kernel, sizes) is None:
        return libraries.schedule(plan, kernel)
    tile = tile_of(costs, call, kernel.axes[axes.width], kernel.axes[axes.values])
    lead = prod(evaluate(kernel.axes[a], sizes) for a in axes.lead)
    down, across = (max(1, -(-evaluate(kernel.axes[a], sizes) // tile)) for a in (axes.queries, axes.keys))
    heads = evaluate(kernel.axes[axes.group], sizes)
    blocks = lead * heads * down if makes_queries(call) else 0
    blocks += lead * across if makes_keys(call) else 0
    rows = next((rows for least, rows in costs.rows_per_group if blocks >= least and tile == costs.tile), 1)
    return GpuSchedule(Form.ATTENTION, tile // rows * GROUP, max(1, blocks), tile=(tile, rows))


def makes_keys(call: Call) -> bool:
    """Does a call compute results per key?"""
    return any(r.name in ("dk", "dv") for r in call.results)


def makes_queries(call: Call) -> bool:
    """Does a call compute results per query?"""
    return any(r.name not in ("dk", "dv") for r in call.results)


_ROW, _KEY, _VALUE = ("group", "queries", "width"), ("keys", "width"), ("keys", "values")
_OUT, _PAIR, _LSE = ("group", "queries", "values"), ("group", "queries", "keys"), ("group", "queries")
_INPUTS = {"q": _ROW, "k": _KEY, "v": _VALUE, "mask": _PAIR}
# Routine -> its operands in order, and its results, with the axes of each.  The mask is optional.
ROUTINES = {
    "attention": (_INPUTS, {"out": _OUT, "lse": _LSE}),
    "attention_grad": (
        {**_INPUTS, "lse": _LSE, "gradient": _OUT, "out": _OUT},
        {"dq": _ROW, "dk": _KEY, "dv": _VALUE, "dmask": _PAIR},
    ),
}
# Operands in the dtype of the call; all others have the accumulation dtype, or are rounded to the dtype of the call.
OPERANDS = frozenset({"q", "k", "v", "gradient"})


def check_call(plan: Draft, kernel: Kernel) -> None:
    """PlanError unless a call is one that the planner could have produced."""
    call = kernel.body
    assert isinstance(call, Call)

    def require(condition: bool, what: str) -> None:
        if not condition:
            raise PlanError(f"the plan is not sound: the call of kernel {kernel.id} {what}.")

    require(call.routine in ROUTINES, f"must name a known routine; received {call.routine!r}")
    operands, results = ROUTINES[call.routine]
    require(call.rows == tuple(range(len(kernel.axes) - 5)), "must run over its leading axes")
    axes, names = Axes.of(kernel), [o.name for o in call.operands]
    require(
        names == [n for n in operands if n in names or n != "mask"], f"must have the operands {', '.join(operands)}"
    )
    names_of_results = [r.name for r in call.results]
    require(
        bool(names_of_results)
        and len(set(names_of_results)) == len(names_of_results)
        and set(names_of_results) <= set(results),
        "must have distinct results of its routine",
    )
    require("dmask" not in names_of_results or "mask" in names, "must have a mask if it has the mask's gradient")
    group, width, values = (kernel.axes[a] for a in (axes.group, axes.width, axes.values))
    size = call.dtype.accumulate.size
    narrow = all(isinstance(e, int) and 0 < e * size <= WIDEST_HEAD for e in (width, values))
    require(
        call.dtype.is_float and isinstance(group, int) and group > 0 and narrow,
        "must have heads that the kernels support",
    )
    numbers = dict(call.numbers)
    require(list(numbers) == ["scale"] and isfinite(numbers["scale"]), "must have a finite scale")
    require(dict(call.extents).get("causal") in (0, 1), "must have a `causal` flag of 0 or 1")
    for item, declared in [
        *((o, operands[o.name]) for o in call.operands),
        *((r, results[r.name]) for r in call.results),
    ]:
        require(
            item.axes == tuple(getattr(axes, name) for name in declared),
            f"must index {item.name!r} by its declared axes",
        )
        require(_is_supported(plan, kernel, item), f"cannot read {item.name!r} in its type and layout")


def _is_supported(plan: Draft, kernel: Kernel, item: Operand) -> bool:
    call, dtype = kernel.body, plan.buffers[item.load.buffer].type.dtype
    assert isinstance(call, Call)
    wide = call.dtype.accumulate
    types = {call.dtype} if item.name in OPERANDS else {wide} if item.name == "lse" else {call.dtype, wide}
    axes, indices = {*call.rows, *item.axes}, item.load.index
    own_axes = all(a in axes for i in indices for a, _ in i.terms)
    return (
        dtype in types
        and own_axes
        and is_affine(item.load)
        and (item.name == "lse" or stride_of(item.load, item.axes[-1]) == 1)
    )
