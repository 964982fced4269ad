"""The table of ops compiled: all of a group in one step, its loss multiplied by a runtime scalar."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

import wholestep as ws
from tests.ops.table import GROUPS, Array, Case
from tests.support.compilers import judged_by_an_oracle

UPSTREAM = 2.5


def typed(array: Array, dtype: str) -> Array:
    return array.astype(dtype) if array.dtype.kind == "f" else array


def weights_of(shape: tuple[int, ...]) -> Array:
    """What the result is multiplied by before it is summed: a different upstream gradient for each element."""
    return np.random.default_rng(sum(shape)).normal(size=shape)


@dataclass(frozen=True)
class Compiled:
    values: dict[str, Array]
    grads: dict[str, list[Array]]


def record(g: ws.Graph, name: str, case: Case, dtype: str, inputs: dict[str, Array]) -> ws.Tensor | None:
    """Records a case; returns its term of the loss."""
    operands = []
    for i, array in enumerate(typed(a, dtype) for a in case.arrays):
        if case.slope and array.dtype.kind == "f":
            w = g.parameter(f"{name}/{i}", array.shape, init=2.0 * array, dtype=dtype).keep()
            operands.append(0.5 * w)
        else:
            inputs[f"{name}/{i}"] = array
            operands.append(g.input(f"{name}/{i}", array.shape, array.dtype))
    out = case.ours(*operands)
    out.keep(name)
    return (out * weights_of(out.shape).astype(dtype)).sum() if case.slope else None


def group_graph(group: str, dtype: str) -> tuple[ws.Graph, dict[str, Array]]:
    g, inputs = ws.Graph(), {}
    terms = [record(g, name, case, dtype, inputs) for name, case in GROUPS[group].items()]
    total = functools.reduce(ws.Tensor.__add__, [t for t in terms if t is not None])
    g.set_outputs({"loss": total * g.scalar("upstream", UPSTREAM)})
    return g, inputs


@functools.cache
def group_session(group: str, dtype: str) -> tuple[ws.Session, dict[str, Array]]:
    g, inputs = group_graph(group, dtype)
    return ws.build_session(g, optimizer=ws.SGD(lr=0.0), options=judged_by_an_oracle(dtype)), inputs


@functools.cache
def compiled(group: str, dtype: str, upstream: float = UPSTREAM) -> Compiled:
    """Values and gradients of all cases of a group."""
    session, inputs = group_session(group, dtype)
    session.scalars["upstream"] = upstream
    out = session.step(inputs).outputs
    grads = {
        name: [out[f"{name}/{i}.grad"] for i in range(len(case.arrays)) if f"{name}/{i}.grad" in out]
        for name, case in GROUPS[group].items()
    }
    return Compiled({name: out[name] for name in GROUPS[group]}, grads)
