"""Functions on tensors, against NumPy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.oracles import assert_close
from tests.support.recording import run, value
from wholestep.compiler.frontend.functions import primitives
from wholestep.compiler.frontend.layers import composites
from wholestep.errors import DTypeError, OptionError, ShapeError, UsageError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4))

UNARY = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "sin": np.sin, "cos": np.cos, "floor": np.floor, "abs": np.abs,
    "sign": np.sign, "recip": np.reciprocal,
}  # fmt: skip
POSITIVE = {"log": np.log, "log2": np.log2, "log1p": np.log1p, "sqrt": np.sqrt}
TORCH = {
    "erf": torch.erf, "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
}  # fmt: skip


@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
def test_unary(name):
    x = np.abs(X) + 0.1 if name in POSITIVE else X
    assert_close(value(getattr(ws, name), x), {**UNARY, **POSITIVE}[name](x), "float64")


@pytest.mark.parametrize("name", TORCH)
def test_activations(name):
    assert_close(value(getattr(ws, name), X), TORCH[name](torch.tensor(X)), "float64")


def test_gelu_by_tanh():
    expected = torch.nn.functional.gelu(torch.tensor(X), approximate="tanh")
    assert_close(value(lambda x: ws.gelu(x, "tanh"), X), expected, "float64")
    with pytest.raises(OptionError, match="'none' or 'tanh'; received 'fast'"):
        ws.gelu(1.0, "fast")


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis):
    assert_close(value(lambda x: ws.softmax(x, axis), X), torch.softmax(torch.tensor(X), axis), "float64")
    assert_close(value(lambda x: ws.log_softmax(x, axis), X), torch.log_softmax(torch.tensor(X), axis), "float64")


def test_layer_norm():
    expected = torch.nn.functional.layer_norm(torch.tensor(X), (4,))
    assert_close(value(ws.layer_norm, X), expected, "float64")


def test_binary():
    y = RNG.normal(size=4)
    assert_close(value(ws.maximum, X, y), np.maximum(X, y), "float64")
    assert_close(value(ws.minimum, X, y), np.minimum(X, y), "float64")
    assert_close(value(lambda a, b: ws.mod(a, abs(b)), X, y), X % np.abs(y), "float64")
    assert_close(value(ws.less_than, X, y), y > X, "bool")
    assert_close(value(lambda a, b: ws.where(a > b, a, 0.0), X, y), np.where(y < X, X, 0.0), "float64")
    assert_close(
        value(lambda a, b: ws.where((a > 0) & ~(b > 0), a, b), X, y), np.where((X > 0) & ~(y > 0), X, y), "float64"
    )
    with pytest.raises(DTypeError, match="bool condition"):
        value(lambda a: ws.where(a, a, a), X)


def test_joining_and_padding():
    assert_close(value(lambda a: ws.concat([a, 2 * a], axis=-1), X), np.concatenate([X, 2 * X], -1), "float64")
    assert_close(value(lambda a: ws.stack([a, 2 * a], axis=1), X), np.stack([X, 2 * X], 1), "float64")
    assert_close(value(lambda a: ws.stack([a, a], axis=-1), X), np.stack([X, X], -1), "float64")
    assert_close(
        value(lambda a: ws.pad(a, [(1, 0), (0, 2)], 7.0), X),
        np.pad(X, [(1, 0), (0, 2)], constant_values=7.0),
        "float64",
    )
    with pytest.raises(ShapeError, match="at least one tensor"):
        ws.concat([])
    with pytest.raises(ShapeError, match="axis 2 does not exist"):
        value(lambda a: ws.concat([a], axis=2), X)


def test_indexing_functions():
    i = np.array([2, 0, 2], np.int32)
    assert_close(value(lambda k: ws.one_hot(k, 4, "float64"), i), np.eye(4)[i], "float64")
    expected = np.zeros((5, 4))
    np.add.at(expected, i, X)
    assert_close(value(lambda a, k: ws.scatter_add(a, k, 5), X, i), expected, "float64")
    assert_close(value(lambda k: ws.arange(3, "float64") + k.astype("float64"), i), np.arange(3) + i, "float64")
    with pytest.raises(DTypeError, match="one_hot needs integer indices"):
        value(lambda a: ws.one_hot(a, 3), X)


def test_stop_gradient_cuts_one_path():
    g = ws.Graph()
    x = g.input("x", ())
    (slope,) = ws.gradients(ws.stop_gradient(x) * x, x)
    g.set_outputs({"slope": slope})
    assert run(g.to_ir(), {"x": np.array(3.0)}).outputs["slope"] == 3.0


def test_random_numbers_have_keys_by_scope_and_ordinal():
    g = ws.Graph()
    first, second = ws.random_uniform(g, ("batch", 2)), g.random_uniform((2,))
    with g.scope("layer"):
        inner = ws.random_uniform(first, (2,))
    assert [t.node.attrs.key for t in (first, second, inner)] == ["random0", "random1", "layer/random0"]
    with pytest.raises(UsageError, match="belong to a graph"):
        ws.random_uniform(ws.arange(3), (2,))


def test_random_numbers_are_distributed_as_they_say():
    g = ws.Graph()
    g.set_outputs(
        {"u": g.random_uniform((20000,), low=-1.0, high=3.0), "n": g.random_normal((20000,), mean=2.0, std=0.5)}
    )
    out = run(g.to_ir(), step=3).outputs
    assert -1.0 <= out["u"].min() < out["u"].max() < 3.0
    assert abs(out["u"].mean() - 1.0) < 0.03
    assert abs(out["n"].mean() - 2.0) < 0.02
    assert abs(out["n"].std() - 0.5) < 0.02
    assert not np.array_equal(out["u"], run(g.to_ir(), step=4).outputs["u"])


EXPORTED = [*primitives.__all__, *composites.__all__]


def test_every_function_is_exported_and_documented():
    for name in EXPORTED:
        documented = getattr(ws, name).__doc__
        assert documented, f"{name} has no docstring"
        assert "Example" in documented, f"{name} has no example"


@pytest.mark.parametrize("name", EXPORTED)
def test_examples_run(name):
    """The example in each docstring is Python that runs; where it says what comes out, it does."""
    example = getattr(ws, name).__doc__.split("Example: ")[1].split("`")
    g = ws.Graph()
    table, tokens = g.constant(X), g.constant(np.array([0, 2], np.int32))
    known = {
        "ws": ws, "g": g, "x": table, "w": table.T, "a": table, "b": table, "table": table, "tokens": tokens,
        "i": tokens, "q": table, "k": table, "v": table, "images": ws.stack([table, table]).reshape(1, 24, 1),
        "gain": np.ones(4), "shift": np.zeros(4), "errors": table, "weights": table * table,
        "batch_mean": table, "running_mean": table,
    }  # fmt: skip
    source = example[1].split(" = ")[-1]
    result = eval(source, known)  # noqa: S307
    assert isinstance(result, ws.Tensor)
    says = example[2].strip().removesuffix(".").removeprefix("is ")
    if says and says[0] in "-[0123456789T":
        if result.graph is None:
            g.set_outputs({"out": g.adopt(result)})
        assert_close(run(g.to_ir()).outputs["out"], np.asarray(eval(says)), "float64")  # noqa: S307
