"""Every op through the compiled step against torch: values, and gradients mid-graph with an upstream other than 1."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from op_cases import GROUPS, Array, Case
from oracles import assert_close
from recording import initial_state

import wholestep as ws
from wholestep.compiler.ir.graph import Graph, toposort
from wholestep.compiler.ir.interpret import interpret
from wholestep.compiler.ir.ops import OPS
from wholestep.optim.build import train_graph

DTYPES = ("float32", "float64")
UPSTREAM = 2.5
CASES = [(group, name) for group, rows in GROUPS.items() for name in rows]


def typed(array: Array, dtype: str) -> Array:
    return array.astype(dtype) if array.dtype.kind == "f" else array


def weights_of(shape: tuple[int, ...]) -> Array:
    """What the result is multiplied by before it is summed: a different upstream gradient for each element."""
    return np.random.default_rng(sum(shape)).normal(size=shape)


# -- ours: all cases of a group in one compiled step -----------------------------------------------------------------


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
    return (out * weights_of(out.shape).astype(dtype)).sum() * UPSTREAM if case.slope else None


def group_graph(group: str, dtype: str) -> tuple[ws.Graph, dict[str, Array]]:
    g, inputs = ws.Graph(), {}
    terms = [record(g, name, case, dtype, inputs) for name, case in GROUPS[group].items()]
    g.set_outputs({"loss": functools.reduce(ws.Tensor.__add__, [t for t in terms if t is not None])})
    return g, inputs


@functools.cache
def compiled(group: str, dtype: str) -> Compiled:
    g, inputs = group_graph(group, dtype)
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.0))
    out = session.step(inputs).outputs
    grads = {
        name: [out[f"{name}/{i}.grad"] for i in range(len(case.arrays)) if f"{name}/{i}.grad" in out]
        for name, case in GROUPS[group].items()
    }
    return Compiled({name: out[name] for name in GROUPS[group]}, grads)


# -- torch, in float64 on the same numbers ---------------------------------------------------------------------------


def reference(case: Case, dtype: str) -> tuple[Array, list[Array]]:
    leaves = [2.0 * typed(a, dtype).astype("float64") if a.dtype.kind == "f" else a for a in case.arrays]
    tensors = [torch.tensor(a, requires_grad=case.slope and a.dtype.kind == "f") for a in leaves]
    out = case.theirs(*(0.5 * t if t.is_floating_point() else t for t in tensors))
    if not case.slope:
        return out.numpy(), []
    upstream = torch.tensor(weights_of(tuple(out.shape)).astype(dtype).astype("float64"))
    ((out * upstream).sum() * UPSTREAM).backward()
    return out.detach().numpy(), [t.grad.numpy() for t in tensors if t.requires_grad]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "name"), CASES, ids=[name for _, name in CASES])
def test_value_and_gradients_equal_torch(group: str, name: str, dtype: str) -> None:
    ours = compiled(group, dtype)
    value, grads = reference(GROUPS[group][name], dtype)
    exact = "exact" if ours.values[name].dtype.kind in "iub" else dtype
    assert_close(ours.values[name], value, exact)
    assert len(ours.grads[name]) == len(grads)
    for mine, theirs in zip(ours.grads[name], grads, strict=True):
        assert mine.dtype == dtype
        assert_close(mine, theirs, dtype)
