"""Gradients of gradients of every op, compiled, against torch: loss = Σ u·f(x) + 0.7·Σ (d Σ u·f(x) / dx)²."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import wholestep as ws
from tests.ops.compiled_ops import weights_of
from tests.ops.table import GROUPS, Array, Case
from tests.support.compilers import quick
from tests.support.oracles import assert_close

# Products have the longest programs, and their second-order gradients are again first-order products.
LONG = ("contraction", "reduce", "binary", "windows")


def cases(group: str) -> dict[str, Case]:
    return {name: case for name, case in GROUPS[group].items() if case.slope}


def penalised(g: ws.Graph, name: str, case: Case, inputs: dict[str, Array]) -> Any:
    operands, params = [], []
    for i, array in enumerate(case.arrays):
        if array.dtype.kind == "f":
            params.append(g.parameter(f"{name}/{i}", array.shape, init=2.0 * array, dtype="float64").keep())
            operands.append(0.5 * params[-1])
        else:
            inputs[f"{name}/{i}"] = array
            operands.append(g.input(f"{name}/{i}", array.shape, array.dtype))
    out = case.ours(*operands)
    loss = (out * weights_of(out.shape)).sum()
    return loss + sum((d * d * 0.7).sum() for d in ws.gradients(loss, params))


def reference(case: Case) -> list[Array]:
    floats = [a.dtype.kind == "f" for a in case.arrays]
    leaves = [torch.tensor(2.0 * a if f else a, requires_grad=f) for a, f in zip(case.arrays, floats, strict=True)]
    out = case.theirs(*(0.5 * t if t.requires_grad else t for t in leaves))
    loss = (out * torch.tensor(weights_of(tuple(out.shape)))).sum()
    params = [t for t in leaves if t.requires_grad]
    slopes = torch.autograd.grad(loss, params, create_graph=True)
    (loss + sum((d * d * 0.7).sum() for d in slopes)).backward()
    return [t.grad.numpy() for t in params]


@pytest.mark.parametrize("group", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in GROUPS])
def test_second_order_equals_torch(group: str) -> None:
    g, inputs = ws.Graph(), {}
    g.set_outputs({"loss": sum(penalised(g, name, case, inputs) for name, case in cases(group).items())})
    out = ws.build_session(g, optimizer=ws.SGD(lr=0.0), options=quick()).step(inputs).outputs
    for name, case in cases(group).items():
        ours = [out[f"{name}/{i}.grad"] for i in range(len(case.arrays)) if f"{name}/{i}.grad" in out]
        for mine, theirs in zip(ours, reference(case), strict=True):
            assert_close(mine, theirs, "float64", scale=1.0)
