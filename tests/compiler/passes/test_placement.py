"""The analysis against the facts: a batch is cut in two, and each node does what its placement says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings

from tests.compiler.ir.random_graphs import example_values, graphs
from tests.compiler.ir.window_types import GOOD
from tests.compiler.passes.common import Array, leaf, parameter, total
from tests.support.complete import assert_equal_rows
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import Dim, TensorType, divide, evaluate, float64, int32, symbols_of
from wholestep.compiler.passes.distribute.placement.placements import (
    MeshAxis,
    Mixed,
    Partial,
    Placement,
    Replicated,
    Sharded,
    SumOfRatios,
)
from wholestep.compiler.passes.distribute.placement.rules import PLACEMENT_RULES, placements_of

BATCH = Dim.symbol("batch")
X = leaf("x", ("batch", 4))
Z = leaf("z", ("batch", 4))
W = parameter("w", (4, 5))
BIAS = parameter("bias", (4,))
TOKENS = leaf("tokens", ("batch", 3), int32)
LABELS = leaf("labels", ("batch",), int32)
IMAGES = leaf("images", ("batch", 2, 6))
STEPS = b.permute(IMAGES, (1, 0, 2))  # as a recurrent layer reads them
MERGED = b.reshape(STEPS, (2 * BATCH, 6))
SIX = parameter("six", (6, 4))


def rows_sum(x: Node) -> Node:
    return b.sum_axes(x, (0,))


def norm_gradients() -> tuple[Node, ...]:
    return b.results("layer_norm_grad", (X, BIAS, Z), at.NormAttrs(0.1))


def own(y: Node, x: Node, slope: Callable[[Node, Node], Node]) -> Node:
    """y, with a gradient of its own for x."""
    upstream, inside = (Node("input", (), at.InputAttrs(n, t.type)) for n, t in (("u", y), ("x", x)))
    held = IRGraph((Output("y0", slope(upstream, inside)),), (), (upstream, inside))
    return b.results("custom_gradient", (y, x), at.CustomGradientAttrs(held, 1))[0]


def _dropped(upstream: Node, _: Node) -> Node:
    return b.make("dropout", (upstream, b.constant(0.5, float64)), at.DropoutAttrs("k"))


CASES: dict[str, tuple[Callable[[], Node], Placement | str]] = {
    "parameter": (lambda: W, Replicated()),
    "input": (lambda: X, Sharded(0)),
    "bias": (lambda: b.add(X, b.expand_to(BIAS, X.type.shape, (1,))), Sharded(0)),
    "dense layer": (lambda: b.matmul(X, W), Sharded(0)),
    "dense layer, transposed": (lambda: b.matmul(W, X, True, True), Sharded(1)),
    "weight gradient": (lambda: b.matmul(X, Z, True, False), Partial()),
    "attention": (lambda: b.matmul(IMAGES, IMAGES, False, True), Sharded(0)),
    "rows against rows": (lambda: b.matmul(X, Z, False, True), "multiplies rows"),
    "flattened": (lambda: b.reshape(IMAGES, (BATCH, 12)), Sharded(0)),
    "merged": (lambda: b.reshape(IMAGES, (BATCH * 2, 6)), Sharded(0)),
    "merged and split": (lambda: b.reshape(b.reshape(IMAGES, (BATCH * 12,)), (BATCH, 3, 4)), Sharded(0)),
    "merged from behind": (lambda: b.reshape(b.permute(IMAGES, (1, 0, 2)), (2 * BATCH, 6)), Sharded(0, 2)),
    "merged from behind and split": (
        lambda: b.reshape(b.reshape(STEPS, (2 * BATCH, 6)), (2, BATCH, 3, 2)),
        Sharded(1),
    ),
    "merged from behind and torn": (lambda: b.reshape(b.reshape(STEPS, (2 * BATCH, 6)), (BATCH, 12)), "tears the rows"),
    "steps and their rows": (lambda: b.add(MERGED, b.reshape(IMAGES, (BATCH * 2, 6))), "combines rows"),
    "dense layer of steps": (
        lambda: b.reshape(b.add(b.matmul(MERGED, SIX), b.expand_to(BIAS, (2 * BATCH, 4), (1,))), (2, BATCH, 4)),
        Sharded(1),
    ),
    "weight gradient of steps": (lambda: b.matmul(MERGED, MERGED, True, False), Partial()),
    "weight gradient of steps and others": (
        lambda: b.matmul(MERGED, b.reshape(IMAGES, (BATCH * 2, 6)), True, False),
        "multiplies rows",
    ),
    "the same for every row": (lambda: b.expand_to(BIAS, (2 * BATCH, 4), (1,)), Sharded(0, uniform=True)),
    "the same for every row, merged": (
        lambda: b.add(
            b.reshape(b.expand_to(BIAS, (BATCH, 4), (1,)), (BATCH * 4,)), b.reshape(b.transpose(X), (BATCH * 4,))
        ),
        "combines rows",
    ),
    "permuted": (lambda: b.permute(IMAGES, (2, 0, 1)), Sharded(1)),
    "sum of each row": (lambda: b.sum_axes(X, (1,)), Sharded(0)),
    "sum of all rows": (lambda: rows_sum(X), Partial()),
    "sum of all": (lambda: total(X), Partial()),
    "scaled sum": (lambda: b.mul(rows_sum(X), BIAS), Partial()),
    "square of a sum": (lambda: b.mul(rows_sum(X), rows_sum(X)), "not linear"),
    "size": (lambda: b.size(BATCH * 3), Partial()),
    "size and one": (lambda: b.size(BATCH + 1), "not a multiple"),
    "maximum of each row": (lambda: b.max_axes(X, (1,)), Sharded(0)),
    "maximum of all rows": (lambda: b.max_axes(X, (0,)), "runs along the batch"),
    "softmax of each row": (lambda: b.softmax(X, 1), Sharded(0)),
    "softmax over the rows": (lambda: b.softmax(X, 0), "runs along the batch"),
    "each row minus the sum": (
        lambda: b.sub(X, b.expand_to(rows_sum(X), X.type.shape, (1,))),
        "broadcasts a value of the whole batch to each row",
    ),
    "all pairs": (lambda: b.expand_to(X, (BATCH, BATCH, 4), (0, 2)), "pairs the rows"),
    "embedding": (lambda: b.gather(W, TOKENS, 0), Sharded(0)),
    "embedding gradient": (lambda: b.scatter_add(leaf("u", ("batch", 3, 5)), TOKENS, 0, 4), Partial()),
    "a column": (lambda: b.gather(X, b.constant([0, 2], int32), 1), Sharded(0)),
    "the first row": (lambda: b.slice_axes(X, (0, 0), (1, 4)), "picks rows by their position"),
    "one step of merged steps": (lambda: b.slice_axes(MERGED, (BATCH, 0), (2 * BATCH, 6)), Sharded(0)),
    "a step and a half": (lambda: b.slice_axes(MERGED, (0, 0), (BATCH + 1, 6)), "picks rows by their position"),
    "a row by index": (lambda: b.gather(X, b.constant([0], int32), 0), "picks rows"),
    "one more row": (lambda: b.pad(X, (1, 0), (0, 0)), "adds rows"),
    "two batches": (lambda: b.concat([X, Z], 0), "concatenates batches"),
    "side by side": (lambda: b.concat([X, Z], 1), Sharded(0)),
    "row numbers": (lambda: b.iota((BATCH, 3), 0), "numbers the rows"),
    "column numbers": (lambda: b.iota((BATCH, 3), 1), Sharded(0)),
    "by mode": (lambda: b.make("by_mode", (X, X)), Sharded(0)),
    "dropout mask": (lambda: b.make("random", (), at.RandomAttrs("k", X.type)), Sharded(0)),
    "dropout": (lambda: b.make("dropout", (X, b.constant(0.5, float64)), at.DropoutAttrs("k")), Sharded(0)),
    "loss of each row": (lambda: b.make("cross_entropy", (X, LABELS)), Sharded(0)),
    "norm of each row": (lambda: b.make("layer_norm", (X, BIAS, BIAS), at.NormAttrs(0.1)), Sharded(0)),
    "norm over the batch": (
        lambda: b.make("layer_norm", (b.transpose(X),), at.NormAttrs(0.1)),
        "value of the whole batch",
    ),
    "norm of all rows at once": (
        lambda: b.make("rms_norm", (b.reshape(X, (BATCH * 4,)),), at.NormAttrs(0.1)),
        "is not linear in a mean over the batch inside (`sqrt`)",
    ),
    "group norm": (lambda: b.make("group_norm", (IMAGES,), at.GroupNormAttrs(2, 0.1)), Sharded(0)),
    "batch norm": (
        lambda: b.make("batch_norm", (IMAGES, b.constant([1.0, 2.0], IMAGES.type.dtype)), at.NormAttrs(0.1)),
        "broadcasts a value of the whole batch to each row",
    ),
    "gradient of a norm, x": (lambda: norm_gradients()[0], Sharded(0)),
    "gradient of a norm, weight": (lambda: norm_gradients()[1], Partial()),
    "attention of each example": (
        lambda: b.make("attention", (IMAGES, IMAGES, IMAGES), at.AttentionAttrs(True, 1.0)),
        Sharded(0),
    ),
    "attention over the batch": (
        lambda: b.make("attention", (X, X, X), at.AttentionAttrs(False, 1.0)),
        "multiplies rows",
    ),
    "where, of a sum": (lambda: b.where(b.less(BIAS, BIAS), rows_sum(X), b.full_like(BIAS, 0)), Partial()),
    "where, of a sum and one": (lambda: b.where(b.less(BIAS, BIAS), rows_sum(X), b.full_like(BIAS, 1)), "not linear"),
    "own gradient of rows": (lambda: own(X, X, lambda u, x: b.mul(u, x)), Sharded(0)),
    "own gradient of a parameter": (lambda: own(BIAS, BIAS, lambda u, x: b.mul(u, x)), Replicated()),
    "own gradient of a sum": (lambda: own(rows_sum(X), rows_sum(X), lambda u, x: b.scale(u, 2.0)), Partial()),
    "own gradient of a sum of rows": (
        lambda: own(rows_sum(X), X, lambda u, x: b.mul(b.expand_to(u, X.type.shape, (1,)), x)),
        Partial(),
    ),
    "own gradient with a sum": (
        lambda: own(X, X, lambda u, x: b.expand_to(rows_sum(u), X.type.shape, (1,))),
        "has a custom gradient in which `expand` broadcasts a value of the whole batch to each row",
    ),
    "own gradient that is not a sum": (lambda: own(BIAS, BIAS, lambda u, x: x), "does not add up over the parts"),
    "own gradient that reads a sum": (
        lambda: own(rows_sum(X), rows_sum(X), lambda u, x: b.mul(u, x)),
        "does not add up over the parts",
    ),
    "own gradient of a part of a sum": (lambda: own(BIAS, BIAS, lambda u, x: b.mul(u, u)), "not linear in a sum"),
    "own gradient with dropout": (
        lambda: own(X, X, _dropped),
        Sharded(0),
    ),
    "own gradient with dropout behind": (lambda: own(b.transpose(X), b.transpose(X), _dropped), "first axis is not"),
    "own gradient of a mean": (
        lambda: own(*[b.make("ratio", (rows_sum(X), b.expand_to(b.size(BATCH), (4,), ())))] * 2, lambda u, x: u),
        "for a mean over the batch",
    ),
    "mean over the batch": (
        lambda: b.make("ratio", (rows_sum(X), b.expand_to(b.size(BATCH), (4,), ()))),
        SumOfRatios(),
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_placement_of_an_op(what: str) -> None:
    make, expected = CASES[what]
    node = make()
    placement = placements_of([node], MeshAxis.of_batch("batch"))[node]
    if isinstance(expected, str):
        assert isinstance(placement, Mixed)
        assert expected in placement.reason
    else:
        assert placement == expected


@pytest.mark.parametrize("op", ["conv2d_grad_weight", "pooled_grad_weight"])
def test_a_sum_of_images_adds_up_unless_it_is_kept_in_parts(op: str) -> None:
    attrs, types, _ = GOOD[op]
    node = b.make(op, [Node("input", (), at.InputAttrs(f"x{i}", t)) for i, t in enumerate(types)], attrs)
    placement = placements_of([node], MeshAxis.of_batch("batch"))[node]
    if op == "conv2d_grad_weight":
        assert placement == Partial()
    else:  # sixteen sums: an image goes to one of them by its place in the batch
        assert isinstance(placement, Mixed)
        assert "by their position in the batch" in placement.reason


def test_every_op_has_a_placement_rule() -> None:
    gone = {"gradient", "call"}
    covered = {n for n, op in OPS.items() if n in PLACEMENT_RULES or op.family in (Family.POINTWISE, Family.LEAF)}
    where = "PLACEMENT_RULES of wholestep/compiler/passes/distribute/placement/rules.py"
    assert_equal_rows(covered, set(OPS) - gone, where)


def part(node: Node, value: Array, first: bool) -> Array:
    """The part of an input that belongs to the first two rows, or to the others."""
    for axis, extent in enumerate(node.type.shape):
        factor = divide(extent, BATCH) if "batch" in symbols_of([extent]) else None
        if factor is not None:
            cut = 2 * evaluate(factor, {"time": 4})
            return np.split(value, [cut], axis)[0 if first else 1]
    return value


def joined(one: Array, two: Array, placement: Sharded) -> Array:
    """Rows of two parts as rows of the whole: one behind the other, as often as the axis goes through the batch."""
    times = evaluate(placement.outer, {"time": 4})
    parts = [np.reshape(p, (*p.shape[: placement.axis], times, -1, *p.shape[placement.axis + 1 :])) for p in (one, two)]
    whole = np.concatenate(parts, placement.axis + 1)
    return whole.reshape((*one.shape[: placement.axis], -1, *one.shape[placement.axis + 1 :]))


@settings(max_examples=150)
@given(graphs(dtype=float64))
def test_parts_of_a_batch_do_what_the_placement_says(graph: IRGraph) -> None:
    # Rows of random numbers are counted over the whole step's batch; here each part would start at 0 again.
    draws = [n for n in graph.nodes if n.op in ("random", "dropout")]
    assume(all("batch" not in symbols_of(n.type.shape) for n in draws))
    assume(all(sum("batch" in symbols_of([e]) for e in n.type.shape) < 2 for n in graph.leaves("input").values()))
    extents = [e for n in graph.leaves("input").values() for e in n.type.shape if "batch" in symbols_of([e])]
    assume(all(divide(e, BATCH) is not None for e in extents))  # of batch + 1 rows, two parts have no two parts
    sizes = {s: {"batch": 5, "time": 4}[s] for s in graph.symbols}
    inputs, state = example_values(graph, sizes, np.random.default_rng(3))
    tensors = [n for n in graph.nodes if isinstance(n.result, TensorType)]
    probe = IRGraph(tuple(Output(str(i), n) for i, n in enumerate(tensors)), (), graph.inputs)
    whole = interpret(probe, inputs=inputs, state=state, sizes=sizes).outputs
    halves = []
    for first in (True, False):
        cut = {name: part(node, inputs[name], first) for name, node in graph.leaves("input").items()}
        smaller = {**sizes, **({"batch": 2 if first else 3} if "batch" in sizes else {})}
        halves.append(interpret(probe, inputs=cut, state=state, sizes=smaller).outputs)
    placements = placements_of(graph.nodes, MeshAxis.of_batch("batch"))
    for i, (node, placement) in enumerate((n, placements[n]) for n in tensors):
        one, two = (h[str(i)] for h in halves)
        close = {"rtol": 1e-7, "atol": 1e-8, "err_msg": f"{node} is {placement}"}
        if isinstance(placement, Replicated):
            np.testing.assert_allclose(one, whole[str(i)], **close)
        elif isinstance(placement, Sharded):
            np.testing.assert_allclose(joined(one, two, placement), whole[str(i)], **close)
        elif isinstance(placement, Partial):
            np.testing.assert_allclose(one + two, whole[str(i)], **close)
