"""Gradients with the e-graph against gradients without it, on random graphs: both stages, every class of exactness."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import wholestep as ws
from tests.compiler.ir.random_graphs import example_values, graphs
from tests.compiler.passes.common import assert_same_values
from tests.compiler.passes.egraph.support.rule_cases import run_in_own_dtype
from tests.compiler.passes.test_autodiff_random import with_gradients
from tests.compiler.targets import HERE
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.types import float64
from wholestep.compiler.passes.egraph import optimize as pass_module
from wholestep.compiler.passes.lower.decompose import decompose
from wholestep.compiler.pipeline import Compiler

TOLERANCE = {"reassociating": 1e-7, "approximate": 1e-5}


def step(graph: IRGraph, exactness: str, until: str, egraph: bool) -> IRGraph:
    compiler = Compiler(ws.CompileOptions(egraph=egraph, exactness=exactness))
    rewritten = compiler.run_stages(graph, HERE, until=until)
    assert not [r.failure for r in compiler.egraph_reports if r.failure]
    return rewritten


def assert_same_gradients(graph: IRGraph, exactness: str) -> None:
    plain, rewritten = (decompose(step(graph, exactness, "optimize_full", on)) for on in (False, True))
    assert_same_values(plain, rewritten, rtol=TOLERANCE[exactness])


@given(graphs(max_nodes=10, dtype=float64, control=True))
@settings(max_examples=60)
def test_gradients_of_random_graphs_are_kept(graph: IRGraph) -> None:
    assert_same_gradients(with_gradients(graph), "reassociating")


@given(graphs(max_nodes=10, dtype=float64))
@settings(max_examples=10)
def test_approximate_ones_are_close(graph: IRGraph) -> None:
    assert_same_gradients(with_gradients(graph), "approximate")


@pytest.mark.long
@given(graphs(max_nodes=16, dtype=float64))
@settings(max_examples=500)
def test_gradients_of_many_random_graphs_are_kept(graph: IRGraph) -> None:
    assert_same_gradients(with_gradients(graph), "reassociating")


@pytest.mark.long
@given(graphs(max_nodes=12, dtype=float64))
@settings(max_examples=100)
def test_so_are_those_of_outlined_graphs(graph: IRGraph) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pass_module, "outline", lambda g, fewest: outline_everything(g))
        assert_same_gradients(with_gradients(graph), "reassociating")


def outline_everything(graph: IRGraph) -> object:
    from wholestep.compiler.passes.egraph.outline import outline

    return outline(graph, fewest=1)


@given(graphs(max_nodes=8, dtype=float64, symbolic=False))
@settings(max_examples=15)
def test_bitwise_gradients_have_equal_bits(graph: IRGraph) -> None:
    graph = with_gradients(graph)
    plain, rewritten = (step(graph, "bitwise", "lower", on) for on in (False, True))
    inputs, state = example_values(plain, {}, np.random.default_rng(0))
    for ours, theirs in zip(rewritten.outputs, plain.outputs, strict=True):
        got, expected = (run_in_own_dtype(o.node, inputs, state) for o in (ours, theirs))
        np.testing.assert_array_equal(got, expected, err_msg=theirs.name)  # of NaN: that it is one
