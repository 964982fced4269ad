"""Optimizers: the numbers of section D, and torch on given gradient sequences, through the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.recording import initial_state, run
from wholestep.errors import GraphError, OptionError, UsageError

RNG = np.random.default_rng(0)


def descend(optimizer, start, gradients, **options):
    """The values of a parameter after each of the given gradients, and the last state."""
    g = ws.Graph()
    start = np.asarray(start, np.float64)
    w, slope = g.parameter("w", start.shape, init=start, dtype="float64"), g.input("slope", start.shape, "float64")
    optimizer.update(g, w, slope)
    g.set_outputs([w.sum()])
    graph = g.to_ir()
    state, path = initial_state(graph), []
    for step, gradient in enumerate(gradients):
        inputs = {"slope": np.broadcast_to(gradient, start.shape)}
        state = run(graph, inputs, state=state, step=step, scalars=options).state
        path.append(state["w"])
    return np.array(path), state


def close(actual, expected, atol=5e-9):
    np.testing.assert_allclose(np.asarray(actual).ravel(), expected, rtol=0, atol=atol)


def test_sgd_defaults():  # D01, D09
    o = ws.SGD()
    assert (o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov) == (0.01, 0, 0, 0, False)
    assert ws.Optimizer.default() == ws.SGD(lr=0.01)
    assert ws.Optimizer.sgd(0.05) == ws.SGD(lr=0.05)


def test_adam_defaults():  # D09
    assert (ws.Adam().lr, ws.Adam().betas, ws.Adam().eps, ws.Adam().weight_decay) == (1e-3, (0.9, 0.999), 1e-8, 0)
    assert ws.Optimizer.adam(0.002) == ws.Adam(lr=0.002)
    assert (ws.AdamW().betas, ws.AdamW().eps, ws.AdamW().weight_decay) == ((0.9, 0.999), 1e-8, 0.01)


def test_aliases():  # D02
    assert ws.Adam(learning_rate=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6) == ws.Adam(0.1, (0.8, 0.9), 1e-6)
    assert ws.Adam(beta2=0.9) == ws.Adam(betas=(0.9, 0.9))
    for both in (
        {"lr": 0.1, "learning_rate": 0.1},
        {"betas": (0.9, 0.9), "beta1": 0.9},
        {"eps": 1e-8, "epsilon": 1e-8},
    ):
        with pytest.raises(UsageError, match="are the same option; give one of them"):
            ws.Adam(**both)
    with pytest.raises(UsageError, match="are the same option"):
        ws.SGD(0.1, learning_rate=0.1)


def test_plain_descent():  # D03
    close(descend(ws.SGD(lr=0.01), 0.5, [0.2])[0], [0.498])


def test_momentum():  # D06, D07
    path, state = descend(ws.SGD(lr=0.1, momentum=0.9), 1.0, [1, 1, 1])
    close(path, [0.9, 0.71, 0.439])
    close(state["w.sgd.velocity"], [2.71])
    close(descend(ws.SGD(momentum=0.9), 0.0, [1, 1, 1, 1])[1]["w.sgd.velocity"], [3.439])
    close(descend(ws.SGD(momentum=0.9), 0.0, [1, -1])[1]["w.sgd.velocity"], [-0.1])
    close(descend(ws.SGD(momentum=0.9), 0.0, [1, -1, 1])[1]["w.sgd.velocity"], [0.91])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"momentum": 0.9, "nesterov": True}, [0.81, 0.539, 0.1951]),
        ({"momentum": 0.9, "dampening": 0.5}, [0.9, 0.76, 0.584]),
        ({"weight_decay": 0.1}, [0.89, 0.7811, 0.673289]),
    ],
)
def test_variants_of_sgd(options, expected):  # D08
    close(descend(ws.SGD(lr=0.1, **options), [[1.0]], [1, 1, 1])[0], expected)


def test_adam_takes_equal_steps_for_equal_gradients():  # D10
    close(descend(ws.Adam(lr=1e-3), 1.0, [-5, -5, -5])[0], [1.001, 1.002, 1.003])


def test_adam_on_a_parabola():  # D11
    g = ws.Graph()
    x = g.parameter("x", (1,), init=0.0, dtype="float64")
    ws.Adam(lr=0.01).update(g, x, 2.0 * (x - 3.0))
    g.set_outputs([x.sum()])
    graph, found = g.to_ir(), {}
    state = initial_state(graph)
    for step in range(100):
        state = run(graph, state=state, step=step).state
        found[step + 1] = float(state["x"][0])
    close([found[n] for n in (1, 2, 10, 100)], [0.01, 0.01999912, 0.09988967, 0.93755360])


def test_adamw():  # D15
    close(descend(ws.AdamW(lr=1e-3), [[1.0]], [0, 0])[0], [0.99999, 0.9999800001], atol=1e-12)
    close(descend(ws.AdamW(lr=1e-3), [[1.0]], [2, 2])[0], [0.99899, 0.99798001])
    gradients = RNG.normal(size=20)
    ours, plain = (descend(o, [[1.0]], gradients)[0] for o in (ws.AdamW(weight_decay=0.0), ws.Adam()))
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("optimizer", [ws.SGD(weight_decay=0.1), ws.AdamW(), ws.Adam(weight_decay=0.1)])
def test_weight_decay_spares_vectors(optimizer):  # D17
    np.testing.assert_array_equal(descend(optimizer, [1.0, 2.0], [0, 0])[0][-1], [1.0, 2.0])
    assert (descend(optimizer, [[1.0, 2.0]], [0, 0])[0][-1] < [[1.0, 2.0]]).all()


TWINS = {
    "sgd": (ws.SGD(0.05), torch.optim.SGD, {"lr": 0.05}),
    "momentum": (ws.SGD(0.05, momentum=0.9), torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "everything": (
        ws.SGD(0.05, momentum=0.9, dampening=0.3, weight_decay=0.02, decay_on=("*",)),
        torch.optim.SGD,
        {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02},
    ),
    "nesterov": (
        ws.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.02, decay_on=("*",)),
        torch.optim.SGD,
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02},
    ),
    "adam": (ws.Adam(0.01), torch.optim.Adam, {"lr": 0.01}),
    "adam_l2": (
        ws.Adam(0.01, (0.8, 0.99), 1e-6, 0.02, decay_on=("w",)),
        torch.optim.Adam,
        {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.02},
    ),
    "adamw": (ws.AdamW(0.01, decay_on=("w*",)), torch.optim.AdamW, {"lr": 0.01}),
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_hundred_gradients_against_torch(twin):
    ours, theirs, options = TWINS[twin]
    start, gradients = RNG.normal(size=5), RNG.normal(size=(100, 5))
    w = torch.nn.Parameter(torch.tensor(start))
    optimizer = theirs([w], **options)
    path = []
    for gradient in gradients:
        w.grad = torch.tensor(gradient)
        optimizer.step()
        path.append(w.detach().numpy().copy())
    np.testing.assert_allclose(descend(ours, start, gradients)[0], path, rtol=1e-9, atol=1e-11)


# -- structure ---------------------------------------------------------------------------------------------------


def recorded(optimizer):
    g = ws.Graph()
    w = g.parameter("w", (2, 2))
    optimizer.update(g, w, g.input("slope", (2, 2)))
    g.set_outputs([w.sum()])
    return g.to_ir()


def test_what_is_off_is_not_in_the_program():
    assert set(recorded(ws.SGD()).leaves("scalar")) == {"optimizer.lr"}
    assert not recorded(ws.SGD()).leaves("state")
    switchable = recorded(ws.SGD(momentum=ws.runtime(0.0), weight_decay=ws.runtime(0.0)))
    assert set(switchable.leaves("scalar")) == {"optimizer.lr", "optimizer.momentum", "optimizer.weight_decay"}
    assert switchable.leaves("scalar")["optimizer.momentum"].attrs.default == 0.0
    assert set(recorded(ws.Adam()).leaves("scalar")) == {
        *(f"optimizer.{k}" for k in ("lr", "beta1", "beta2", "eps")),
        *("step", "step.start0"),  # the number of an update is counted from where the optimizer's own began
    }
    assert set(recorded(ws.Adam()).leaves("state")) == {"w.adam.m", "w.adam.v"}


def test_expressions_of_scalars_are_float64_on_the_host():
    graph = recorded(ws.Adam(weight_decay=0.1))
    scalars = [n for n in graph.nodes if n.type.rank == 0 and n.op not in ("sum", "cast")]
    assert scalars
    assert all(n.host and n.type.dtype.name == "float64" for n in scalars)


def test_a_runtime_scalar_acts_without_a_new_graph():
    close(descend(ws.SGD(lr=0.01), 1.0, [1.0], **{"optimizer.lr": 0.1})[0], [0.9])


def test_two_optimizers_need_two_names():
    g = ws.Graph()
    a, b, slope = g.parameter("a", ()), g.parameter("b", ()), g.input("slope", ())
    first = ws.Adam()
    first.update(g, a, slope)
    with pytest.raises(GraphError, match="two optimizers of one step are named 'optimizer'"):
        ws.Adam().update(g, b, slope)
    ws.Adam(name="second").update(g, b, slope)
    first.update(g, g.parameter("c", ()), slope)  # the same optimizer may come back, with the same scalars
    assert {"optimizer.lr", "second.lr"} <= set(g.scalars)
    with pytest.raises(GraphError, match="'a' is updated twice"):
        ws.SGD(name="third").update(g, a, slope)


def test_forms_and_mistakes_of_update():
    g = ws.Graph()
    a, slope = g.parameter("a", (2,)), g.input("slope", (2,))
    ws.SGD().update(g, {"a": a}, {"a": slope})
    o = ws.SGD(name="other")
    with pytest.raises(UsageError, match="must have the same keys"):
        o.update(g, {"a": a}, {"b": slope})
    with pytest.raises(UsageError, match="received 1 parameters and 2 gradients"):
        o.update(g, [a], [slope, slope])
    with pytest.raises(UsageError, match=r"the gradient of 'a' must be float32\[2\]; received float32\[\]"):
        o.update(g, a, slope.sum())
    with pytest.raises(UsageError, match="updates parameters and states"):
        o.update(g, slope, slope)
    with pytest.raises(OptionError, match=r"decay_on='v\*' matches none of the parameters \['a'\]"):
        ws.SGD(name="x", weight_decay=0.1, decay_on=("v*",)).update(g, a, slope)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ws.SGD(lr=-0.1), r"(?s)SGD: lr must be at least 0 and finite; received -0\.1.*test_optimizers\.py"),
        (lambda: ws.SGD(lr=float("nan")), "lr must be at least 0"),
        (lambda: ws.Adam(betas=(0.9, 1.0)), r"betas\[1\] must be at least 0 and below 1; received 1\.0"),
        (lambda: ws.Adam(betas=0.9), r"betas must be a pair, e\.g\. \(0\.9, 0\.999\); received 0\.9"),
        (lambda: ws.AdamW(eps=-1.0), "AdamW: eps"),
        (lambda: ws.SGD(nesterov=True), "nesterov needs momentum and no dampening"),
        (lambda: ws.SGD(dampening=0.5), "dampening acts on momentum, which is off"),
    ],
)
def test_options_out_of_range(make, text):
    with pytest.raises(OptionError, match=text):
        make()


def test_parameters_in_the_constructor_are_a_habit():
    w = ws.Graph().parameter("w", ())
    with pytest.raises(UsageError, match=r"(?s)ws\.Adam takes no parameters.*optimizer=ws\.Adam\(lr=0\.01\)"):
        ws.Adam([w], lr=1e-3)
    with pytest.raises(UsageError, match="lr must be a number; received 'fast'"):
        ws.SGD(lr="fast")


def test_equal_structure_means_the_same_program():
    base = ws.SGD(0.1, momentum=0.9)
    assert base.structure() == ws.SGD(0.2, momentum=0.5).structure()
    others = [ws.SGD(0.1), ws.SGD(0.1, momentum=0.9, nesterov=True), ws.SGD(momentum=0.9, decay_on=("*",)), ws.Adam()]
    others += [ws.SGD(0.1, momentum=0.9, name="second"), ws.SGD(0.1, momentum=0.9, weight_decay=0.1)]
    assert all(base.structure() != other.structure() for other in others)
    assert ws.Adam(weight_decay=0.1).structure() != ws.AdamW(weight_decay=0.1).structure()


@pytest.mark.parametrize("kind", [ws.SGD, ws.Adam, ws.AdamW, ws.runtime, ws.Optimizer.sgd, ws.Optimizer.adam])
def test_examples_run(kind):
    example = kind.__doc__.split("Example: `")[1].split("`")[0]
    assert isinstance(eval(example, {"ws": ws}), ws.Optimizer)  # noqa: S307


def test_a_description_is_frozen_plain_data():
    o = ws.SGD(lr=0.1, momentum=ws.runtime(0.5))
    assert o.to_config() == {
        "kind": "SGD", "name": "optimizer", "decay_on": None, "lr": 0.1, "momentum": {"runtime": 0.5},
        "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "groups": [], "maximize": False,
    }  # fmt: skip
    with pytest.raises(AttributeError, match="cannot assign"):
        o.lr = 0.2
