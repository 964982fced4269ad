"""Every gradient rule, mid-graph and with an upstream gradient other than 1, against torch and finite differences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.ops import unary as functions
from tests.support.complete import assert_equal_rows, assert_has_rows
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.semantics.random import uniform
from wholestep.compiler.ir.types import TensorType, as_shape, float32, float64, int32, int64
from wholestep.compiler.passes.autodiff.reverse import expand_gradients, find_unreached
from wholestep.compiler.passes.autodiff.rules import GRADIENTS, Blocked, Refused
from wholestep.compiler.passes.lower.decompose import decompose
from wholestep.compiler.passes.simplify.inline import unroll_loops
from wholestep.errors import GradientError

Array = np.ndarray[Any, Any]


def leaf(name: str, shape: tuple[int | str, ...], dtype: Any = float64, line: int | None = None) -> Node:
    attrs = at.InputAttrs(name, TensorType(as_shape(shape), dtype))
    return Node("input", (), attrs, name, SourceLine("user.py", line) if line else None)


def gradient(loss: Node, *params: Node) -> list[Node]:
    g = Node("gradient", (loss, *params), at.NONE)
    return [Node("item", (g,), at.ItemAttrs(i)) for i in range(len(params))]


def evaluate(nodes: dict[str, Node], values: dict[str, Array]) -> dict[str, Array]:
    graph = expand_gradients(IRGraph(tuple(Output(k, n) for k, n in nodes.items())))
    used = graph.leaves("input")
    return interpret(graph, inputs={k: v for k, v in values.items() if k in used}).outputs


def total(x: Node) -> Node:
    return b.sum_axes(x, range(x.type.rank))


def op(name: str, attrs: at.Attrs = at.NONE) -> Callable[..., Node]:
    return lambda *xs: b.make(name, xs, attrs)


def check(ours: Callable[..., Node], theirs: Callable[..., torch.Tensor], *xs: Array, second: bool = True) -> None:
    """loss = 2.5·Σ w·op(1.5·x): value, gradient and (second) the gradient of ‖gradient‖², against torch; gradient
    also by central differences along a random direction."""
    rng = np.random.default_rng(7)
    names = [f"x{i}" for i in range(len(xs))]
    leaves = [leaf(n, x.shape) for n, x in zip(names, xs)]
    y = ours(*(b.scale(x, 1.5) for x in leaves))
    w = rng.normal(size=y.type.shape)
    loss = b.scale(total(b.mul(y, b.constant(w, float64))), 2.5)
    grads = gradient(loss, *leaves)
    nodes = {"loss": loss, **{f"g{n}": g for n, g in zip(names, grads)}}
    values = dict(zip(names, xs))
    if second:
        squares = [total(b.mul(g, g)) for g in grads]
        size = functools.reduce(b.add, squares)
        nodes |= {f"h{n}": g for n, g in zip(names, gradient(size, *leaves))}
    got = evaluate(nodes, values)

    tensors = [torch.tensor(x, requires_grad=True) for x in xs]
    expected = 2.5 * (theirs(*(1.5 * t for t in tensors)) * torch.tensor(w)).sum()
    first = torch.autograd.grad(expected, tensors, create_graph=second)
    close = {"rtol": 1e-9, "atol": 1e-11}
    np.testing.assert_allclose(got["loss"], expected.detach(), **close)
    for n, t in zip(names, first):
        np.testing.assert_allclose(got[f"g{n}"], t.detach(), **close, err_msg=f"d{n}")
    if second:
        norm = sum((t * t).sum() for t in first)
        for n, t in zip(names, torch.autograd.grad(norm, tensors)):
            np.testing.assert_allclose(got[f"h{n}"], t, **close, err_msg=f"second d{n}")
    _check_differences(loss, names, values, got, rng)


def _check_differences(loss: Node, names: list[str], values: dict[str, Array], got: Any, rng: Any) -> None:
    direction = {n: rng.normal(size=values[n].shape) for n in names}
    eps = 1e-6
    up, down = (
        float(evaluate({"loss": loss}, {n: values[n] + s * direction[n] for n in names})["loss"]) for s in (eps, -eps)
    )
    slope = sum((got[f"g{n}"] * direction[n]).sum() for n in names)
    np.testing.assert_allclose((up - down) / (2 * eps), slope, rtol=1e-6, atol=1e-6)


def numbers(*shape: int, low: float = -2, high: float = 2, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(low, high, shape)


ANY, POSITIVE = numbers(3, 4), numbers(3, 4, low=0.3)
OTHER = numbers(3, 4, seed=1)

# In pieces, at least: the gradient does not depend on the input, so there is no second one to compare.
LINEAR = {"add", "sub", "maximum", "minimum"}

UNARY = {name: row for name, row in (functions.UNARY | functions.SIGNED).items() if row.slope}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    row = UNARY[name]
    x = POSITIVE if row.domain is functions.Domain.POSITIVE else ANY
    check(op(name), row.theirs, x, second=row.curved)


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu(approximate: bool) -> None:
    how = "tanh" if approximate else "none"
    check(op("gelu", at.GeluAttrs(approximate)), lambda x: F.gelu(x, approximate=how), ANY)


def seen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = 0.7 * q @ k.mT
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -torch.inf).softmax(-1) @ v


LAYERS = {
    "layer_norm": (at.NormAttrs(0.01), lambda x, *p: F.layer_norm(x, (4,), *p, eps=0.01), ((3, 4), (4,), (4,))),
    "rms_norm": (at.NormAttrs(0.01), lambda x, *p: F.rms_norm(x, (4,), *p, eps=0.01), ((2, 3, 4), (4,))),
    "group_norm": (at.GroupNormAttrs(2, 0.01), lambda x, *p: F.group_norm(x, 2, *p, eps=0.01), ((2, 6, 3), (6,), (6,))),
    "batch_norm": (
        at.NormAttrs(0.01),
        lambda x, *p: F.batch_norm(x, None, None, *p, training=True, eps=0.01),
        ((4, 3, 2), (3,), (3,)),
    ),
    "attention": (at.AttentionAttrs(True, 0.7), seen, ((2, 4, 3), (2, 5, 3), (2, 5, 2))),
}


@pytest.mark.parametrize(("name", "inputs"), [(n, i) for n in LAYERS for i in (1, 2, 3) if n != "attention" or i == 3])
def test_layers(name: str, inputs: int) -> None:
    attrs, theirs, shapes = LAYERS[name]
    arrays = [numbers(*shape, seed=i) for i, shape in enumerate(shapes[:inputs])]
    # Squared: the gradient of a bias would not depend on it otherwise, and have no gradient itself.
    check(lambda *xs: squared(op(name, attrs)(*xs)), lambda *xs: theirs(*xs) ** 2, *arrays)


def squared(x: Node) -> Node:
    return b.mul(x, x)


def test_dropout() -> None:
    rate, x = b.constant(0.4, float64), numbers(30, 4)
    kept = torch.from_numpy(uniform(0, "k", 0, x.shape)) >= 0.4
    check(
        lambda x: b.make("dropout", (b.mul(x, x), rate), at.DropoutAttrs("k")),
        lambda x: torch.where(kept, x * x / 0.6, 0.0),
        x,
    )


def test_one_tensor_as_queries_keys_and_values() -> None:
    ours = op("attention", at.AttentionAttrs(True, 0.7))
    check(lambda x: ours(x, b.unary("sin", x), x), lambda x: seen(x, x.sin(), x), numbers(2, 4, 3))


def test_grouped_heads_and_their_second_order() -> None:
    def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return seen(q, k.repeat_interleave(3, -3), v.repeat_interleave(3, -3))

    shapes = ((6, 4, 3), (2, 5, 3), (2, 5, 2))
    check(op("attention", at.AttentionAttrs(True, 0.7)), theirs, *(numbers(*s, seed=i) for i, s in enumerate(shapes)))


def test_log_sum_of_exponentials_of_attention() -> None:
    values, attrs = b.constant(numbers(2, 5, 2), float64), at.AttentionAttrs(False, 0.7)
    check(
        lambda q, k, mask: b.make("attention_lse", (q, k, values, mask), attrs),
        lambda q, k, mask: torch.logsumexp(0.7 * q @ k.mT.repeat_interleave(2, -3) + mask, -1),
        *(numbers(*s, seed=i) for i, s in enumerate(((4, 4, 3), (2, 5, 3), (4, 4, 5)))),
    )


def test_gradients_that_nobody_reads_are_not_there() -> None:
    x, weight = leaf("x", (3, 4)), leaf("weight", (4,))
    (dx,) = gradient(total(b.unary("sin", b.make("layer_norm", (x, weight), at.NormAttrs(0.1)))), x)
    lowered = decompose(expand_gradients(IRGraph((Output("dx", dx),))))
    assert not [n for n in lowered.nodes if n.op == "sum" and n.type.shape == (4,)]


BINARY = {
    "add": (torch.add, ANY, OTHER),
    "sub": (torch.sub, ANY, OTHER),
    "mul": (torch.mul, ANY, OTHER),
    "div": (torch.div, ANY, POSITIVE),
    "ratio": (torch.div, ANY, POSITIVE),
    "pow": (torch.pow, POSITIVE, OTHER),
    "maximum": (torch.maximum, ANY, OTHER),
    "minimum": (torch.minimum, ANY, OTHER),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    theirs, x, y = BINARY[name]
    check(op(name), theirs, x, y, second=name not in LINEAR)


@pytest.mark.parametrize("exponent", [3.0, 2.0, 1.0, 0.5, -1.0])
def test_power_by_a_constant(exponent: float) -> None:
    check(lambda x: b.power(x, b.full_like(x, exponent)), lambda x: x**exponent, POSITIVE)


def test_where() -> None:
    check(
        lambda x, y: b.where(b.less(x, y), b.mul(x, y), b.unary("sin", y)),
        lambda x, y: torch.where(x < y, x * y, torch.sin(y)),
        ANY,
        OTHER,
    )


def test_cast_between_floats() -> None:
    check(lambda x: b.cast(b.cast(b.mul(x, x), float32), float64), lambda x: x * x, ANY)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_sum(axes: tuple[int, ...]) -> None:
    check(lambda x: b.sum_axes(b.mul(x, x), axes), lambda x: (x * x).sum(axes), numbers(2, 3, 4))


@pytest.mark.parametrize("axes", [(1,), (0, 2)])
def test_max(axes: tuple[int, ...]) -> None:
    check(lambda x: b.max_axes(b.mul(x, x), axes), lambda x: torch.amax(x * x, axes), numbers(2, 3, 4))


def test_reshape_permute_expand() -> None:
    check(
        lambda x: b.expand_to(b.permute(b.reshape(b.mul(x, x), (2, 6)), (1, 0)), (6, 5, 2), (0, 2)),
        lambda x: (x * x).reshape(2, 6).T[:, None, :].expand(6, 5, 2),
        numbers(3, 4),
    )


@pytest.mark.parametrize("cut", [(0, 7, 1), (2, 5, 1), (1, 7, 2), (0, 6, 3), (0, 7, 3), (2, 7, 4), (3, 4, 5)])
def test_slice(cut: tuple[int, int, int]) -> None:
    start, stop, step = cut
    check(
        lambda x: b.slice_axes(b.mul(x, x), (start, 1), (stop, 4), (step, 2)),
        lambda x: (x * x)[start:stop:step, 1:4:2],
        numbers(7, 5),
    )


def test_pad_and_concat() -> None:
    check(
        lambda x, y: b.concat([b.pad(b.mul(x, x), (1, 0), (2, 3), -1.0), b.mul(y, y)], 0),
        lambda x, y: torch.cat([F.pad(x * x, (0, 3, 1, 2), value=-1.0), y * y]),
        numbers(2, 3),
        numbers(4, 6),
    )


INDEX = np.array([[2, 0, 2], [1, 2, 2]], dtype=np.int32)


@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis: int) -> None:
    def theirs(x: torch.Tensor) -> torch.Tensor:
        rows = torch.index_select(x * x, axis, torch.tensor(INDEX.ravel()))
        return rows.reshape(*x.shape[:axis], *INDEX.shape, *x.shape[axis + 1 :])

    check(lambda x: b.gather(b.mul(x, x), b.constant(INDEX, int32), axis), theirs, numbers(3, 3))


@pytest.mark.parametrize("start", [-1, 2, 5, 9])
def test_write_rows(start: int) -> None:
    x, r = leaf("x", (6, 3)), leaf("r", (4, 3))
    y = b.write_rows(x, r, b.constant(start, int64))
    dx, dr = gradient(total(b.mul(y, y)), x, r)
    found = evaluate({"dx": dx, "dr": dr}, {"x": numbers(6, 3), "r": numbers(4, 3, seed=1)})
    places = np.arange(start, start + 4)
    inside = (places >= 0) & (places < 6)
    kept = ~np.isin(np.arange(6), places)
    np.testing.assert_allclose(found["dx"], 2 * numbers(6, 3) * kept[:, None])
    np.testing.assert_allclose(found["dr"], 2 * numbers(4, 3, seed=1) * inside[:, None])


@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_add(axis: int) -> None:
    def theirs(u: torch.Tensor) -> torch.Tensor:
        flat = u.flatten(axis, axis + 1)
        shape = list(flat.shape)
        shape[axis] = 4
        return torch.zeros(shape, dtype=u.dtype).index_add(axis, torch.tensor(INDEX.ravel()), flat) ** 2

    def ours(u: Node) -> Node:
        y = b.scatter_add(u, b.constant(INDEX, int32), axis, 4)
        return b.mul(y, y)

    check(ours, theirs, numbers(*((2, 3, 5) if axis == 0 else (5, 2, 3))))


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("flags", [(False, False), (False, True), (True, False), (True, True)])
def test_matmul(flags: tuple[bool, bool], batch: tuple[int, ...]) -> None:
    ta, tb = flags
    x = numbers(*batch, *((4, 3) if ta else (3, 4)))
    y = numbers(*batch, *((5, 4) if tb else (4, 5)), seed=1)
    turn = lambda t, flag: t.mT if flag else t  # noqa: E731
    check(lambda p, q: b.matmul(p, q, ta, tb), lambda p, q: turn(p, ta) @ turn(q, tb), x, y)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax(name: str, axis: int) -> None:
    check(op(name, at.SoftmaxAttrs(axis)), lambda x: getattr(F, name)(x, axis), ANY)


@pytest.mark.parametrize("axis", [0, 1])
def test_logsumexp(axis: int) -> None:
    check(op("logsumexp", at.SoftmaxAttrs(axis)), lambda x: x.logsumexp(axis), ANY)


def test_bce_with_logits() -> None:
    check(
        lambda x, y: b.make("bce_with_logits", (x, y)),
        lambda x, y: x.clamp(min=0) - x * y + torch.log1p(torch.exp(-x.abs())),
        numbers(3, 4),
        numbers(3, 4, seed=1),
    )


def test_cross_entropy() -> None:
    labels = np.array([2, 0, 3], dtype=np.int32)
    check(
        lambda x: b.make("cross_entropy", (x, b.constant(labels, int32))),
        lambda x: F.cross_entropy(x, torch.tensor(labels).long(), reduction="none"),
        ANY,
    )


def test_relu() -> None:
    check(lambda x: b.mul(b.unary("relu", x), x), lambda x: torch.relu(x) * x, ANY)


# -- conventions at ties and zeros -------------------------------------------------------------------------------


def slope(f: Callable[[Node], Node], at_values: list[float], upstream: float = 1.0) -> list[float]:
    x = leaf("x", (len(at_values),))
    (g,) = gradient(b.scale(total(f(x)), upstream), x)
    return evaluate({"g": g}, {"x": np.array(at_values)})["g"].tolist()  # type: ignore[no-any-return]


def test_max_shares_among_ties() -> None:
    assert slope(lambda x: b.max_axes(x, (0,)), [3, 7, 5], 2.5) == [0, 2.5, 0]
    assert slope(lambda x: b.max_axes(x, (0,)), [2, 7, 7]) == [0, 0.5, 0.5]


def test_maximum_and_minimum_share_ties() -> None:
    two = lambda x: b.full_like(x, 2)  # noqa: E731
    assert slope(lambda x: b.maximum(x, two(x)), [1, 2, 3]) == [0, 0.5, 1]
    assert slope(lambda x: b.make("minimum", (x, two(x))), [1, 2, 3]) == [1, 0.5, 0]


def test_relu_and_abs_at_zero() -> None:
    assert slope(lambda x: b.unary("relu", x), [-1, 0, 2]) == [0, 0, 1]
    assert slope(lambda x: b.unary("abs", x), [-1, 0, 2]) == [-1, 0, 1]


def test_power_at_zero_is_finite() -> None:
    x, c = leaf("x", (3,)), leaf("c", (3,))
    dx, dc = gradient(total(b.power(x, c)), x, c)
    got = evaluate({"dx": dx, "dc": dc}, {"x": np.zeros(3), "c": np.array([0.0, 1.0, 2.0])})
    assert got["dx"].tolist() == [0, 1, 0]
    assert got["dc"].tolist() == [0, 0, 0]
    assert slope(lambda t: b.power(t, b.full_like(t, 0)), [0, 2]) == [0, 0]


def test_where_keeps_an_infinite_gradient_out_of_the_other_branch() -> None:
    # √0 sends an infinite gradient back; as a product with the condition it would arrive as 0·∞ = NaN.
    clipped = lambda x: b.unary("sqrt", b.where(b.less(b.zeros_like(x), x), x, b.zeros_like(x)))  # noqa: E731
    assert slope(clipped, [-1, 4]) == [0, 0.25]


def test_comparison_beside_another_path() -> None:
    assert slope(lambda x: b.mul(x, b.cast(b.less(b.zeros_like(x), x), float64)), [-1, 2]) == [0, 1]


@pytest.mark.parametrize("name", ["floor", "sign", "stop_gradient"])
def test_constant_parts_pass_no_gradient(name: str) -> None:
    assert slope(lambda x: b.add(x, b.unary(name, x)), [0.5, -1.5]) == [1, 1]


# -- the walk ----------------------------------------------------------------------------------------------------


def test_loss_with_respect_to_itself_and_sum_of_uses() -> None:
    x = leaf("x", ())
    loss = b.add(b.mul(x, x), b.scale(x, 3))
    own, dx = gradient(loss, loss, x)
    got = evaluate({"own": own, "dx": dx}, {"x": np.array(2.0)})
    assert (got["own"], got["dx"]) == (1, 7)


def test_order_of_parameters_and_intermediate_ones() -> None:
    x = leaf("x", (2,))
    h = b.mul(x, x)
    loss = total(b.unary("sin", h))
    values = {"x": np.array([0.3, 0.7])}
    for order in ((x, h), (h, x)):
        got = evaluate({n.op: g for n, g in zip(order, gradient(loss, *order))}, values)
        np.testing.assert_allclose(got["mul"], np.cos(values["x"] ** 2))
        np.testing.assert_allclose(got["input"], 2 * values["x"] * np.cos(values["x"] ** 2))


def test_branches_off_the_path_cost_nothing() -> None:
    x, other = leaf("x", (3,)), leaf("other", (3,))

    def count(loss: Node) -> int:
        forward = IRGraph((Output("loss", loss),)).nodes
        whole = expand_gradients(IRGraph((Output("loss", loss), Output("g", gradient(loss, x)[0])))).nodes
        return len(whole) - len(forward)

    plain = total(b.mul(x, x))
    assert count(b.add(plain, total(b.unary("exp", other)))) == count(b.add(plain, b.constant(1, float64)))


def test_seed_of_a_mean_stays_a_host_scalar() -> None:
    x = leaf("x", ("batch", 3))
    count = b.size(x.type.elements)
    loss = b.make("ratio", (total(b.mul(x, x)), count))
    graph = expand_gradients(IRGraph((Output("g", gradient(loss, x)[0]),)))
    divisions = [n for n in graph.nodes if n.op == "div"]
    assert [n.host for n in divisions] == [True]
    got = interpret(graph, inputs={"x": np.ones((2, 3))}).outputs["g"]
    np.testing.assert_allclose(got, np.full((2, 3), 2 / 6))


def test_symbolic_slice_from_the_end() -> None:
    x = leaf("x", ("batch", 2))
    batch = x.type.shape[0]
    last = b.slice_axes(b.mul(x, x), (batch - 1, 0), (batch, 2))
    got = evaluate({"g": gradient(total(last), x)[0]}, {"x": np.ones((3, 2))})["g"]
    assert got.tolist() == [[0, 0], [0, 0], [2, 2]]


def test_seed_can_be_given() -> None:
    x = leaf("x", ())
    graph = IRGraph((Output("g", gradient(b.mul(x, x), x)[0]),))
    weighted = expand_gradients(graph, seed=lambda loss: b.constant(10, loss.type.dtype))
    assert interpret(weighted, inputs={"x": np.array(3.0)}).outputs["g"] == 60


def test_gradients_carry_the_forward_line() -> None:
    x = leaf("x", (), line=3)
    loss = Node("exp", (x,), at.NONE, "y", SourceLine("user.py", 12))
    g = expand_gradients(IRGraph((Output("g", gradient(loss, x)[0]),))).outputs[0].node
    assert (g.op, str(g.line), g.name) == ("mul", "user.py:12", "gradient of y")


# -- errors ------------------------------------------------------------------------------------------------------


def line(node: Node, number: int) -> Node:
    return Node(node.op, node.inputs, node.attrs, node.name, SourceLine("user.py", number))


def test_only_path_through_a_comparison() -> None:
    w = leaf("w", (3,), line=4)
    below = line(b.less(b.scale(w, 2), b.full_like(w, 1)), 9)
    loss = total(b.cast(below, float64))
    with pytest.raises(GradientError) as error:
        evaluate({"g": gradient(loss, w)[0]}, {})
    text = str(error.value)
    assert "no gradient reaches `w` (user.py:4): `less` (user.py:9) is its only path to the loss" in text
    assert "w -> mul -> less" in text
    assert "returns booleans" in text
    assert find_unreached(loss, [w]) == [w]


def test_integer_result_is_the_only_path() -> None:
    w = leaf("w", (3,))
    with pytest.raises(GradientError, match="`cast` is its only path to the loss, and it returns int32"):
        evaluate({"g": gradient(total(b.cast(b.cast(w, int32), float64)), w)[0]}, {})


def test_parameter_without_a_path() -> None:
    w, x = leaf("w", (3,), line=4), leaf("x", (3,))
    with pytest.raises(GradientError, match=r"`w` \(user.py:4\) takes no part in the loss"):
        evaluate({"g": gradient(total(x), w)[0]}, {})
    assert find_unreached(total(x), [w, x]) == [w]


def test_gradient_at_mod() -> None:
    w = leaf("w", (3,))
    y = line(b.make("mod", (b.unary("exp", w), b.full_like(w, 2))), 11)
    with pytest.raises(GradientError, match=r"arrived at `mod` \(user.py:11\), on the path w -> exp -> mod"):
        evaluate({"g": gradient(b.add(total(w), total(y)), w)[0]}, {})


# -- completeness ------------------------------------------------------------------------------------------------


def test_every_op_has_a_row() -> None:
    assert_equal_rows(GRADIENTS, OPS, "GRADIENTS of wholestep/compiler/passes/autodiff/rules.py")


TESTED_BY_NAME = {"gelu", "where", "cast", "sum", "max", "reshape", "permute", "expand", "slice", "pad", "concat"}
TESTED_BY_NAME |= {"gather", "scatter_add", "matmul", "softmax", "log_softmax", "cross_entropy", "relu", "item"}
TESTED_BY_NAME |= {"write_rows", "dropout", "logsumexp", "bce_with_logits", "by_mode", "attention_lse"}
TESTED_BY_NAME |= {"scan", "custom_gradient"}
TESTED_BY_NAME |= {"all_reduce", "reduce_scatter", "all_gather"}  # in tests/distributed/test_collectives.py


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_has_the_gradients_of_its_steps_written_out(reverse: bool) -> None:
    c, x, w = leaf("c", (2, 3)), leaf("x", (2, 3)), leaf("w", (3, 3))
    body_c, body_x, body_w = (Node("input", (), at.InputAttrs(n.attrs.name, n.type)) for n in (c, x, w))
    after = b.unary("tanh", b.add(b.matmul(body_c, body_w, transpose_b=True), body_x))
    body = IRGraph((Output("c", after), Output("y", b.mul(after, body_x))), (), (body_c, body_x, body_w))
    xs = leaf("xs", (4, 2, 3))
    trail, ys = b.results("scan", (c, xs, w), at.ScanAttrs(body, 1, 1, 4, reverse))
    loss = b.add(total(b.mul(trail, trail)), total(b.mul(ys, ys)))
    (flat,) = (o.node for o in unroll_loops(IRGraph((Output("loss", loss),))).outputs)
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=shape) for name, shape in (("c", (2, 3)), ("xs", (4, 2, 3)), ("w", (3, 3)))}
    found, expected = (
        evaluate({str(i): g for i, g in enumerate(gradient(root, c, xs, w))}, values) for root in (loss, flat)
    )
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12)


def taught(y: Node, x: Node, value: Node) -> Node:
    """y, for which x gets upstream · value, once more where nothing arrives at a second result."""
    names = (("u0", y), ("u1", y), ("a0", x), ("v0", value))
    u0, u1, a0, v0 = (Node("input", (), at.InputAttrs(n, like.type)) for n, like in names)
    slope = b.add(b.mul(u0, v0), b.mul(u1, a0))
    held = IRGraph((Output("y0", slope),), (), (u0, u1, a0, v0))
    return b.results("custom_gradient", (y, b.neg(y), x, value), at.CustomGradientAttrs(held, 2))[0]


def test_a_custom_gradient_is_what_it_computes() -> None:
    x, v = leaf("x", (3,)), leaf("v", (3,))
    y = taught(b.unary("floor", x), b.scale(x, 2.0), v)
    (dx,) = gradient(total(b.mul(y, v)), x)
    (dv,) = gradient(total(dx), v)  # dx = 2 v · v
    values = {"x": numbers(3), "v": numbers(3, seed=1)}
    found = evaluate({"y": y, "dx": dx, "dv": dv}, values)
    np.testing.assert_allclose(found["y"], np.floor(values["x"]))
    np.testing.assert_allclose(found["dx"], 2.0 * values["v"] ** 2)
    np.testing.assert_allclose(found["dv"], 4.0 * values["v"])


def test_what_a_custom_gradient_reads_gets_no_gradient() -> None:
    x, v = leaf("x", (3,)), leaf("v", (3,))
    assert find_unreached(total(taught(b.mul(x, v), x, v)), [x, v]) == [v]


# Against torch, first and second order, through the compiled path: tests/ops/cases/windows.py.
WINDOWS = {"conv2d", "conv2d_grad_input", "conv2d_grad_weight", "max_pool2d", "max_pool2d_grad", "max_pool2d_pick"}


def test_every_rule_is_tested_or_says_why_it_is_none() -> None:
    rules = {n for n, row in GRADIENTS.items() if not isinstance(row, Blocked | Refused)}
    # Ops that are expanded or inlined before the backward walk, or created after it.
    gone = {"gradient", "call", "exchange", "pooled_grad_input", "pooled_grad_weight"}
    several = {f"{name}_grad" for name in LAYERS}  # their items have gradients: the second order of LAYERS
    tested = {*UNARY, *BINARY, *LAYERS, *TESTED_BY_NAME, *WINDOWS}
    assert_has_rows(
        tested | gone | several,
        rules,
        "UNARY of tests/ops/unary.py, or BINARY or LAYERS of tests/compiler/passes/test_autodiff.py",
    )
    assert rules - tested == gone | several


def test_a_gradient_goes_to_the_value_in_training() -> None:
    x, y = leaf("x", (3,)), leaf("y", (3,))
    both = b.make("by_mode", (b.scale(x, 3.0), y))
    (dx,) = gradient(total(b.mul(both, both)), x)
    found = evaluate({"dx": dx}, {"x": numbers(3), "y": numbers(3, seed=1)})
    np.testing.assert_allclose(found["dx"], 18.0 * numbers(3))


def test_a_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    x = leaf("x", (3,))
    monkeypatch.setitem(GRADIENTS, "exp", lambda y, g: (total(g),))
    with pytest.raises(AssertionError, match=r"gradient rule of exp gave float64\[\] for float64\[3\]"):
        evaluate({"g": gradient(total(b.unary("exp", x)), x)[0]}, {})
