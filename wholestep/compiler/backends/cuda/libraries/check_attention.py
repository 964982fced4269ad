"""Does attention on a GPU get what its kernels and the library take?  Native code follows a plan's numbers blindly."""

from __future__ import annotations

from math import isfinite

from wholestep.compiler.backends.cuda.libraries.attention import WIDEST_HEAD, Axes
from wholestep.compiler.backends.cuda.libraries.gemm_library import stride_of
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Kernel, Operand, Plan
from wholestep.errors import PlanError

_ROW, _KEY, _VALUE = ("group", "queries", "width"), ("keys", "width"), ("keys", "values")
_OUT, _PAIR, _LSE = ("group", "queries", "values"), ("group", "queries", "keys"), ("group", "queries")
_INPUTS = {"q": _ROW, "k": _KEY, "v": _VALUE, "mask": _PAIR}
# Routine -> what it is given, in order, and what it makes, with the axes of each.  A mask may be left out.
ROUTINES = {
    "attention": (_INPUTS, {"out": _OUT, "lse": _LSE}),
    "attention_grad": (
        {**_INPUTS, "lse": _LSE, "gradient": _OUT, "out": _OUT},
        {"dq": _ROW, "dk": _KEY, "dv": _VALUE, "dmask": _PAIR},
    ),
}
OPERANDS = frozenset({"q", "k", "v", "gradient"})  # in the type of the call; all else accumulates, or is rounded to it


def check_call(plan: Plan, kernel: Kernel) -> None:
    """PlanError unless a call is one that we could have planned."""
    call = kernel.body
    assert isinstance(call, Call)

    def need(holds: bool, what: str) -> None:
        if not holds:
            raise PlanError(f"the plan is not sound: the call of kernel {kernel.id} {what}.")

    need(call.routine in ROUTINES, f"is of a routine; received {call.routine!r}")
    given, made = ROUTINES[call.routine]
    need(call.rows == tuple(range(len(kernel.axes) - 5)), "runs over its rows")
    axes, names = Axes.of(kernel), [o.name for o in call.operands]
    need(names == [n for n in given if n in names or n != "mask"], f"has the operands {', '.join(given)}")
    results = [r.name for r in call.results]
    need(bool(results) and len(set(results)) == len(results) and set(results) <= set(made), "has results of its own")
    need("dmask" not in results or "mask" in names, "has the gradient of a mask that it has")
    group, width, values = (kernel.axes[a] for a in (axes.group, axes.width, axes.values))
    size = call.dtype.accumulate.size
    narrow = all(isinstance(e, int) and 0 < e * size <= WIDEST_HEAD for e in (width, values))
    need(call.dtype.is_float and isinstance(group, int) and group > 0 and narrow, "has heads that a kernel takes")
    numbers = dict(call.numbers)
    need(list(numbers) == ["scale"] and isfinite(numbers["scale"]), "has a scale")
    need(dict(call.extents).get("causal") in (0, 1), "says whether it is causal")
    for item, declared in [*((o, given[o.name]) for o in call.operands), *((r, made[r.name]) for r in call.results)]:
        need(item.axes == tuple(getattr(axes, name) for name in declared), f"takes {item.name!r} along its axes")
        need(_is_taken(plan, kernel, item), f"takes {item.name!r} as it lies")


def _is_taken(plan: Plan, kernel: Kernel, item: Operand) -> bool:
    call, dtype = kernel.body, plan.buffers[item.load.buffer].type.dtype
    assert isinstance(call, Call)
    wide = call.dtype.accumulate
    types = {call.dtype} if item.name in OPERANDS else {wide} if item.name == "lse" else {call.dtype, wide}
    known, indices = {*call.rows, *item.axes}, item.load.index
    plain = all(i.value is None and i.over == 1 and all(a in known for a, _ in i.terms) for i in indices)
    return dtype in types and plain and (item.name == "lse" or stride_of(item.load, item.axes[-1]) == 1)
