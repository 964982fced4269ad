"""Gathers by constant indices are marked for the kernel of their sum, and values stay."""

from __future__ import annotations

from tests.compiler.passes.common import assert_same_values, graph_of, leaf
from tests.compiler.passes.test_sparse_resampling import BANDS
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.types import bfloat16, float32, float64, int32
from wholestep.compiler.passes.lower.sparse_resampling import resample_by_gathers
from wholestep.compiler.passes.rematerialize.copies import is_in_reader
from wholestep.compiler.passes.rematerialize.tap_gathers import gather_in_readers


def test_gathers_of_one_sum_are_computed_in_its_kernel() -> None:
    x = leaf("x", ("batch", 2, 9, 5))
    wide = b.expand_to(b.constant(BANDS, float64), (*x.type.shape[:2], 6, 9), (2, 3))
    graph = resample_by_gathers(graph_of(b.matmul(wide, x)))
    after = gather_in_readers(graph)
    assert sum(map(is_in_reader, after.nodes)) == 4, "two gathers and their factors"
    assert_same_values(graph, after)


def test_a_rounded_value_is_gathered_before_it_is_widened() -> None:
    x = leaf("x", ("batch", 2, 9, 5), bfloat16)
    wide = b.cast(b.add(x, x), float32)
    matrix = b.expand_to(b.constant(BANDS, float32), (*x.type.shape[:2], 6, 9), (2, 3))
    graph = resample_by_gathers(graph_of(b.matmul(matrix, wide)))
    after = gather_in_readers(graph)
    assert [n.type.dtype for n in after.nodes if n.op == "gather"] == [bfloat16] * 2


def test_a_gather_of_two_readers_is_stored() -> None:
    x, index = leaf("x", ("batch", 9)), b.constant([0, 3, 8], int32)
    taken = b.gather(x, index, 1)
    graph = graph_of(b.neg(taken), b.mul(taken, taken))
    assert gather_in_readers(graph) is graph
