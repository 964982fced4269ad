"""Concatenations and pads read 16 bytes at a time, where no vector crosses the border of a part."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import TARGET
from tests.compiler.backends.cuda.kernels.test_graphs import CAPACITY, check
from wholestep.compiler.backends.gpu.efficiency.estimate import estimates
from wholestep.compiler.backends.gpu.render.source import render
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.options import CompileOptions
from wholestep.steps.train import train_graph

Parts = Sequence[ws.Tensor]


def graph_of(widths: Sequence[int], dtype: str, combine: Callable[[Parts], ws.Tensor]) -> IRGraph:
    g = ws.Graph()
    parts = [g.input(f"x{i}", ("batch", width), dtype) for i, width in enumerate(widths)]
    g.set_outputs({"y": combine(parts)})
    return g.to_ir()


def plan_of(graph: IRGraph) -> Plan:
    return Compiler(CompileOptions(egraph=False)).plan(graph, CAPACITY, TARGET)[0]


def together(parts: Parts) -> ws.Tensor:
    return ws.concat(parts, 1)


def scaled(parts: Parts) -> ws.Tensor:
    """The concatenation is read twice, and one of its parts is read beside it."""
    joined = ws.concat(parts, 1)
    return joined * 2.0 + ws.exp(joined) * ws.concat([parts[0], *[p * 0.5 for p in parts[1:]]], 1)


def padded(parts: Parts) -> ws.Tensor:
    return ws.pad(parts[0], ((0, 0), (8, 16))) + 1.0


def padded_with_ones(parts: Parts) -> ws.Tensor:
    return ws.pad(parts[0], ((0, 0), (8, 8)), value=1.0) * 3.0


def padded_with_negative_zeros(parts: Parts) -> ws.Tensor:
    """The sign of a zero decides about the sign of an infinity."""
    return 1.0 / ws.pad(parts[0], ((0, 0), (8, 8)), value=-0.0)


CASES = {
    "parts of whole vectors": ((32, 64, 8, 24), "float32", together, 4),
    "read twice": ((16, 32, 16), "float32", scaled, None),
    "half types": ((32, 64, 8, 24), "bfloat16", together, 4),
    "a part of three": ((32, 3, 29), "float32", together, 1),  # its vectors would cross the borders
    "a pad of whole vectors": ((32,), "float32", padded, 1),
    "a pad of negative zeros": ((32,), "float32", padded_with_negative_zeros, None),
    "a pad of ones": ((32,), "float32", padded_with_ones, 0),  # what is not read is not zero
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_vectors(case: str) -> None:
    widths, dtype, combine, reads = CASES[case]
    graph = graph_of(widths, dtype, combine)
    check([graph], {"batch": 17}, seed=1)
    source = render(plan_of(graph)).text
    if reads is not None:
        assert len(re.findall(r"\bp\d+\.read\(", source)) == reads


def test_many_parts_share_the_registers_of_one_vector() -> None:
    """A dense block of 32 layers: what a thread keeps does not grow with the number of parts."""
    plan = plan_of(graph_of((32,) * 32, "float32", together))
    source = render(plan).text
    assert len(re.findall(r"float a\d+\[4\] = \{\};", source)) == 1
    ((_, estimated),) = estimates(plan)
    assert estimated.moving < 1.5 * estimated.price


def test_a_block_of_densenet_trains_as_in_the_interpreter() -> None:
    g = ws.Graph()
    features = [g.input("x", ("batch", 8, 4, 4))]
    for number in range(3):
        with g.scope(f"layer{number}"):
            layer = ws.nn.Conv2d(8 * (number + 1), 8, 3, padding=1)
            features.append(ws.relu(layer(ws.concat(features, 1))))
    g.set_outputs({"loss": (ws.concat(features, 1) ** 2).mean()})
    meant = strip_stop_gradients(expand_gradients(inline_calls(train_graph(g, ws.SGD(lr=0.1)))))
    check([meant], {"batch": 5}, seed=2)
