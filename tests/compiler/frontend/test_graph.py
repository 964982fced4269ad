"""Graphs: names, outputs, updates, entry points."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.support.recording import run
from wholestep.errors import DTypeError, GraphError, OptionError, ShapeError

HOSTILE = ['quote"', "new\nline", "名前", "a b", "'); system(\"", "x/../y", "\\"]


@pytest.mark.parametrize("kind", ["input", "parameter", "state"])
def test_names_are_unique_and_not_empty(kind):
    g = ws.Graph()
    make = getattr(g, kind)
    make("a", (2,))
    with pytest.raises(GraphError, match=rf"(?s)'a' is already used by the {kind} at .*test_graph\.py:\d+: make"):
        make("a", (2,))
    with pytest.raises(GraphError, match="non-empty string; received ''"):
        make("", (2,))
    with pytest.raises(GraphError, match="non-empty string; received 3"):
        make(3, (2,))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_names(name):
    g = ws.Graph()
    w = g.parameter(name, (2,), init=1.0)
    g.set_outputs([(w * g.input(name, (2,))).sum().keep(f"{name} kept")])
    assert run(g.to_ir(), {name: np.array([1.0, 2.0])}).outputs[f"{name} kept"] == 3.0
    assert str(g)


def test_an_input_and_a_parameter_may_share_a_name_but_states_may_not():
    g = ws.Graph()
    g.input("a", (2,))
    g.parameter("a", (2,))
    with pytest.raises(GraphError, match="already used by the parameter"):
        g.state("a", (2,))


def test_outputs_have_names():
    g = ws.Graph()
    x = g.input("x", ("batch", 3))
    hidden = (x * 2.0).keep("hidden")
    loss = hidden.mean()
    g.set_outputs([loss, x + 1.0, hidden])
    assert list(g.outputs) == ["loss", "output1", "hidden"]
    assert [o.name for o in g.to_ir().outputs] == ["loss", "output1", "hidden"]
    g.set_outputs({"error": loss, "logits": x})
    assert [o.name for o in g.to_ir().outputs] == ["error", "logits", "hidden"]


def test_kept_tensors():
    g = ws.Graph()
    x = g.input("x", (3,))
    w = g.parameter("w", (3,), init=2.0).keep()
    doubled = (x * w).keep()
    assert doubled.name == "kept0"
    constant = g.constant(3.0).keep("three")
    g.set_outputs([doubled.sum() * constant])
    assert run(g.to_ir(), {"x": np.ones(3)}).outputs.keys() == {"loss", "kept0", "three"}
    with pytest.raises(GraphError, match="'three' belongs to"):
        (x + 1.0).keep("three")
    with pytest.raises(GraphError, match="'w' belongs to"):
        (x + 1.0).keep("w")


def test_bad_outputs():
    g = ws.Graph()
    x = g.input("x", (3,))
    for wrong in (x, [], {}):
        with pytest.raises(GraphError, match="a list of tensors, the loss first"):
            g.set_outputs(wrong)
    with pytest.raises(GraphError, match="needs tensors; received 3"):
        g.set_outputs([3])
    with pytest.raises(GraphError, match="belongs to another graph"):
        g.set_outputs([ws.Graph().input("y", ())])
    g.parameter("w", (3,))
    with pytest.raises(GraphError, match="cannot be named 'w'"):
        g.set_outputs({"w": x})


def test_updates_happen_together_at_the_end():
    g = ws.Graph()
    a, b = g.state("a", (), init=1.0), g.state("b", (), init=2.0)
    g.update(a, b)
    g.update(b, a)
    g.set_outputs([a + b])
    assert {k: float(v) for k, v in run(g.to_ir()).state.items()} == {"a": 2.0, "b": 1.0}
    with pytest.raises(GraphError, match="'a' is updated twice"):
        g.update(a, b)
    with pytest.raises(GraphError, match="only states and parameters"):
        g.update(a + b, b)
    with pytest.raises(ShapeError, match=r"must be float32\[\]; received float32\[2\]"):
        g.update(g.state("c", ()), g.input("x", (2,)))


def test_what_lives_between_steps_has_a_fixed_size_and_is_trained_as_float():
    g = ws.Graph()
    with pytest.raises(ShapeError, match="fixed size"):
        g.parameter("w", ("batch", 3))
    with pytest.raises(DTypeError, match="not a float"):
        g.parameter("w", (3,), dtype="int32")
    with pytest.raises(OptionError, match="is no initialiser"):
        g.parameter("w", (3,), init="zeros")
    with pytest.raises(DTypeError, match=r"(?s)not a dtype.*test_graph\.py"):
        g.input("x", (3,), "complex64")
    with pytest.raises(ShapeError, match=r"(?s)negative.*test_graph\.py"):
        g.input("x", (-3,))


def test_named_tensors_are_inputs_or_states():
    g = ws.Graph()
    a, b, c = g.named_tensor("a", 2), g.named_tensor("b", [2.0, 3.0]), g.tensor(np.array([1.0, 5.0]))
    assert [t.node.op for t in (a, b, c)] == ["input", "state", "state"]
    assert (a.shape, c.name) == ((2,), "tensor0")
    g.set_outputs([(a * b * c).sum_reduce(0)])
    assert run(g.to_ir(), {"a": np.array([10.0, 1.0])}).outputs["loss"] == 35.0


def test_builder_names():
    g = ws.Graph()
    x, labels = g.input("x", (4, 3)), g.input("labels", (4, 2))
    h = g.relu(g.bias_add(g.matmul(x, g.parameter("w", (3, 2))), g.parameter("b", (2,))))
    g.set_outputs([g.cross_entropy_loss(h, labels), g.mean_all(h)])
    ops = [n.op for n in g.toposort()]
    assert {"matmul", "relu", "log_softmax", "ratio"} <= set(ops)
    with pytest.raises(ShapeError, match=r"needs a bias of shape \(3,\); received \(4, 3\)"):
        g.bias_add(x, x)


def test_toposort_and_text():
    g = ws.Graph()
    x = g.input("x", (3,))
    g.set_outputs([(x * 2.0 + x.exp()).sum()])
    nodes = g.toposort()
    place = {n: i for i, n in enumerate(nodes)}
    assert all(place[i] < place[n] for n in nodes for i in n.inputs)
    lines = str(g).splitlines()
    assert sum(" = " in line and "output" not in line for line in lines) == len(nodes)


def test_scopes_prefix_what_lives_in_them():
    g = ws.Graph()
    with g.scope("encoder"), g.scope("0"):
        w = g.parameter("w", (2, 2))
    assert w.name == "encoder.0.w"
    assert g.parameter("w", (2, 2)).name == "w"


def test_a_copy_is_independent():
    g = ws.Graph()
    g.set_outputs([g.parameter("w", ()) * 2.0])
    copy = g.copy()
    copy.state("extra", ())
    assert list(g.states) == ["w"]
