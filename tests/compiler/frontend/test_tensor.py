"""Tensors mean what NumPy means."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import wholestep as ws
from tests.support.oracles import assert_close
from tests.support.recording import run, value
from wholestep.errors import DTypeError, GraphError, HabitError, ShapeError, UsageError

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.normal(size=shape)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "truediv", "lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3), (3,)),
        ((2, 1), (1, 3)),
        ((), (2, 3)),
        ((4, 1, 3), (2, 1)),
        ((1,), (5,)),
        ((2, 3), (2, 3)),
        ((1, 1), (1,)),
    ],
)
def test_broadcasting_is_numpys(op, a, b):
    x, y = floats(*a), floats(*b)
    function = getattr(operator, op)
    assert_close(value(function, x, y), function(x, y), "float64")


@pytest.mark.parametrize("op", ["add", "sub", "mul", "truediv", "mod", "pow"])
def test_reflected_operators(op):
    x, function = np.abs(floats(3)) + 0.5, getattr(operator, op)
    assert_close(value(lambda t: function(2.5, t), x), function(2.5, x), "float64")
    row = np.array([1.0, 2.0, 3.0])
    assert_close(value(lambda t: function(row, t), x), function(row, x), "float64")


@pytest.mark.parametrize("power", [1, 2, 3, 0.5, -1, 1.5, -2])
def test_powers(power):
    x = np.abs(floats(4)) + 0.5
    assert_close(value(lambda t: t**power, x), x**power, "float64")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((5, 2, 3), (3, 4)), ((6, 5, 2, 3), (3, 4)),
        ((5, 2, 3), (5, 3, 4)), ((5, 2, 3), (1, 3, 4)), ((2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)), ((6, 5, 2, 3), (3,)),
    ],
)  # fmt: skip
def test_matmul_ranks(a, b):
    x, y = floats(*a), floats(*b)
    assert_close(value(operator.matmul, x, y), x @ y, "float64")


def test_matmul_of_a_transposed_operand_reads_it_with_a_flag():
    g = ws.Graph()
    x, w = g.input("x", ("batch", 3)), g.parameter("w", (4, 3))
    node = (x @ w.T).node
    assert node.inputs == (x.node, w.node)
    assert node.attrs.transpose_b
    a, b = floats(2, 3), floats(4, 3)
    assert_close(value(lambda s, t: s @ t.T, a, b), a @ b.T, "float64")


def test_leading_symbolic_axes_become_rows():
    g = ws.Graph()
    x = g.input("x", ("batch", "time", 3))
    y = x @ g.parameter("w", (3, 5))
    assert y.shape == (*x.shape[:2], 5)
    assert [n.op for n in g.toposort()] == ["input"]
    assert y.node.inputs[0].op == "matmul"


@pytest.mark.parametrize(
    "key",
    [
        0, -1, slice(1, 3), slice(None, None, 2), slice(-2, None), (1, 2), (slice(None), 1), (..., 0), (0, ..., 1),
        None, (None, 1), (slice(1, 3), None, slice(0, 2)), (..., None), slice(3, 1), slice(0, 100),
        (slice(None), slice(1, 4, 2)),
        [2, 0, -1], np.array([[0, 1], [3, 3]]),
    ],
    ids=str,
)  # fmt: skip
def test_indexing_is_numpys(key):
    x = floats(4, 5, 3)
    assert_close(value(lambda t: t[key], x), x[key], "float64")


def test_an_integer_tensor_gathers():
    x, i = floats(4, 3), np.array([[3, 0], [1, 1]], np.int32)
    assert_close(value(lambda t, k: t[k], x, i), x[i], "float64")
    assert_close(value(lambda t, k: ws.gather(t, k, axis=1), x, i % 3), np.take(x, i % 3, axis=1), "float64")


@pytest.mark.parametrize("key", [0, -1, slice(1, None), slice(None, -1), slice(None)], ids=str)
def test_indexing_a_symbolic_dimension(key):
    x = floats(4, 3)
    assert_close(value(lambda t: t[key], x, dims=(("time", 3),)), x[key], "float64")


@pytest.mark.parametrize("key", [1, -2, slice(0, 2), slice(2, None), slice(1, -1), slice(None, None, 2)], ids=str)
def test_what_may_be_out_of_range_is_refused(key):
    x = ws.Graph().input("x", ("time", 3))
    with pytest.raises(ShapeError, match=r"symbolic dimension time(.|\n)*test_tensor\.py"):
        x[key]


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (2, 0), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(axis, keepdims):
    x = floats(2, 3, 4)
    for name in ("sum", "mean", "max", "min"):
        expected = getattr(x, name)(axis=axis, keepdims=keepdims)
        assert_close(value(lambda t, name=name: getattr(t, name)(axis, keepdims), x), expected, "float64")


def test_argmax_and_seed_names():
    x = floats(3, 4)
    assert_close(value(lambda t: t.argmax(1), x), x.argmax(1), "int32")
    assert_close(value(lambda t: t.argmax(), x), x.argmax(), "int32")
    assert_close(value(lambda t: t.sum_reduce(0), x), x.sum(0), "float64")
    assert_close(value(lambda t: t.max_reduce(1), x), x.max(1), "float64")
    assert_close(value(lambda t: t.add(1.0).mul(2.0).mod(0.7).less_than(0.3), x), ((x + 1) * 2) % 0.7 < 0.3, "bool")


def test_movement():
    x = floats(2, 3, 4)
    assert_close(value(lambda t: t.reshape(4, -1), x), x.reshape(4, -1), "float64")
    assert_close(value(lambda t: t.reshape((-1,)), x), x.ravel(), "float64")
    assert_close(value(lambda t: t.permute(2, 0, -2), x), x.transpose(2, 0, 1), "float64")
    assert_close(value(lambda t: t.T, x), x.T, "float64")
    assert_close(value(lambda t: t.transpose(0, -1), x), np.swapaxes(x, 0, -1), "float64")
    assert_close(value(lambda t: t[:1].broadcast_to(5, 3, 4), x), np.broadcast_to(x[:1], (5, 3, 4)), "float64")


def test_reshape_divides_symbolic_sizes():
    x = ws.Graph().input("x", ("batch", 4, "time"))
    assert x.reshape(-1, 4).shape == (x.shape[0] * x.shape[2], 4)
    assert x.reshape(x.shape[0], -1).shape == (x.shape[0], 4 * x.shape[2])
    with pytest.raises(ShapeError, match=r"cannot become \(-1, 3\): .* not divisible by 3"):
        x.reshape(-1, 3)


def test_a_dimension_in_arithmetic_is_its_size_at_run_time():
    x = floats(4, 3)
    assert_close(value(lambda t: t.sum() / t.shape[0], x, dims=(("batch", 3),)), x.sum() / 4, "float64")
    assert_close(value(lambda t: t.shape[0] * t, x, dims=(("batch", 3),)), 4 * x, "float64")
    i = np.arange(4, dtype=np.int32)
    assert_close(value(lambda t: t.shape[0] - t, i, dims=(("batch",),)), 4 - i, "int32")


def test_mean_is_a_ratio_whose_denominator_is_a_size():
    g = ws.Graph()
    loss = g.input("x", ("batch", 3)).mean().node
    assert loss.op == "ratio"
    assert [n.op for n in (loss.inputs[1], loss.inputs[1].inputs[0])] == ["cast", "size"]
    fixed = g.input("y", (2, 3)).mean().node
    assert fixed.inputs[1].op == "constant"


# -- dtypes ------------------------------------------------------------------------------------------------------


def test_weak_operands_adopt_the_tensors_dtype():
    g = ws.Graph()
    x = g.input("x", (3,))
    rate = g.scalar("rate", 0.1)
    for y in (x * 2, 0.1 + x, x * rate, g.constant(3.0) * x, x * [1, 2, 3], x / ws.size("batch"), x * np.float64(2.0)):
        assert y.dtype.name == "float32"
    host = (1.0 - rate) ** (g.step + 1.0)
    assert host.node.host
    assert host.dtype.name == "float64"
    assert (g.input("i", (3,), "int32") + 1).dtype.name == "int32"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda g, x, i: i + 0.5, r"0\.5 is a float, but the tensor is int32\. Cast it first"),
        (lambda g, x, i: i * g.scalar("r", 1.0), r"runtime scalar is a float, but the tensor is int32"),
        (lambda g, x, i: x + i, r"float32\[3\] and int32\[3\]; dtypes are never mixed"),
        (lambda g, x, i: x + g.input("d", (3,), "float64"), r"float32\[3\] and float64\[3\]"),
        (lambda g, x, i: x + np.zeros(3), r"Cast the array, array\.astype\(np\.float32\)"),
        (lambda g, x, i: i.mean(), r"mean needs a float tensor; received int32\[3\]"),
        (lambda g, x, i: i + 2**40, r"does not fit into int32"),
        (lambda g, x, i: x[x > 0], r"For a mask use ws\.where"),
    ],
)
def test_dtypes_are_never_mixed_silently(make, text):
    g = ws.Graph()
    with pytest.raises(DTypeError, match=text):
        make(g, g.input("x", (3,)), g.input("i", (3,), "int32"))


# -- errors at the user's line -----------------------------------------------------------------------------------


def test_an_error_ends_with_the_users_line():
    g = ws.Graph()
    x, y = g.input("x", ("batch", 3)), g.input("y", (4,))
    with pytest.raises(ShapeError, match=r"(?s)cannot broadcast \(batch, 3\) and \(4,\).*test_tensor\.py:\d+: x \+ y$"):
        x + y
    with pytest.raises(ShapeError, match=r"(?s)k is 3 and 4.*test_tensor\.py:\d+: x @ y$"):
        x @ y
    with pytest.raises(ShapeError, match=r"(?s)same name for it.*test_tensor\.py:\d+: x \+ g\.input"):
        x + g.input("z", ("time", 3))


def test_nodes_know_the_users_line():
    g = ws.Graph()
    x = ws.layer_norm(g.input("x", (3,)))
    assert x.node.line.file == __file__
    assert all(n.line.file == __file__ for n in g.toposort())


def test_tensors_of_two_graphs_do_not_mix():
    a, b = ws.Graph().input("a", (3,)), ws.Graph().input("b", (3,))
    with pytest.raises(GraphError, match=r"(?s)two different graphs.*test_tensor\.py:\d+: a \+ b"):
        a + b


@pytest.mark.parametrize("use", [bool, float, int, list, np.asarray, lambda x: 1 if x > 0 else 0])
def test_a_tensor_has_no_value_while_recording(use):
    with pytest.raises(UsageError, match="no value while the program is recorded"):
        use(ws.Graph().input("x", ()))


@pytest.mark.parametrize(
    ("habit", "text"),
    [
        ("backward", "ws.gradients"),
        ("item", "session.get"),
        ("cuda", "device belongs"),
        ("data", "ws.stop_gradient"),
        ("add_", "never changed in place"),
    ],
)
def test_habits_are_taught(habit, text):
    x = ws.Graph().input("x", ())
    with pytest.raises(HabitError, match=text):
        getattr(x, habit)
    assert not hasattr(x, habit)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        x.nonsense  # noqa: B018


def test_what_is_no_operand():
    with pytest.raises(UsageError, match="cannot be an operand of a tensor"):
        ws.Graph().input("x", (3,)) + "3"
    x = ws.Graph().input("x", (3,))
    with pytest.raises(UsageError, match=r"Take one out of the dict: \['labels'\]"):
        x - {"labels": x}


def test_recording_runs_nothing():
    g = ws.Graph()
    g.set_outputs([ws.losses.mse_loss(g.input("x", ("batch",)), g.input("y", ("batch",)))])
    out = run(g.to_ir(), {"x": np.array([1.0, 3.0]), "y": np.zeros(2)}).outputs
    assert out["loss"] == 5.0
