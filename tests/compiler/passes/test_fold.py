"""Each identity, what must not be folded, and equal values on random graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given

from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import assert_same_values, graph_of, leaf, mean, ops_of
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import float32, float64, int32
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.simplify.fold import fold


def folded(node: Node) -> Node:
    graph = graph_of(node)
    after = fold(graph)
    assert_same_values(graph, after)
    return after.outputs[0].node


X = leaf("x", (3, 4))
Y = leaf("y", (3, 4))

GONE: dict[str, Callable[[], Node]] = {
    "x + 0": lambda: b.shift(X, 0),
    "0 + x": lambda: b.add(b.zeros_like(X), X),
    "x - 0": lambda: b.sub(X, b.zeros_like(X)),
    "x * 1": lambda: b.scale(X, 1),
    "1 * x": lambda: b.mul(b.full_like(X, 1), X),
    "x / 1": lambda: b.div(X, b.full_like(X, 1)),
    "x ** 1": lambda: b.power(X, b.full_like(X, 1)),
    "- - x": lambda: b.neg(b.neg(X)),
    "x * -1 * -1": lambda: b.scale(b.scale(X, -1), -1),
    "where(true, x, y)": lambda: b.where(b.full(True, b.less(X, Y).type), X, Y),
    "where(false, y, x)": lambda: b.where(b.full(False, b.less(X, Y).type), Y, X),
    "where(c, x, x)": lambda: b.where(b.less(X, Y), X, X),
    "permute back": lambda: b.permute(b.permute(X, (1, 0)), (1, 0)),
    "permute to itself": lambda: b.make("permute", (X,), at.PermuteAttrs((0, 1))),
    "reshape back": lambda: b.reshape(b.reshape(b.reshape(X, (2, 6)), (12,)), (3, 4)),
    "expand to itself": lambda: b.make("expand", (X,), at.ExpandAttrs((3, 4), (0, 1))),
    "slice of all": lambda: b.slice_axes(X, (0, 0), (3, 4)),
    "pad by nothing": lambda: b.make("pad", (X,), at.PadAttrs((0, 0), (0, 0), 1.0)),
    "concat of one": lambda: b.make("concat", (X,), at.ConcatAttrs(0)),
    "cast to itself": lambda: b.make("cast", (X,), at.CastAttrs(float64)),
    "sum over a single term": lambda: b.sum_axes(b.reshape(X, (3, 1, 4)), (1,)),
}


@pytest.mark.parametrize("what", GONE)
def test_disappears(what: str) -> None:
    assert folded(GONE[what]()) is X


BECOMES: dict[str, tuple[Callable[[], Node], set[str]]] = {
    "x + -y = x - y": (lambda: b.add(X, b.neg(Y)), {"sub"}),
    "-x + y = y - x": (lambda: b.add(b.neg(X), Y), {"sub"}),
    "x - -y = x + y": (lambda: b.sub(X, b.neg(Y)), {"add"}),
    "x ** 2 = x * x": (lambda: b.power(X, b.full_like(X, 2)), {"mul"}),
    "x ** -1 = 1 / x": (lambda: b.power(X, b.full_like(X, -1)), {"recip"}),
    "x ** 0 = 1": (lambda: b.power(X, b.full_like(X, 0)), {"constant", "expand"}),
    "constants are computed": (lambda: b.mul(X, b.scale(b.full_like(X, 2), 3)), {"mul"}),
    "a moved number": (lambda: b.permute(b.reshape(b.full_like(X, 2), (12, 1)), (1, 0)), {"constant", "expand"}),
    "a fixed size": (lambda: b.scale(b.size(6), 2), {"constant"}),
    "a small sum": (lambda: b.sum_axes(b.constant([1.0, 2.0, 4.0], float64), (0,)), {"constant"}),
}


@pytest.mark.parametrize("what", BECOMES)
def test_becomes(what: str) -> None:
    make, ops = BECOMES[what]
    made = ops_of(graph_of(folded(make())))
    assert set(made) - {"input", "constant", "expand"} == ops - {"constant", "expand"}
    assert made.count("constant") <= 1


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_transposed_operands_become_flags(flags: tuple[bool, bool]) -> None:
    ta, tb = flags
    x = leaf("x", (2, 3, 4) if ta else (2, 4, 3))
    y = leaf("y", (2, 4, 5) if tb else (2, 5, 4))
    node = folded(b.matmul(b.transpose(x), b.transpose(y), ta, tb))
    assert node.inputs == (x, y)
    assert node.attrs == at.MatmulAttrs(not ta, not tb, float64)


def test_leading_axes_are_no_transpose() -> None:
    x, y = leaf("x", (2, 3, 4)), leaf("y", (3, 4, 5))
    assert folded(b.matmul(b.permute(x, (1, 0, 2)), b.slice_axes(y, (0, 0, 0), (3, 4, 5)))).inputs[0].op == "permute"


def test_zero_times_x_stays() -> None:
    # It is NaN where x is infinite; a fold would hide that.
    assert folded(b.scale(X, 0)).op == "mul"


def test_a_large_constant_stays_an_expression() -> None:
    assert folded(b.unary("neg", b.constant(np.arange(65.0), float64))).op == "neg"
    assert folded(b.unary("neg", b.constant(np.arange(64.0), float64))).op == "constant"


def test_float32_tensors_are_computed_in_float32() -> None:
    third = b.div(b.constant([1.0], float32), b.constant([3.0], float32))
    value = fold(graph_of(b.mul(third, third))).outputs[0].node.attrs.array.value  # type: ignore[attr-defined]
    assert value.dtype == np.float32
    assert value[0] == (np.float32(1) / np.float32(3)) ** 2


def test_integers_do_not_become_floats() -> None:
    node = folded(b.add(b.constant([2**31 - 2], int32), b.constant([1], int32)))
    assert node.attrs.array.value.tolist() == [2**31 - 1]  # type: ignore[attr-defined]


def test_a_lossy_detour_stays() -> None:
    whole = b.cast(b.cast(X, int32), float64)
    assert folded(whole).op == "cast"
    narrow = leaf("n", (3,), float32)
    assert folded(b.cast(b.cast(narrow, float64), float32)) is narrow
    assert fold(graph_of(b.cast(b.cast(X, float32), float64))).outputs[0].node.op == "cast"


def test_arithmetic_on_repeated_values_happens_before_they_are_repeated() -> None:
    row, scalar = leaf("row", (4,)), leaf("s", ())
    product = b.mul(b.expand_to(row, (3, 4), (1,)), b.expand_to(scalar, (3, 4), ()))
    node = folded(b.add(product, b.expand_to(row, (3, 4), (1,))))
    assert (node.op, node.inputs[0].type.shape) == ("expand", (4,))
    other_axis = b.mul(b.expand_to(row, (4, 4), (1,)), b.expand_to(row, (4, 4), (0,)))
    assert folded(other_axis).op == "mul"


def test_mean_gradient_divides_on_the_host_only() -> None:
    x = leaf("x", ("batch", 4))
    loss = mean(b.power(x, b.full_like(x, 2)))
    gradient = Node("gradient", (loss, x), at.NONE)
    graph = IRGraph((Output("g", Node("item", (gradient,), at.ItemAttrs(0))),), (), (x,))
    after = fold(expand_gradients(graph))
    assert sorted(n.op for n in after.nodes if n.type.rank == 2) == ["expand", "input", "mul"]  # (2/size)·x
    assert [n.host for n in after.nodes if n.op == "div"] == [True]


@given(graphs(dtype=float64))
def test_values_are_kept(graph: IRGraph) -> None:
    after = fold(graph)
    assert_same_values(graph, after)
    assert fold(after) is after


def test_what_has_several_results_or_draws_numbers_is_not_computed() -> None:
    x = b.constant([1.0, 2.0], float64)
    kept = [
        *b.results("layer_norm_grad", (x, x, x), at.NormAttrs(0.1)),
        b.make("dropout", (x, b.constant(0.5, float64)), at.DropoutAttrs("k")),
    ]
    graph = graph_of(*kept)
    assert fold(graph) is graph
