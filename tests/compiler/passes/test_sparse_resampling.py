"""Products with a sparse constant matrix: sums of gathered elements with equal values, in one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.types import bfloat16, float32, float64
from wholestep.compiler.passes.lower.sparse_resampling import resample_by_gathers, taps_of

Array = np.ndarray[Any, Any]

BANDS = np.eye(6, 9) * 0.25 + np.eye(6, 9, 1) * 0.75  # two elements in each row


def test_taps_are_the_elements_of_each_row() -> None:
    matrix = np.array([[0, 2, 0, 0], [1, 0, 0, 3], [0, 0, 0, 0]], np.float64)
    taps = taps_of(matrix)
    assert taps is not None
    np.testing.assert_array_equal(taps.columns, [[1, 1], [0, 3], [0, 0]])
    np.testing.assert_array_equal(taps.weights, [[2, 0], [1, 3], [0, 0]])


@pytest.mark.parametrize("matrix", [np.ones((3, 4)), np.eye(40, 60) + np.triu(np.ones((40, 60))), np.eye(2, 3) + 1])
def test_a_dense_matrix_stays_a_product(matrix: Array) -> None:
    assert taps_of(matrix) is None
    x = leaf("x", ("batch", matrix.shape[0]))
    graph = graph_of(b.matmul(x, b.constant(matrix, float64)))
    assert ops_of(resample_by_gathers(graph)).count("matmul") == 1


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_from_the_left_is_applied_to_rows(transposed: bool) -> None:
    matrix = BANDS.T if transposed else BANDS
    x = leaf("x", ("batch", 2, 9, 5))
    wide = b.expand_to(b.constant(matrix, float64), (*x.type.shape[:2], *matrix.shape), (2, 3))
    graph = graph_of(b.matmul(wide, x, transpose_a=transposed))
    after = resample_by_gathers(graph)
    assert "matmul" not in ops_of(after)
    assert_same_values(graph, after)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_from_the_right_is_applied_to_columns_of_images(transposed: bool) -> None:
    matrix = BANDS if transposed else BANDS.T
    x = leaf("x", ("batch", 2, 5, 9))
    n = x.type.shape[0]
    rows = b.reshape(x, (n * 10, 9))
    product = b.matmul(rows, b.constant(matrix, float64), transpose_b=transposed)
    graph = graph_of(b.reshape(product, (n, 2, 5, 6)))
    after = resample_by_gathers(graph)
    assert {"matmul", "reshape"}.isdisjoint(ops_of(after))
    assert_same_values(graph, after)


def test_elements_of_half_types_are_added_in_float32() -> None:
    """A product of bfloat16 accumulates in float32, and so does the sum that replaces it."""
    x = leaf("x", ("batch", 2, 9, 5), bfloat16)
    wide = b.expand_to(b.constant(BANDS, bfloat16), (*x.type.shape[:2], *BANDS.shape), (2, 3))
    graph = graph_of(b.matmul(wide, x))
    after = resample_by_gathers(graph)
    assert "matmul" not in ops_of(after)
    assert after.outputs[0].node.type.dtype == float32
    assert_same_values(graph, after)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("size", "align_corners"), [((40, 24), False), ((40, 24), True), ((10, 12), False)])
def test_an_interpolation_and_its_gradient_are_four_kernels(
    mode: str, size: tuple[int, int], align_corners: bool
) -> None:
    """One kernel for each axis and direction, in place of products."""
    g = ws.Graph()
    x = g.parameter("x", (2, 8, 20, 24))
    y = ws.interpolate(x, size=size, mode=mode, align_corners=align_corners)
    g.set_outputs({"loss": (y * y).mean()})
    options = ws.CompileOptions(verify=False, egraph=False, cache=False)
    plan = ws.build_session(g, optimizer=ws.SGD(lr=0.1), device="null:cuda/sm_90", options=options).plan
    assert all(k.kind.value != "dot" for k in plan.kernels)
    axes = 2 if size[1] != 24 else 1
    assert len([k for k in plan.kernels if any("gather" in o or "matmul" in o for o in k.origin)]) <= 2 * axes
