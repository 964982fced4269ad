"""Initialisers: the right spread, a function of (seed, name) alone."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.initializers import materialize
from wholestep.compiler.ir.types import float32, float64
from wholestep.errors import OptionError, ShapeError


def draw(init, shape=(40, 50, 60), seed=0, name="w", dtype=float64):
    return materialize(init, shape, dtype, seed, name)


FAN_IN, FANS = 2000, 2060


@pytest.mark.parametrize(
    ("init", "bound"),
    [
        (ws.init.uniform(-0.5, 0.5), 0.5),
        (ws.init.xavier_uniform(2.0), 2.0 * np.sqrt(6 / FANS)),
        (ws.init.kaiming_uniform(), np.sqrt(6 / FAN_IN)),
        (ws.init.kaiming_uniform(a=5**0.5), 1 / np.sqrt(FAN_IN)),
    ],
)
def test_uniform_kinds_fill_their_range(init, bound):
    x = draw(init)
    assert 0.999 * bound < np.abs(x).max() <= bound
    assert abs(x.std() / (bound / np.sqrt(3)) - 1) < 0.01
    assert abs(x.mean()) < 0.01 * bound


@pytest.mark.parametrize(
    ("init", "mean", "std"),
    [
        (ws.init.normal(1.0, 0.5), 1.0, 0.5),
        (ws.init.xavier_normal(), 0.0, np.sqrt(2 / FANS)),
        (ws.init.kaiming_normal(a=1.0), 0.0, np.sqrt(1 / FAN_IN)),
    ],
)
def test_normal_kinds_have_their_spread(init, mean, std):
    x = draw(init)
    assert abs(x.mean() - mean) < 0.02 * std
    assert abs(x.std() / std - 1) < 0.01


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 3, 4)])
def test_orthogonal(shape):
    q = draw(ws.init.orthogonal(2.0), shape).reshape(-1, shape[-1]) / 2.0
    gram = q.T @ q if q.shape[0] >= q.shape[1] else q @ q.T
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12)


def test_given_numbers():
    assert (draw(ws.init.zeros()) == 0).all()
    assert (draw(ws.init.ones()) == 1).all()
    assert (draw(ws.init.constant(0.3), dtype=float32) == np.float32(0.3)).all()
    array = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(draw(ws.init.values(array), (2, 3)), array)


def test_bits_depend_on_seed_and_name_alone():
    init = ws.init.normal()
    np.testing.assert_array_equal(draw(init), draw(init))
    assert not np.array_equal(draw(init), draw(init, seed=1))
    assert not np.array_equal(draw(init), draw(init, name="v"))
    golden = [0.10347519, 0.28279367, 1.230752]
    np.testing.assert_allclose(draw(init, (3,), dtype=float32), golden, rtol=1e-6)


def test_defaults_of_parameters():
    g = ws.Graph()
    assert g.parameter("w", (3, 4)).node.attrs.init == ws.init.kaiming_uniform()
    assert g.parameter("b", (4,)).node.attrs.init == ws.init.zeros()
    assert g.parameter("c", (4,), init=2).node.attrs.init == ws.init.constant(2.0)
    assert g.parameter("numpy", (), init=np.float32(0.5)).node.attrs.init == ws.init.constant(0.5)
    assert g.state("s", (4,)).node.attrs.init == ws.init.zeros()


KINDS = ["zeros", "ones", "constant", "values", "normal", "uniform", "orthogonal"]
KINDS += [f"{name}_{kind}" for name in ("xavier", "kaiming") for kind in ("normal", "uniform")]


@pytest.mark.parametrize("name", KINDS)
def test_examples_run(name):
    example = getattr(ws.init, name).__doc__.split("Example: `")[1].split("`")[0]
    assert eval(example, {"ws": ws, "g": ws.Graph()}) is not None  # noqa: S307


def test_what_has_no_meaning_is_refused():
    g = ws.Graph()
    with pytest.raises(ShapeError, match="orthogonal needs at least two axes; 'w' has shape"):
        g.parameter("w", (3,), init=ws.init.orthogonal())
    with pytest.raises(ShapeError, match=r"'w' has 6 elements, shape \(2, 3\); init has 5 values"):
        g.parameter("w", (2, 3), init=np.zeros(5))
    with pytest.raises(OptionError, match="std must be above 0; received -1"):
        ws.init.normal(std=-1)
    with pytest.raises(OptionError, match="low must be below high"):
        ws.init.uniform(1.0, 1.0)


@pytest.mark.parametrize(
    "init",
    [
        ws.init.constant(0.5),
        ws.init.normal(1.0, 0.5),
        ws.init.uniform(-1, 2),
        ws.init.xavier_normal(),
        ws.init.kaiming_uniform(),
    ],
)
def test_a_value_does_not_depend_on_the_pieces_it_is_drawn_in(init, monkeypatch):
    whole = draw(init, (30, 7, 5), dtype=float32)
    monkeypatch.setattr(initializers, "PIECE", 97)
    np.testing.assert_array_equal(draw(init, (30, 7, 5), dtype=float32), whole)


def test_only_zeros_are_zero():
    assert initializers.is_zero(ws.init.zeros())
    assert not initializers.is_zero(ws.init.ones())
    assert not initializers.is_zero(ws.init.normal())
