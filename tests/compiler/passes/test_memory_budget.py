"""Rematerialization within a budget: what is recomputed at which price, and the rewritten graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from tests.compiler.targets import HERE
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.passes.rematerialize.copies import Rematerialized, is_in_reader, is_late
from wholestep.compiler.passes.rematerialize.memory_budget import RecomputeCandidates


def backward_reads_activations() -> IRGraph:
    """Two layers; the second half reads the activations of the first in reverse order."""
    x, weights = leaf("x", (8, 8)), [leaf(f"w{i}", (8, 8)) for i in range(2)]
    activations: list[Node] = []
    for w in weights:
        x = b.unary("tanh", b.matmul(x, w))
        activations.append(x)
    for w, y in zip(reversed(weights), reversed(activations), strict=True):
        x = b.mul(b.matmul(x, w, transpose_b=True), b.unary("exp", y))
    return graph_of(x)


def test_recomputing_a_product_costs_its_time() -> None:
    graph = backward_reads_activations()
    candidates = RecomputeCandidates(graph, {}, HERE.costs)
    cheap, with_products = candidates.choices()
    assert not cheap  # each activation is a function of a product that is not stored
    assert with_products
    assert all(c.products and c.bytes > 0 and c.price == c.cost / c.bytes for c in with_products)
    dearer = replace(HERE.costs, product=2 * HERE.costs.product)
    assert RecomputeCandidates(graph, {}, dearer).choices()[1][0].cost > with_products[0].cost


def test_late_readers_recompute_the_chosen_values() -> None:
    graph = backward_reads_activations()
    candidates = RecomputeCandidates(graph, {}, HERE.costs)
    choices = candidates.choices()[1]
    after = candidates.without(choices)
    copies = [n for n in after.nodes if isinstance(n, Rematerialized)]
    assert all(map(is_late, copies))
    assert {n.op for n in copies if not is_in_reader(n)} == {"matmul"}
    assert ops_of(after).count("matmul") == 4 + sum(len(c.products) for c in choices)
    assert_same_values(graph, after, rtol=float(np.finfo(np.float64).eps))
    assert candidates.without([]) is graph
