"""Entry points of a forward graph: train, evaluate, predict."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.recording import initial_state, run
from wholestep.errors import GradientError, GraphError, OptionError, ShapeError
from wholestep.steps.evaluate import evaluate_graph, predict_graph
from wholestep.steps.options import StepOptions
from wholestep.steps.train import train_graph

RNG = np.random.default_rng(0)


def mlp(dtype="float32"):
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 6), dtype), g.input("labels", ("batch",), "int32")
    w1, b1 = g.parameter("w1", (6, 5), dtype=dtype), g.parameter("b1", (5,), dtype=dtype)
    w2 = g.parameter("w2", (5, 3), dtype=dtype)
    logits = ws.relu(x @ w1 + b1) @ w2
    g.set_outputs([ws.losses.cross_entropy(logits, labels), logits])
    return g


def test_a_network_trains_as_torch_trains_it():
    graph = train_graph(mlp("float64"), ws.Adam(lr=1e-2))
    state = initial_state(graph, seed=3)
    twins = {n: torch.nn.Parameter(torch.tensor(state[n])) for n in ("w1", "b1", "w2")}
    optimizer = torch.optim.Adam(twins.values(), lr=1e-2)
    for step in range(20):
        x, labels = RNG.normal(size=(4 + step % 3, 6)), RNG.integers(0, 3, 4 + step % 3).astype(np.int32)
        result = run(graph, {"x": x, "labels": labels}, state=state, step=step)
        state = result.state
        logits = torch.relu(torch.tensor(x) @ twins["w1"] + twins["b1"]) @ twins["w2"]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(result.outputs["loss"], loss.item(), rtol=1e-10)
    for name, twin in twins.items():
        np.testing.assert_allclose(state[name], twin.detach(), rtol=1e-8, atol=1e-10)


def test_the_entry_points_of_one_graph():
    g = mlp()
    train, evaluate, predict = train_graph(g, ws.SGD()), evaluate_graph(g), predict_graph(g)
    assert [o.name for o in train.outputs] == [o.name for o in evaluate.outputs] == ["loss", "output1"]
    assert [u.name for u in train.updates] == ["w1", "b1", "w2"]
    assert not evaluate.updates
    assert [o.name for o in predict.outputs] == ["output1"]
    assert [i.name for i in predict.inputs] == ["x"]
    assert list(g.states) == ["w1", "b1", "w2"]
    assert [n.op for n in evaluate.nodes].count("gradient") == 0


def test_the_users_own_updates_stay():
    g = mlp()
    count = g.state("count", ())
    g.update(count, count + 1.0)
    assert [u.name for u in train_graph(g, ws.SGD()).updates] == ["count", "w1", "b1", "w2"]


def test_a_kept_parameters_gradient_can_be_read():
    g = mlp()
    g.parameters["w2"].keep()
    graph = train_graph(g, ws.SGD())
    out = run(graph, {"x": RNG.normal(size=(4, 6)), "labels": np.zeros(4, np.int32)}).outputs
    assert set(out) == {"loss", "output1", "w2.grad"}
    assert out["w2.grad"].shape == (5, 3)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_session_accepts_what_the_advice_says(accumulate):
    g = mlp()
    g.parameter("lonely", (3,), init=1.0)
    session = ws.build_session(g, batch_size=4, accumulate=accumulate, unused=["lonely"])
    before = session.get("w1")
    session.step(x=RNG.normal(size=(4, 6)).astype(np.float32), labels=np.zeros(4, np.int32))
    assert "lonely" not in session.state_dict()
    assert (session.get("w1") != before).any()


def test_an_unused_parameter_is_named():
    g = mlp()
    g.parameter("lonely", (3,))
    with pytest.raises(GradientError, match=r"(?s)does not depend on 'lonely' \(made at .*unused=\['lonely'\]"):
        train_graph(g, ws.SGD())
    for allowed in ({"options": StepOptions(unused=("lone*",))}, {"trainable": ["w1", "b1"]}):
        assert "lonely" not in [u.name for u in train_graph(g, ws.SGD(), **allowed).updates]
    assert [u.name for u in train_graph(g, ws.SGD(), trainable=["w*"]).updates] == ["w1", "w2"]
    with pytest.raises(OptionError, match=r"trainable='v' matches none of the parameters"):
        train_graph(g, ws.SGD(), trainable=["v"])


def test_graphs_without_a_loss():
    with pytest.raises(GraphError, match="no outputs"):
        train_graph(ws.Graph(), ws.SGD())
    g = ws.Graph()
    g.set_outputs([g.parameter("w", (2,)) * 2.0])
    with pytest.raises(ShapeError, match=r"a float scalar; received float32\(2,\)"):
        train_graph(g, ws.SGD())
    with pytest.raises(GraphError, match="nothing to predict"):
        predict_graph(g)
