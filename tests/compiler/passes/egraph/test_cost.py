"""The cost model: arithmetic where it is done, bytes where values go through memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import calibrate
from tests.compiler.passes.common import graph_of, leaf
from tests.compiler.targets import COSTS
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.attrs import ConvAttrs, GeluAttrs
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.types import bfloat16, float32, float64
from wholestep.compiler.passes.egraph.cost import CostModel
from wholestep.compiler.passes.egraph.encode import Tables
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.fold import fold
from wholestep.compiler.target import read_costs

TABLE = COSTS
MODEL = CostModel(Tables(), {"n": 64}, TABLE)


def test_pointwise_work_counts_elements_at_capacity() -> None:
    x = leaf("x", ("n", 5))
    assert MODEL.node_cost(b.add(x, x)).work == pytest.approx(64 * 5 * TABLE.operation)
    assert MODEL.node_cost(b.add(x, x)).stored == pytest.approx(2 * 64 * 5 * 8 * TABLE.byte)
    assert MODEL.node_cost(b.unary("exp", x)).work > 5 * MODEL.node_cost(b.add(x, x)).work


def test_movement_is_almost_free_and_products_count_every_term() -> None:
    x, w = leaf("x", ("n", 5)), leaf("w", (7, 5))
    assert MODEL.node_cost(b.permute(x, (1, 0))).work == TABLE.view < 0.01 * TABLE.operation * 64 * 5
    product = MODEL.node_cost(b.matmul(x, w, transpose_b=True))
    assert product.work == pytest.approx(TABLE.pass_over + 64 * 7 * 5 * TABLE.product + 64 * 7 * 8 * TABLE.byte)


def test_products_of_half_operands_have_a_price_of_their_own() -> None:
    model = CostModel(Tables(), {"n": 64}, replace(TABLE, half_product=TABLE.product / 8))
    half, single = (leaf("x", (64, 64), dtype) for dtype in (bfloat16, float32))
    images, kernels = leaf("i", ("n", 4, 8, 8), bfloat16), leaf("k", (4, 4, 3, 3), bfloat16)
    plain = ConvAttrs((1, 1), (0, 0), (0, 0), (1, 1), groups=1, last=False)
    convolution = b.make("conv2d", (images, kernels), plain)
    for node, size in ((b.matmul(half, half), 64**3), (convolution, 64 * 4 * 6 * 6 * 4 * 9)):
        saved = MODEL.node_cost(node).work - model.node_cost(node).work
        assert saved == pytest.approx(7 / 8 * size * TABLE.product)
    assert model.node_cost(b.matmul(single, single)) == MODEL.node_cost(b.matmul(single, single))


def test_the_table_is_what_the_benchmark_measures() -> None:
    assert set(TABLE.weights) == set(calibrate.UNARY) <= set(OPS)
    assert calibrate.TABLE.is_file()
    assert min(TABLE.operation, TABLE.byte, TABLE.product, TABLE.pass_over, *TABLE.weights.values()) > 0
    assert read_costs(calibrate.TABLE) == TABLE
    assert TABLE.origin == calibrate.ORIGIN
    for kind in calibrate.PRODUCTS:
        shipped = read_costs(calibrate.GPUS / f"{kind}.json")
        made = calibrate.with_library({"origin": ""}, kind)
        assert (shipped.half_product, shipped.tf32_product) == (made["half_product"], made["tf32_product"])
        assert shipped.origin.endswith(made["origin"])


def test_a_name_is_not_dearer_than_its_definition_whatever_was_measured() -> None:
    x = leaf("x", ("n", 5))
    for op in ("sigmoid", "tanh"):
        node = b.unary(op, x)
        whole = sum(MODEL.node_cost(n).work for n in fold(graph_of(DECOMPOSITIONS[op](node))).nodes)
        assert MODEL.node_cost(node).work < whole


def test_scalars_cost_next_to_nothing() -> None:
    lr = b.constant(0.1, float64)
    assert MODEL.node_cost(b.mul(lr, lr)).work == TABLE.scalar


@pytest.mark.parametrize("op", ["silu", "gelu", "softmax", "log_softmax"])
def test_a_name_costs_a_little_less_than_its_definition(op: str) -> None:
    x = leaf("x", ("n", 5))
    made = {"silu": lambda: b.unary("silu", x), "gelu": lambda: b.make("gelu", (x,), GeluAttrs(False))}
    node = made[op]() if op in made else getattr(b, op)(x, 1)
    definition = DECOMPOSITIONS[op](node)
    whole = sum(MODEL.node_cost(n).work for n in share_common_nodes(fold(graph_of(definition))).nodes)
    assert 0.9 * whole < MODEL.node_cost(node).work < whole
