"""3-D programs fuse like 2-D ones, 2-D ones are left alone, and values stay equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import find, given

import wholestep as ws
from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of, parameter, total
from tests.compiler.step_graphs import classifier
from tests.compiler.targets import HERE, make_plan
from tests.models.gpt2 import NAMED, PRIMITIVE, Config, Words, gpt2
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.attrs import NONE
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import Dim, Shape, TensorType, float64, int32, product
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.layout.merge_batch_axes import merge_batch_axes
from wholestep.compiler.passes.lower.decompose import decompose, decompose_for, lower_ratio, lower_reductions
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.dead_code import drop_dead_code
from wholestep.compiler.passes.simplify.fold import fold
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.steps.train import train_graph

B, T = Dim.symbol("batch"), Dim.symbol("time")
CAPACITY = {"batch": 4, "time": 5}


def simplified(graph: IRGraph) -> IRGraph:
    return drop_dead_code(share_common_nodes(fold(graph)))


def lowered(graph: IRGraph) -> IRGraph:
    """As the pipeline has it when this pass runs."""
    graph = simplified(strip_stop_gradients(expand_gradients(inline_calls(graph))))
    return lower_ratio(lower_reductions(decompose_for(graph, HERE), HERE))


def plans(graph: IRGraph) -> tuple[Plan, Plan]:
    """Without and with the pass."""
    before = simplified(graph)
    after = simplified(merge_batch_axes(graph, HERE))
    assert_same_values(before, after)
    capacity = {s: CAPACITY[s] for s in graph.symbols}
    return make_plan(before, capacity), make_plan(after, capacity)


# -- what fuses --------------------------------------------------------------------------------------------------


def product_of_rows(x: Node, w: Node) -> Node:
    """x @ w as the frontend records it."""
    *rows, k = x.type.shape
    flat = b.matmul(b.reshape(x, (product(rows), k)), w)
    return b.reshape(flat, (*rows, w.type.shape[-1]))


def linear() -> Node:
    x, w, bias = leaf("x", ("batch", "time", 6)), parameter("w", (6, 8)), parameter("bias", (8,))
    y = product_of_rows(x, w)
    return b.add(y, b.expand_to(bias, y.type.shape, (2,)))


def read_by_another(y: Node) -> Node:
    return product_of_rows(y, parameter("v", (8, 3)))


def gelu() -> Node:
    return b.make("gelu", (linear(),), at.GeluAttrs(True))


def residual() -> Node:
    return b.add(leaf("r", ("batch", "time", 8)), linear())


def shared_residual() -> Node:
    r = b.unary("exp", leaf("r", ("batch", "time", 8)))
    return b.add(b.add(r, linear()), product_of_rows(r, parameter("u", (8, 8))))


def dropout() -> Node:
    return b.make("dropout", (linear(), b.constant(0.5, float64)), at.DropoutAttrs("drop"))


def layer_norm() -> Node:
    affine = [parameter(n, (8,)) for n in ("weight", "shift")]
    return b.make("layer_norm", (linear(), *affine), at.NormAttrs(1e-5))


FUSED: dict[str, tuple[Callable[[], Node], int]] = {
    "x @ w + b": (linear, 2),
    "gelu": (gelu, 2),
    "residual": (residual, 2),
    "a residual that others read": (shared_residual, 4),
    "dropout": (dropout, 2),
}


@pytest.mark.parametrize("what", FUSED)
def test_fewer_kernels(what: str) -> None:
    make, kernels = FUSED[what]
    y = read_by_another(make())
    before, after = plans(lowered(graph_of(b.reshape(y, (B * T, 3)))))
    assert len(after.kernels) == kernels < len(before.kernels)
    assert after.bytes_moved < before.bytes_moved
    assert after.arena_bytes <= before.arena_bytes


def test_a_layer_norm_reads_the_product_and_its_bias_from_one_kernel() -> None:
    before, after = plans(lowered(graph_of(b.reshape(read_by_another(layer_norm()), (B * T, 3)))))
    assert len(after.kernels) == len(before.kernels) == 3
    assert after.kernels[0].origin == ("matmul", "add")
    assert after.bytes_moved <= before.bytes_moved


def test_the_gradient_of_a_layer_norm_stays_in_one_kernel() -> None:
    """Its kernel begins with products that the kernel of a matmul could hold, but its sums could not follow."""
    y = b.make("layer_norm", (linear(), parameter("weight", (8,)), parameter("shift", (8,))), at.NormAttrs(1e-5))
    loss = total(b.unary("sin", product_of_rows(y, parameter("v", (8, 3)))))
    gradients = b.results("gradient", (loss, *[n for n in graph_of(loss).nodes if n.op == "parameter"]), NONE)
    before, after = plans(lowered(graph_of(*gradients)))
    assert len(after.kernels) < len(before.kernels)
    assert after.bytes_moved <= before.bytes_moved


def test_numbers_per_row_with_their_axis_kept() -> None:
    y = b.unary("exp", leaf("x", (3, 8)))
    kept = b.unary("sqrt", b.reshape(b.sum_axes(y, (1,)), (3, 1)))
    mean = b.expand_to(b.reshape(kept, (3,)), (3, 8), (0,))
    before, after = plans(graph_of(b.div(y, mean)))
    assert (len(before.kernels), len(after.kernels)) == (3, 1)


def test_two_splits_of_two_symbols() -> None:
    x = leaf("x", ("batch", "time", 8))
    q, k = (product_of_rows(x, parameter(n, (8, 8))) for n in ("q", "k"))
    after = merge_batch_axes(graph_of(b.reshape(b.mul(q, k), (B * T, 8))), HERE)
    (y,) = [n for n in after.nodes if n.op == "mul"]
    assert y.type.shape == (B * T, 8)
    assert after.outputs[0].node is y


def test_sums_over_all_parts_are_one_sum() -> None:
    y = linear()
    gradient = lower_reductions(graph_of(b.sum_axes(y, (0, 1)), b.sum_axes(y, (0, 1, 2))), HERE)
    after = merge_batch_axes(gradient, HERE)
    assert_same_values(gradient, after)
    assert [n.type.shape for n in after.nodes if n.op == "sum"] == [(8,), (B * T,), ()]


def test_rows_and_what_is_made_of_them() -> None:
    y = linear()
    top, place = b.max_axes(y, (2,)), b.make("argmax", (y,), at.ArgmaxAttrs(2))
    distance = b.sub(y, b.restore_axes(b.unary("exp", top), (2,), y.type.shape))
    at_top = b.equal(b.iota(y.type.shape, 2), b.restore_axes(place, (2,), y.type.shape))
    chosen = b.where(at_top, distance, y)
    graph = graph_of(b.reshape(chosen, (B * T, 8)))
    after = merge_batch_axes(graph, HERE)
    assert_same_values(graph, after)
    assert all(
        n.type.shape[0] == B * T for n in after.nodes if n.op in ("max", "argmax", "exp", "sub", "equal", "where")
    )


# -- what does not -----------------------------------------------------------------------------------------------


def positions() -> Node:
    y = linear()
    return b.add(y, b.expand_to(parameter("p", ("time", 8)), y.type.shape, (1, 2)))


def count_along_time() -> Node:
    y = linear()
    return b.add(y, b.cast(b.iota(y.type.shape, 1, int32), float64))


@pytest.mark.parametrize("make", [positions, count_along_time])
def test_what_needs_a_part_keeps_it(make: Callable[[], Node]) -> None:
    graph = graph_of(b.reshape(make(), (B * T, 8)))
    after = merge_batch_axes(graph, HERE)
    assert_same_values(graph, after)
    assert ops_of(after).count("reshape") == 3
    assert all(n.type.shape == (B, T, 8) for n in after.nodes if n.op == "add")  # with the op that needs the part


def test_an_output_is_computed_in_its_own_shape() -> None:
    graph = graph_of(linear())
    assert merge_batch_axes(graph, HERE) is graph


def test_a_split_of_a_leaf_stays() -> None:
    x = b.unary("exp", b.reshape(Node("input", (), at.InputAttrs("x", TensorType((B * T, 8), float64))), (B, T, 8)))
    graph = graph_of(b.reshape(b.unary("sin", x), (B * T * 8,)))
    assert merge_batch_axes(graph, HERE) is graph


def test_leading_axes_behind_nothing_are_no_split() -> None:
    x = b.unary("exp", leaf("x", (6, 0)))
    graph = graph_of(b.unary("exp", b.sum_axes(b.reshape(x, (2, 2, 0)), (2,))))
    assert merge_batch_axes(graph, HERE) is graph


@pytest.mark.parametrize("optimizer", [ws.SGD(lr=0.1), ws.AdamW()])
def test_an_mlp_is_left_alone(optimizer: ws.optim.Optimizer) -> None:
    graph = lowered(train_graph(classifier(7, 6, 5), optimizer))
    assert merge_batch_axes(graph, HERE) is graph


# -- whole programs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [NAMED, PRIMITIVE])
@pytest.mark.parametrize("time", [None, "time"])
def test_gpt2_has_fewer_kernels_and_moves_less(words: Words, time: str | None) -> None:
    model = gpt2(Config(layers=2, width=16, heads=2, vocabulary=11, context=8), words, "float64", time)
    graph = lowered(train_graph(model, ws.AdamW()))
    sizes = {s: n for s, n in CAPACITY.items() if s in graph.symbols}
    before, after = simplified(graph), simplified(merge_batch_axes(graph, HERE))
    assert_same_values(before, after, sizes, rtol=1e-8)
    without, with_pass = make_plan(before, sizes), make_plan(after, sizes)
    assert len(with_pass.kernels) < 0.85 * len(without.kernels)
    assert with_pass.bytes_moved < without.bytes_moved
    assert merge_batch_axes(after, HERE) is after or len(
        make_plan(simplified(merge_batch_axes(after, HERE)), sizes).kernels
    ) <= len(with_pass.kernels)


def with_splits(graph: IRGraph) -> IRGraph:
    """Every second pointwise op computed on rows, between a merge and a split of its leading axes."""
    count = 0

    def surround(node: Node) -> Node:
        nonlocal count
        if OPS[node.op].family is not Family.POINTWISE or node.type.rank < 2:
            return node
        count += 1
        if count % 2:
            return node
        *rows, width = node.type.shape
        small = b.make(node.op, [b.reshape(i, (product(rows), width)) for i in node.inputs], node.attrs)
        return b.reshape(small, node.type.shape)

    return rewrite(graph, surround)


@given(graphs(max_nodes=20))
def test_values_of_random_graphs(graph: IRGraph) -> None:
    before = with_splits(lower_ratio(lower_reductions(decompose(graph), HERE)))
    assert_same_values(before, merge_batch_axes(before, HERE))


def test_random_graphs_reach_the_pass() -> None:
    reached = find(graphs(max_nodes=20), lambda g: changes_a_shape(with_splits(lower_reductions(decompose(g), HERE))))
    assert reached.outputs


def changes_a_shape(graph: IRGraph) -> bool:
    def kinds(g: IRGraph) -> set[tuple[str, Shape]]:
        return {(n.op, n.type.shape) for n in g.nodes if OPS[n.op].family in (Family.POINTWISE, Family.REDUCE)}

    return kinds(graph) != kinds(merge_batch_axes(graph, HERE))
