"""Sums over columns that leave parts: how many, and which of them share a kernel."""

from __future__ import annotations

import pytest

import wholestep as ws
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.plan.fusion.clusters import Cluster
from wholestep.compiler.plan.fusion.partial_column_sums import PartialSum, fuse_partial_sums
from wholestep.compiler.plan.model.kernel import Kind


def values(columns: int) -> Node:
    g = ws.Graph()
    return g.input("x", ("batch", columns)).node


def cluster(*nodes: Node) -> Cluster:
    rows, columns = nodes[0].inputs[0].type.shape
    return Cluster(Kind.NEST, (rows,), columns, list(nodes))


@pytest.mark.parametrize(
    ("columns", "beside", "alone"),
    [(256, 264, 288), (768, 264, 96), (1024, 264, 72), (2304, 528, 32), (3072, 528, 24), (8192, 528, 9)],
)
def test_the_number_of_parts_follows_from_the_length_of_a_row(columns: int, beside: int, alone: int) -> None:
    """A kernel that does nothing else has blocks for some columns of a part: about as many, whatever the length."""
    x = values(columns)
    assert PartialSum(x, alone=False).type.shape == (beside, columns)
    assert PartialSum(x, alone=True).type.shape == (alone, columns)
    assert PartialSum(x, alone=True).with_inputs([values(columns)]).type.shape == (alone, columns)


@pytest.mark.parametrize("alone", [False, True])
def test_only_a_sum_beside_something_else_moves_in_with_a_pass_over_the_same_values(alone: bool) -> None:
    """A pass has blocks for all that it does; one that leaves so few parts would have but a few."""
    x = values(2304)
    passes, sums = cluster(b.neg(x)), cluster(PartialSum(x, alone))
    assert fuse_partial_sums([passes, sums]) == ([passes, sums] if alone else [passes])


@pytest.mark.parametrize("alone", [False, True])
def test_sums_over_the_same_values_are_one_kernel_where_they_leave_as_many_parts(alone: bool) -> None:
    x = values(2304)
    first, second, other = (cluster(PartialSum(x, how)) for how in (alone, alone, not alone))
    assert len(fuse_partial_sums([first, second])) == 1
    assert len(fuse_partial_sums([first, other])) == 2
