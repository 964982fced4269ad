"""Losses that can be computed from parts of a batch, and losses that cannot."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.passes.common import Array, graph_of, leaf, mean, parameter, total
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node, SourceLine
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import Dim, float64, int32
from wholestep.compiler.passes.distribute.separability import Separation, separate_loss

BATCH = Dim.symbol("batch")
X = leaf("x", ("batch", 4))
Y = leaf("y", ("batch", 3))
LABELS = leaf("labels", ("batch",), int32)
W = parameter("w", (4, 3))
OUT = b.matmul(X, W)


def square(x: Node) -> Node:
    return b.mul(x, x)


def run(nodes: list[Node], rows: slice) -> list[Array]:
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(5, 4)), "y": rng.uniform(size=(5, 3)), "labels": np.array([0, 2, 1, 1, 0])}
    weights = {"w": rng.normal(size=(4, 3)), "s": np.array(0.7)}
    graph = graph_of(*nodes)
    given = {k: v[rows] for k, v in data.items() if k in graph.leaves("input")}
    held = {k: v for k, v in weights.items() if k in graph.states()}
    sizes = {"batch": len(data["x"][rows])} if graph.symbols else {}
    outputs = interpret(graph, inputs=given, state=held, sizes=sizes).outputs
    return [outputs[f"out{i}"] for i in range(len(nodes))]


def from_parts(found: Separation) -> float:
    """Σ weight·Σnumerator/Σdenominator + rest, with the sums over a part of two rows and one of three."""
    value = 0.0
    parts = [slice(0, 2), slice(2, 5)]
    for term in found.terms:
        numerator = sum(run([term.numerator], p)[0] for p in parts)
        denominator = sum(run([term.denominator], p)[0] for p in parts) if term.denominator else 1.0
        weight = run([term.weight], parts[0])[0] if term.weight else 1.0
        value += float(weight * numerator / denominator)
    return value + sum(float(run([node], parts[0])[0]) for node in found.rest)


def kept_rows() -> Node:
    """1 for rows that count, 0 for those with label 2."""
    counted = b.make("not_equal", (LABELS, b.full(2, LABELS.type)))
    return b.cast(counted, float64)


MSE = mean(square(b.sub(OUT, Y)))
L1 = mean(b.unary("abs", OUT))
IGNORING = b.make("ratio", (total(b.mul(b.make("cross_entropy", (OUT, LABELS)), kept_rows())), total(kept_rows())))
DECAY = b.scale(total(square(W)), 0.1)
S = parameter("s", ())

SEPARABLE = {
    "mean squared error by hand": (MSE, 1, 0),
    "sum": (total(square(OUT)), 1, 0),
    "sum over a fixed number": (b.div(total(OUT), b.constant(7, float64)), 1, 0),
    "cross entropy with ignored labels": (IGNORING, 1, 0),
    "weighted sum": (b.add(b.scale(MSE, 0.3), b.sub(b.div(IGNORING, b.constant(4, float64)), b.neg(L1))), 3, 0),
    "with weight decay": (b.add(MSE, b.scale(b.add(DECAY, L1), 2)), 2, 1),
    "a learnt weight": (b.add(b.mul(b.unary("exp", b.neg(S)), MSE), S), 1, 1),
    "a division by hand": (b.div(total(OUT), b.size(BATCH)), 1, 0),
    "a mean over a fixed number": (b.make("ratio", (MSE, b.constant(5, float64))), 1, 0),
    "no data": (DECAY, 0, 1),
}


@pytest.mark.parametrize("what", SEPARABLE)
def test_parts_add_up_to_the_whole(what: str) -> None:
    loss, terms, rest = SEPARABLE[what]
    found = separate_loss(graph_of(loss), loss)
    assert found.separable, found.reason
    assert (len(found.terms), len(found.rest)) == (terms, rest)
    assert found.outer is None
    np.testing.assert_allclose(from_parts(found), run([loss], slice(0, 5))[0], rtol=1e-12)


def test_weights_with_parameters_go_into_the_numerator() -> None:
    loss = b.mul(b.unary("exp", S), MSE)
    (term,) = separate_loss(graph_of(loss), loss).terms
    assert term.weight is None
    assert term.numerator.op == "mul"


ONE = b.constant(1, float64)
POSITIVE = b.less(b.constant(0, float64), MSE)
OUTER = {
    "root": b.unary("sqrt", MSE),
    "guarded root": b.where(POSITIVE, b.unary("sqrt", b.where(POSITIVE, MSE, ONE)), b.constant(0, float64)),
    "root and decay": b.add(b.unary("sqrt", MSE), DECAY),
}


@pytest.mark.parametrize("what", OUTER)
def test_one_function_of_one_quotient(what: str) -> None:
    loss = OUTER[what]
    found = separate_loss(graph_of(loss), loss)
    assert found.separable
    assert found.outer is loss
    (term,) = found.terms
    assert (term.numerator, term.denominator) == MSE.inputs


def softened() -> Node:
    return b.unary("sigmoid", OUT)


def dice() -> Node:
    p = softened()
    return b.make("ratio", (b.scale(total(b.mul(p, Y)), 2), b.add(total(p), total(Y))))


def info_nce() -> Node:
    scores = b.matmul(OUT, Y, False, True)
    return mean(b.make("cross_entropy", (scores, LABELS)))


def batch_norm() -> Node:
    count = b.expand_to(b.size(BATCH), (3,), ())
    centre = b.make("ratio", (b.sum_axes(OUT, (0,)), count))
    return mean(square(b.sub(OUT, b.expand_to(centre, OUT.type.shape, (1,)))))


BLAMED = {
    "dice": (dice, "ratio", "denominator that depends on parameters"),
    "info nce": (info_nce, "matmul", "multiplies rows of the batch with other rows"),
    "batch norm": (batch_norm, "expand", "broadcasts a value of the whole batch to each row"),
    "product of means": (lambda: b.mul(MSE, L1), "mul", "not linear in a mean"),
    "two roots": (lambda: b.add(b.unary("sqrt", MSE), b.unary("sqrt", L1)), "sqrt", "not linear in a mean"),
    "mean of means": (lambda: b.make("ratio", (MSE, b.size(BATCH))), "ratio", "does not divide a sum over the batch"),
    "worst row": (lambda: b.max_axes(b.make("cross_entropy", (OUT, LABELS)), (0,)), "max", "along the batch"),
}


@pytest.mark.parametrize("what", BLAMED)
def test_blame(what: str) -> None:
    make, op, reason = BLAMED[what]
    loss = make()
    found = separate_loss(graph_of(loss), loss)
    assert not found.separable
    assert found.blame is not None
    assert found.blame.op == op
    assert reason in found.reason


def test_the_blamed_node_has_the_line_of_the_user() -> None:
    worst = b.max_axes(b.make("cross_entropy", (OUT, LABELS)), (0,))
    loss = Node(worst.op, worst.inputs, worst.attrs, "worst", SourceLine("user.py", 21))
    blame = separate_loss(graph_of(loss), loss).blame
    assert str(blame.line if blame else None) == "user.py:21"


def test_another_name_for_the_batch() -> None:
    x = leaf("x", ("rows", 4))
    loss = mean(square(x))
    assert len(separate_loss(graph_of(loss), loss, batch="rows").terms) == 1
    assert separate_loss(graph_of(loss), loss).terms == ()
