"""The meaning of every op, against torch where it has the op; then the rules of a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.compiler.ir import window_values
from tests.ops.unary import UNARY, Domain
from tests.support.complete import assert_equal_rows
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.semantics.interpret import VALUES, infer_sizes, interpret
from wholestep.compiler.ir.semantics.random import uniform
from wholestep.compiler.ir.types import (
    Dim,
    TensorType,
    as_dtype,
    as_shape,
    boolean,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from wholestep.errors import GradientError, InputError, UnknownNameError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 3, 4))
POSITIVE = np.abs(X) + 0.1
INT, INT2 = RNG.integers(-9, 9, (3, 4)).astype(np.int32), RNG.integers(1, 5, (3, 4)).astype(np.int32)
BOOL, BOOL2 = X > 0, Y > 0
LABELS = np.array([[0, 3, 1], [2, 2, 0]])
DATA, INDEX = RNG.normal(size=(5, 3)), np.array([[1, 4], [0, 4]])
ROW, ROW2, IMAGES = RNG.normal(size=4), RNG.normal(size=4), RNG.normal(size=(2, 4, 3, 2))
NO = at.NONE
LEAVES = {"input", "parameter", "state", "constant", "scalar", "size", "iota", "random"}
CONTROL = {"stop_gradient", "by_mode", "gradient", "item", "call", "scan", "custom_gradient"}
COLLECTIVES = {name for name, op in OPS.items() if op.family is Family.COLLECTIVE}  # tests/distributed has their values


def leaf(name: str, shape: object = (), dtype=float32) -> Node:
    return Node("input", (), at.InputAttrs(name, TensorType(as_shape(shape), dtype)))


def weight(name: str, shape: object = ()) -> Node:
    return Node("parameter", (), at.StateAttrs(name, TensorType(as_shape(shape), float32), at.Initializer("zeros")))


def value(op: str, *arrays: np.ndarray, attrs: at.Attrs = NO, item: int | None = None) -> np.ndarray:
    nodes = [leaf(f"x{i}", a.shape, as_dtype(a.dtype)) for i, a in enumerate(arrays)]
    node = Node(op, nodes, attrs)
    node = node if item is None else Node("item", [node], at.ItemAttrs(item))
    graph = IRGraph((Output("y", node),), (), tuple(nodes))
    return interpret(graph, inputs={f"x{i}": a for i, a in enumerate(arrays)}).outputs["y"]


def compute(node: Node, **settings) -> np.ndarray:
    """The value of a node made of leaves that need no arrays."""
    return interpret(IRGraph((Output("y", node),)), **{"inputs": {}, "state": {}, **settings}).outputs["y"]


def dropped(x: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    draw = torch.from_numpy(uniform(0, "k", 0, tuple(x.shape)))
    return torch.where(draw >= rate, x / (1 - rate), 0.0)


def scatter_reference(updates: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.zeros(6, 3, dtype=updates.dtype).index_add(0, index.reshape(-1), updates.reshape(-1, 3))


functional = torch.nn.functional
# op: (attributes, arrays, the same in torch)
CASES = {
    **{n: (NO, (POSITIVE if row.domain is Domain.POSITIVE else X,), row.theirs) for n, row in UNARY.items()},
    "floor_divide": (NO, (INT, INT2), torch.floor_divide),
    "bitwise_and": (NO, (INT, INT2), torch.bitwise_and),
    "bitwise_or": (NO, (INT, INT2), torch.bitwise_or),
    "bitwise_xor": (NO, (INT, INT2), torch.bitwise_xor),
    "left_shift": (NO, (INT, abs(INT2)), torch.bitwise_left_shift),
    "right_shift": (NO, (INT, abs(INT2)), torch.bitwise_right_shift),
    "neg": (NO, (INT,), torch.neg),
    "abs": (NO, (INT,), torch.abs),
    "sign": (NO, (X,), torch.sign),
    "add": (NO, (INT, INT2), torch.add),
    "sub": (NO, (X, Y), torch.sub),
    "mul": (NO, (INT, INT2), torch.mul),
    "maximum": (NO, (X, Y), torch.maximum),
    "minimum": (NO, (INT, INT2), torch.minimum),
    "mod": (NO, (X, Y), torch.remainder),
    "div": (NO, (X, Y), torch.div),
    "pow": (NO, (POSITIVE, Y), torch.pow),
    "less": (NO, (X, Y), torch.lt),
    "less_equal": (NO, (INT, INT2), torch.le),
    "equal": (NO, (INT, INT2), torch.eq),
    "not_equal": (NO, (BOOL, BOOL2), torch.ne),
    "logical_and": (NO, (BOOL, BOOL2), torch.logical_and),
    "logical_or": (NO, (BOOL, BOOL2), torch.logical_or),
    "logical_not": (NO, (BOOL,), torch.logical_not),
    "where": (NO, (BOOL, X, Y), torch.where),
    "cast": (at.CastAttrs(int32), (3 * X,), lambda x: x.to(torch.int32)),
    "sum": (at.SumAttrs((0, 2), float64), (X,), lambda x: x.sum((0, 2))),
    "max": (at.MaxAttrs((0, 2)), (X - 9.0,), lambda x: x.amax((0, 2))),
    "argmax": (at.ArgmaxAttrs(1), (X,), lambda x: x.argmax(1).to(torch.int32)),
    "reshape": (at.ReshapeAttrs((6, 4)), (X,), lambda x: x.reshape(6, 4)),
    "permute": (at.PermuteAttrs((2, 0, 1)), (X,), lambda x: x.permute(2, 0, 1)),
    "expand": (at.ExpandAttrs((3, 5, 4), (0, 2)), (INT,), lambda x: x[:, None].expand(3, 5, 4)),
    "slice": (at.SliceAttrs((0, 1, 0), (2, 3, 4), (1, 1, 3)), (X,), lambda x: x[:, 1:, ::3]),
    "pad": (at.PadAttrs((0, 1), (2, 3), 7.0), (INT,), lambda x: functional.pad(x, (1, 3, 0, 2), value=7)),
    "concat": (at.ConcatAttrs(1), (X, Y, X), lambda *xs: torch.cat(xs, 1)),
    "gather": (at.GatherAttrs(0), (DATA, INDEX), lambda x, i: x[i]),
    "scatter_add": (at.ScatterAddAttrs(0, 6), (RNG.normal(size=(2, 2, 3)), INDEX), scatter_reference),
    "write_rows": (
        NO, (X, Y[:1], np.array(1)), lambda x, r, start: torch.cat([x[:start], r, x[start + len(r):]]),
    ),
    "matmul": (at.MatmulAttrs(True, False, float64), (X, Y), lambda x, y: x.mT @ y),
    "ratio": (NO, (X, Y), torch.div),
    "gelu": (at.GeluAttrs(False), (X,), functional.gelu),
    "bce_with_logits": (
        NO, (X, Y), lambda x, y: functional.binary_cross_entropy_with_logits(x, y, reduction="none"),
    ),
    "softmax": (at.SoftmaxAttrs(1), (X,), lambda x: x.softmax(1)),
    "log_softmax": (at.SoftmaxAttrs(0), (X,), lambda x: x.log_softmax(0)),
    "logsumexp": (at.SoftmaxAttrs(1), (X,), lambda x: x.logsumexp(1)),
    "cross_entropy": (NO, (X, LABELS), lambda x, i: functional.cross_entropy(x.mT, i, reduction="none")),
    "layer_norm": (at.NormAttrs(0.1), (X, ROW, ROW2), lambda x, w, b: functional.layer_norm(x, (4,), w, b, 0.1)),
    "rms_norm": (at.NormAttrs(0.1), (X, ROW), lambda x, w: functional.rms_norm(x, (4,), w, 0.1)),
    "group_norm": (
        at.GroupNormAttrs(2, 0.1), (IMAGES, ROW, ROW2), lambda x, w, b: functional.group_norm(x, 2, w, b, 0.1),
    ),
    "batch_norm": (
        at.NormAttrs(0.1), (IMAGES, ROW, ROW2),
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True, eps=0.1),
    ),
    "dropout": (at.DropoutAttrs("k"), (X, np.array(0.4)), dropped),
    "attention": (
        at.AttentionAttrs(True, 0.7), (X, X + Y, Y),
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7),
    ),
    "attention_lse": (
        at.AttentionAttrs(False, 0.7), (X, X + Y, Y),
        lambda q, k, v: torch.logsumexp(0.7 * q @ k.transpose(-1, -2), -1),
    ),
}  # fmt: skip

# The gradient of an op of CASES: its first inputs, then the upstream gradient.
GRADIENTS = {f"{op}_grad": op for op in ("layer_norm", "rms_norm", "group_norm", "batch_norm", "attention")}


CASES |= window_values.CASES


def test_every_op_has_a_row_and_a_case():
    assert_equal_rows(VALUES, OPS, "VALUES of wholestep/compiler/ir/semantics/values.py")
    elsewhere = set(GRADIENTS) | LEAVES | CONTROL | COLLECTIVES
    assert_equal_rows(
        set(CASES) | elsewhere, OPS, "UNARY of tests/ops/unary.py, or CASES of tests/compiler/ir/test_interpret.py"
    )


@pytest.mark.parametrize("op", CASES)
def test_value_equals_torch(op):
    attrs, arrays, reference = CASES[op]
    expected = reference(*(torch.from_numpy(a) for a in arrays)).numpy()
    actual = value(op, *arrays, attrs=attrs)
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("op", GRADIENTS)
def test_gradient_op_equals_torch(op):
    attrs, arrays, reference = CASES[GRADIENTS[op]]
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = reference(*tensors)
    upstream = RNG.normal(size=tuple(y.shape))
    y.backward(torch.from_numpy(upstream))
    kept = arrays[:2]
    if op == "attention_grad":
        kept = [*arrays, value("attention_lse", *arrays, attrs=attrs)]
    for i, tensor in enumerate(tensors):
        actual = value(op, *kept, upstream, attrs=attrs, item=i)
        np.testing.assert_allclose(actual, tensor.grad.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_matmul_flags(transpose_a, transpose_b):
    a, b = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 4, 5))
    attrs = at.MatmulAttrs(transpose_a, transpose_b, float64)
    stored = (a.swapaxes(1, 2) if transpose_a else a, b.swapaxes(1, 2) if transpose_b else b)
    np.testing.assert_allclose(value("matmul", *stored, attrs=attrs), a @ b)


def test_gelu_by_tanh():
    expected = functional.gelu(torch.from_numpy(X), approximate="tanh").numpy()
    np.testing.assert_allclose(value("gelu", X, attrs=at.GeluAttrs(True)), expected, rtol=1e-13)


def test_gather_and_cross_entropy_clamp_their_indices():
    assert value("gather", DATA, np.array([-3, 99]), attrs=at.GatherAttrs(0)) == pytest.approx(DATA[[0, 4]])
    far, near = np.array([[9, -1, 1]] * 2), np.array([[3, 0, 1]] * 2)
    assert value("cross_entropy", X, far) == pytest.approx(value("cross_entropy", X, near))


def test_gather_along_an_inner_axis_and_its_adjoint():
    """<gather(x), u> == <x, scatter_add(u)>."""
    index, u = np.array([[2, 0], [2, 2]]), RNG.normal(size=(2, 2, 2, 4))
    gathered = value("gather", X, index, attrs=at.GatherAttrs(1))
    np.testing.assert_array_equal(gathered, np.take(X, index, axis=1))
    scattered = value("scatter_add", u, index, attrs=at.ScatterAddAttrs(1, 3))
    assert (gathered * u).sum() == pytest.approx((X * scattered).sum())


def test_stability_far_out():
    big = np.array([[1000.0, -1000.0]])
    np.testing.assert_array_equal(value("log_softmax", big, attrs=at.SoftmaxAttrs(1)), [[0.0, -2000.0]])
    np.testing.assert_array_equal(value("sigmoid", big), [[1.0, 0.0]])
    np.testing.assert_array_equal(value("cross_entropy", big, np.array([1])), [2000.0])


def test_float32_is_computed_in_float64_and_integers_in_their_dtype():
    third = value("recip", np.float32(3.0))
    assert third.dtype == np.float64
    assert float(third) == 1 / 3
    wrapped = value("add", np.array([250], np.uint8), np.array([10], np.uint8))
    assert wrapped.dtype == np.uint8
    assert wrapped.tolist() == [4]
    total = value("sum", np.full(3, 2**30, np.int32), attrs=at.SumAttrs((0,), int32))
    assert total.dtype == np.int32
    assert int(total) == (3 * 2**30 + 2**31) % 2**32 - 2**31


def test_casts_truncate_and_bools_become_numbers():
    assert value("cast", np.array([1.9, -1.9]), attrs=at.CastAttrs(int64)).tolist() == [1, -1]
    assert value("cast", np.array([0.5, 0.0]), attrs=at.CastAttrs(boolean)).tolist() == [True, False]
    assert value("cast", np.array([True]), attrs=at.CastAttrs(float32)).tolist() == [1.0]


def test_leaves():
    assert compute(Node("constant", (), at.ConstantAttrs(at.Array(np.arange(3, dtype=np.uint8))))).tolist() == [0, 1, 2]
    assert compute(Node("size", (), at.SizeAttrs(Dim.symbol("batch") * 3)), sizes={"batch": 5}) == 15.0
    iota = Node("iota", (), at.IotaAttrs(TensorType((2, 3), uint8), 1))
    assert compute(iota).tolist() == [[0, 1, 2]] * 2
    random = Node("random", (), at.RandomAttrs("k", TensorType((4,), float32)))
    np.testing.assert_array_equal(compute(random, seed=3, step=9), uniform(3, "k", 9, (4,)))


def test_scalars_have_defaults_and_step_is_the_step():
    lr, step = (Node("scalar", (), at.ScalarAttrs(n, 0.5)) for n in ("lr", "step"))
    product = Node("mul", [lr, step], NO)
    assert compute(product, step=3) == 1.5
    assert compute(product, step=3, scalars={"lr": 2.0}) == 6.0
    with pytest.raises(
        UnknownNameError, match=r"'rate' is not a runtime scalar of this graph; it has \['lr', 'step'\]"
    ):
        compute(product, scalars={"rate": 1.0})


def test_updates_read_the_start_and_happen_together():
    a, b = weight("a"), weight("b")
    graph = IRGraph((Output("b", b),), (Update("a", b), Update("b", Node("add", [a, b], NO))))
    held = {"a": np.array(1.0), "b": np.array(10.0), "other": np.array(7.0)}
    result = interpret(graph, inputs={}, state=held)
    assert {name: float(v) for name, v in result.state.items()} == {"a": 10.0, "b": 11.0, "other": 7.0}
    assert result.outputs["b"] == 10.0
    assert held["a"] == 1.0


def test_a_call_is_a_function_of_its_arguments():
    a, b = leaf("a", 3), leaf("b", 3)
    inner = IRGraph((Output("sum", Node("add", [a, b], NO)), Output("difference", Node("sub", [a, b], NO))), (), (a, b))
    b_outside, a_outside = leaf("b", 3), leaf("a", 3)
    call = Node("call", [b_outside, a_outside], at.CallAttrs(inner))  # by position, not by name
    picked = Node("stop_gradient", [Node("item", [call], at.ItemAttrs(1))], NO)
    graph = IRGraph((Output("y", picked),), (), (a_outside, b_outside))
    assert interpret(graph, inputs={"a": np.zeros(3), "b": np.arange(3.0)}).outputs["y"].tolist() == [0.0, 1.0, 2.0]


def test_a_custom_gradient_changes_no_value():
    upstream, a, slope = leaf("upstream", 3), leaf("a", 3), leaf("slope", 3)
    held = IRGraph((Output("y0", Node("mul", [upstream, slope], NO)),), (), (upstream, a, slope))
    x = leaf("x", 3)
    inputs = [Node("exp", [x], NO), x, Node("neg", [x], NO)]
    node = Node("custom_gradient", inputs, at.CustomGradientAttrs(held, 1))
    graph = IRGraph((Output("y", Node("item", [node], at.ItemAttrs(0))),), (), (x,))
    np.testing.assert_array_equal(interpret(graph, inputs={"x": np.arange(3.0)}).outputs["y"], np.exp(np.arange(3.0)))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_gives_every_carry_and_every_output(reverse):
    c, x, w = leaf("c"), leaf("x"), leaf("w")
    after = Node("add", [Node("mul", [c, w], NO), x], NO)
    body = IRGraph((Output("c", after), Output("y", Node("sub", [c, x], NO))), (), (c, x, w))
    first, xs, steady = leaf("first"), leaf("xs", 3), leaf("steady")
    scan = Node("scan", [first, xs, steady], at.ScanAttrs(body, 1, 1, 3, reverse))
    items = [Output(f"r{i}", Node("item", [scan], at.ItemAttrs(i))) for i in range(2)]
    inputs = {"first": np.array(1.0), "xs": np.array([1.0, 2.0, 3.0]), "steady": np.array(2.0)}
    found = interpret(IRGraph(tuple(items), (), (first, xs, steady)), inputs=inputs).outputs
    trail = [25.0, 12.0, 5.0, 1.0] if reverse else [1.0, 3.0, 8.0, 19.0]
    assert found["r0"].tolist() == trail
    before = trail[1:] if reverse else trail[:-1]
    assert found["r1"].tolist() == [b - x for b, x in zip(before, [1.0, 2.0, 3.0], strict=True)]


def test_gradients_must_be_expanded_first():
    w = weight("w")
    gradient = Node("item", [Node("gradient", [w, w], NO)], at.ItemAttrs(0))
    with pytest.raises(GradientError, match="expand gradients first"):
        compute(gradient, state={"w": np.array(1.0)})


def test_sizes_are_solved_from_the_inputs():
    batch, time = Dim.symbol("batch"), Dim.symbol("time")
    x, y = leaf("x", (batch * time, 2)), leaf("y", (time * 2 + 1,))
    graph = IRGraph((Output("x", x), Output("y", y)), (), (x, y))
    assert infer_sizes(graph, {"x": np.zeros((12, 2)), "y": np.zeros(7)}) == {"batch": 4, "time": 3}
    with pytest.raises(InputError, match="do not determine the size of batch, time; pass it: sizes="):
        infer_sizes(graph, {"x": np.zeros((12, 2))})


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ({}, UnknownNameError, r"'i' is missing; expected \['i', 'x'\], received \[\]"),
        ({"x": [1.0], "i": [1], "z": [0]}, UnknownNameError, "'z' is not an input of this graph"),
        (
            {"x": [[1.0]], "i": [1]},
            InputError,
            r"'x' is float32\[batch\], of shape \(1,\) at these sizes; received \(1, 1\)",
        ),
        (
            {"x": [1.0], "i": [1, 2]},
            InputError,
            r"'x' is float32\[batch\], of shape \(2,\) at these sizes; received \(1,\)",
        ),
        (
            {"x": [1.0], "i": [1.5]},
            InputError,
            r"'i' is uint8\[batch\]; received values of float64 that it cannot represent",
        ),
        ({"x": [1.0], "i": [300]}, InputError, "'i' is uint8"),
    ],
)
def test_arrays_that_do_not_fit(inputs, error, text):
    x, i = leaf("x", "batch"), leaf("i", "batch", uint8)
    graph = IRGraph((Output("x", x),), (), (x, i))
    sizes = {"batch": len(inputs["i"])} if "i" in inputs else {"batch": 1}
    with pytest.raises(error, match=text):
        interpret(graph, inputs={k: np.array(v) for k, v in inputs.items()}, sizes=sizes)


def test_a_missing_state():
    with pytest.raises(UnknownNameError, match=r"the state 'w' is missing; the graph reads \['w'\]"):
        compute(weight("w"))
