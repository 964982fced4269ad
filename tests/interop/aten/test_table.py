"""Rows of the table against torch: values and gradients of a function each, many in one exported module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.interop.aten import rare_cases
from tests.interop.aten.cases import FAMILIES as COMMON
from tests.interop.aten.cases import Case
from wholestep.compiler.frontend.graph import Graph, record_into
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.nn.module.trace import trace_of


class Many(torch.nn.Module):
    """Each case over parameters of its own, so that the gradients of one are those of no other."""

    def __init__(self, cases: dict[str, Case]) -> None:
        super().__init__()
        self.cases = cases
        for i, (_, inputs) in enumerate(cases.values()):
            for j, value in enumerate(inputs):
                self.register_parameter(f"p{i}_{j}", torch.nn.Parameter(value.clone()))

    def forward(self, unit: Any) -> tuple[Any, ...]:
        results = []
        for i, (function, inputs) in enumerate(self.cases.values()):
            own = [getattr(self, f"p{i}_{j}") * unit for j in range(len(inputs))]
            results.append(function(*own))
        return tuple(results)


FAMILIES = {**COMMON, **rare_cases.FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_have_torch_s_values_and_gradients(family: str) -> None:
    cases = FAMILIES[family]
    module = Many(cases)
    unit = torch.ones((), dtype=torch.float64)
    expected = module(unit)
    weights = [torch.linspace(0.5, 1.5, e.numel(), dtype=torch.float64).reshape(e.shape) for e in expected]
    sum((w * e).sum() for w, e in zip(weights, expected)).backward()

    found, slopes = _computed(ws.from_torch(module, (unit,), batch=None, mode="train"), [w.numpy() for w in weights])

    for i, (name, (_, inputs)) in enumerate(cases.items()):
        np.testing.assert_allclose(found[i], expected[i].detach().numpy(), 1e-9, 1e-9, err_msg=name)
        for j in range(len(inputs)):
            theirs = getattr(module, f"p{i}_{j}").grad
            ours = slopes.get(f"p{i}_{j}", np.zeros(inputs[j].shape))
            theirs = torch.zeros(inputs[j].shape, dtype=torch.float64) if theirs is None else theirs
            np.testing.assert_allclose(ours, theirs.numpy(), 1e-8, 1e-8, err_msg=f"gradient of {name}, argument {j}")


def _computed(net: Any, weights: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    with record_into(Graph()) as graph:
        trace_of(graph, net)
        outputs = net(graph.input("unit", (), "float64"))
        total = sum((o.astype("float64") * w).sum() for o, w in zip(outputs, weights))
        params = graph.parameters
        slopes = ws.gradients(total, params)
        graph.set_outputs({**{f"y{i}": o for i, o in enumerate(outputs)}, **{f"d {n}": g for n, g in slopes.items()}})
    whole = expand_gradients(graph.to_ir())
    state = {name: np.array(value) for name, value in net.state_dict().items() if name in whole.states()}
    result = interpret(whole, inputs={"unit": np.ones(())}, state=state).outputs
    return [result[f"y{i}"] for i in range(len(outputs))], {n: result[f"d {n}"] for n in params}
