"""Attention calls on a GPU: their axes and operands, and the checks of a loaded plan's calls."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from wholestep.compiler.backends.gpu.strides import is_affine, stride_of
from wholestep.compiler.backends.gpu.target import WIDEST_HEAD
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Operand
from wholestep.errors import PlanError


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
    """Raises PlanError unless the planner could have produced this call."""
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
    size = call.dtype.size
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
