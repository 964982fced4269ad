"""Checks that `forward` computes the same when it is called again: tracing records one call, which every step repeats.

Where tracing saw Python values change, the module is called twice on its example.  If its outputs differ, it is
refused; if they do not, but a counter advanced or a generator was used, a warning says so.  A cache that the first
call fills changes once and leaves the outputs alone: nothing is said of it.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wholestep.compiler.frontend.trace import fail, record_at_line
from wholestep.compiler.ir.graph import SourceLine
from wholestep.errors import TrainingWarning, UsageError
from wholestep.interop.torch.aten.export import ExampleCall, Exported, in_mode
from wholestep.interop.torch.aten.python_state import PythonState, Value, Values, diff
from wholestep.interop.torch.aten.table import INTERRUPTED
from wholestep.interop.torch.aten.user_lines import watched_clocks, watched_lines
from wholestep.records import dataclass

_FIXES = {
    "attribute": "Keep it in a buffer that forward changes, self.register_buffer({name!r}, torch.zeros(())), and "
    "decide with torch.where; or pass it to forward as an input; draw random numbers with torch.",
    "global": "Pass it to forward as an input.",
    "generator": "Draw with torch instead: torch.where(torch.rand(()) < 0.5, a, b).",
    "clock": "Pass the number to forward as an input.",
}
_SETTLED = "The second call left it as it was: call the module once on data of yours, then import it."


@dataclass(frozen=True)
class Repeated:
    """The results of two calls of a module on the same example."""

    differs: bool  # are the outputs of the calls different?
    first: tuple[Value, ...]  # values that the first call changed
    again: tuple[Value, ...]  # values that the second call changed as well
    lines: dict[Value, SourceLine]
    tensors: tuple[Value, ...] = ()  # values that contain tensors, which nothing else depends on


def check_repeated_calls(module: Any, call: ExampleCall, programs: Sequence[Exported]) -> None:
    """Refuse a module whose second call computes something else; warn of state that may matter later."""
    warned: dict[str, None] = {}
    for exported in programs:
        if not exported.touched:
            continue
        repeated = _called_twice(module, call, exported)
        if repeated.differs:
            _refuse(module, exported.mode, repeated)
        warned |= {
            _with_line(v, repeated.lines): None
            for v in repeated.again
            if v.kind != "clock" and v not in repeated.tensors
        }
    if warned:
        warnings.warn(
            f"the forward of {type(module).__name__} changes Python values: {'; '.join(warned)}. Importing records "
            "one call, and every step repeats it: what forward decides by these values is decided once and for all. "
            "Keep them in buffers, draw with torch, or pass them to forward as inputs.",
            TrainingWarning,
            stacklevel=2,
        )


def _refuse(module: Any, mode: str, repeated: Repeated) -> None:
    blamed = repeated.again or repeated.first
    if not blamed:
        return  # outputs differ for another reason, such as uninitialised memory
    place = next((repeated.lines[v] for v in blamed if v in repeated.lines), None)
    fix = _FIXES[blamed[0].kind].format(name=blamed[0].name) if repeated.again else _SETTLED
    with record_at_line(place):
        fail(
            UsageError,
            f"{type(module).__name__} in {mode} mode gives other outputs when it is called again on the same inputs, "
            f"since forward changes or reads {'; '.join(_with_line(v, repeated.lines) for v in blamed)}. Importing "
            f"records one call, and every step would repeat it. {fix}",
        )


def _with_line(value: Value, lines: dict[Value, SourceLine]) -> str:
    return f"{value} ({lines[value]})" if value in lines else str(value)


def _called_twice(module: Any, call: ExampleCall, exported: Exported) -> Repeated:
    state = PythonState(module)
    arrays = {name: t.detach().clone() for name, t in [*module.named_parameters(), *module.named_buffers()]}
    touched = tuple(exported.touched)
    try:
        one = _outputs(module, call, exported.mode, arrays, touched, seed=0)
        two = _outputs(module, call, exported.mode, arrays, touched, seed=1)
    except INTERRUPTED:
        raise
    except Exception:  # the module can be exported but not called: only the trace can be judged
        return Repeated(False, touched, touched, {})
    finally:
        state.restore()
        _load(module, arrays)
    again = {*diff(one.values, two.values), *two.used}
    first = {*diff(state.before, one.values), *one.used}
    return Repeated(
        not _equal(one.tensors, two.tensors),
        tuple(v for v in first if v.kind != "generator" or v in one.used),
        tuple(v for v in again if v.kind != "generator" or v in two.used),
        {**one.lines, **two.lines},
        two.holding_tensors,
    )


@dataclass(frozen=True)
class _Outputs:
    tensors: list[Any]
    values: Values  # Python values after the call
    used: tuple[Value, ...]  # generators and clocks
    lines: dict[Value, SourceLine]
    holding_tensors: tuple[Value, ...]


def _outputs(
    module: Any, call: ExampleCall, mode: str, arrays: dict[str, Any], touched: Sequence[Value], seed: int
) -> _Outputs:
    """Call the module once from the same weights, with `seed` for Python's and NumPy's generators."""
    _load(module, arrays)
    args, named = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (call.args, dict(call.named)))
    with in_mode(module, mode), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(seed)
        np.random.seed(seed)
        state = PythonState(module)
        with watched_clocks() as clocks, watched_lines(lambda: state.values_of(touched)) as lines:
            results = module(*args, **named)
    after = state.values()
    generators = tuple(v for v in diff(state.before, after) if v.kind == "generator")
    read = {Value("", name, "clock"): line for name, line in clocks.items()}
    tensors = [t.clone() for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    holding = tuple(v for v in touched if _holds_tensor(module, v))
    return _Outputs(tensors, after, (*generators, *read), {**lines, **read}, holding)


def _holds_tensor(module: Any, value: Value) -> bool:
    if value.kind != "attribute":
        return False
    leaves = torch.utils._pytree.tree_leaves(vars(module.get_submodule(value.owner)).get(value.name))
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def _load(module: Any, arrays: dict[str, Any]) -> None:
    now = dict([*module.named_parameters(), *module.named_buffers()])
    with torch.no_grad():
        for name, value in arrays.items():
            if name in now and now[name].shape == value.shape:
                now[name].copy_(value)


def _equal(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    return all(x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in zip(a, b))
