"""Programs as the documents that this library grew from write them: they run, or are answered with what to write."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import wholestep as ws
from tests.support.sessions import data, mlp
from wholestep.errors import HabitError, UnknownNameError, UsageError

ADAM_AFTER_100 = 0.93755360  # from 0 towards 3 at lr 0.01


# -- a graph with an optimizer and no loss ---------------------------------------------------------------------------


def test_adam_on_a_graph_without_a_loss() -> None:
    """The second example of Luminal's guide, line by line."""
    graph = ws.Graph()
    x = graph.tensor([0.0]).keep()
    target = graph.constant(3.0).keep()
    gradient = graph.constant(2.0) * (x - target)
    gradient.keep()
    adam = ws.AdamOptimizer(graph, [x], [gradient])
    adam.set_learning_rate(1e-2, graph)
    session = ws.build_session(graph)
    for _ in range(100):
        before = session.get(x)
        result = session.step()
        np.testing.assert_allclose(session.get(gradient), 2.0 * (before - 3.0), rtol=1e-6)
        adam.step_after_execution(graph)
    assert np.isnan(result.loss)  # there is none
    np.testing.assert_allclose(session.get(x), [ADAM_AFTER_100], rtol=1e-6)
    np.testing.assert_array_equal(session.get(adam.new_weights()[0]), session.get(x))
    np.testing.assert_array_equal(adam.new_weight_datas(graph)[0], session.get(x))
    assert session.get(target) == 3.0


@pytest.mark.parametrize("kind", ["parameter", "state"])
def test_sgd_on_a_graph_without_a_loss(kind: str) -> None:
    graph = ws.Graph()
    w = graph.parameter("w", (1,), init=0.0) if kind == "parameter" else graph.tensor([0.0])
    (new,), lr = ws.sgd_on_graph(graph, [w], [2.0 * (w - 3.0)])
    session = ws.build_session(graph)
    session.scalars[lr.name] = 0.25
    for expected in (1.5, 2.25, 2.625):
        session.step()
        assert session.get(w) == session.get(new) == [expected]


def test_a_second_optimizer_needs_a_loss() -> None:
    graph = ws.Graph()
    w = graph.parameter("w", (1,), init=0.0)
    ws.sgd_on_graph(graph, [w], [2.0 * (w - 3.0)])
    with pytest.raises(
        UsageError, match=r"the graph has no outputs.*it updates w itself\. Leave optimizer= out, or declare"
    ):
        ws.build_session(graph, optimizer=ws.Adam())


def test_the_setters_of_an_optimizer_refuse_another_graph() -> None:
    graph = ws.Graph()
    x = graph.tensor([0.0])
    adam = ws.AdamOptimizer(graph, [x], [x - 3.0])
    for call in (adam.set_learning_rate, adam.set_beta1, adam.set_beta2, adam.set_epsilon):
        call(0.5, graph)
        with pytest.raises(UsageError, match="this optimizer was added to another graph"):
            call(0.5, ws.Graph())
    for read in (adam.step_after_execution, adam.new_weight_datas):
        with pytest.raises(UsageError, match="this optimizer was added to another graph"):
            read(ws.Graph())


def test_a_tensor_that_nobody_kept_is_not_read() -> None:
    graph = mlp()
    session = ws.build_session(graph, batch_size=4)
    np.testing.assert_array_equal(session.get(graph.parameters["w1"]), session.get("w1"))
    with pytest.raises(
        UnknownNameError, match=r"only states, outputs and kept tensors are\. .* write tensor\.keep\(\)"
    ):
        session.get(graph.parameters["w1"] * 2.0)
    with pytest.raises(UsageError, match=r"session\.get takes a name or a tensor of the graph; received 3"):
        session.get(3)


# -- names -------------------------------------------------------------------------------------------------------------

ANSWERS = {
    ("graph", "compile"): r"ws\.build_session\(graph\)",
    ("graph", "execute"): r"session\.step\(\*\*inputs\)",
    ("graph", "retrieve"): r"session\.get\(tensor\)",
    ("tensor", "retrieve"): r"session\.get\(tensor\)",
    ("session", "retrieve"): r"session\.get\(tensor\)",
    ("session", "execute"): r"session\.step\(\*\*inputs\)",
    ("session", "ForwardCPU"): r"session\.forward",
    ("session", "BackwardCPU"): r"session\.backward",
    ("session", "ApplyGradients"): r"session\.apply_gradients",
    ("session", "ClipGradients"): r"session\.clip_gradients",
    ("session", "SetOptimizer"): r"session\.set_optimizer",
    ("session", "SetObserver"): r"session\.set_observer",
    ("session", "PrintGradientStats"): r"session\.print_gradient_stats",
    ("trainer", "session_mut"): r"trainer\.session",
    ("trainer", "into_session"): r"trainer\.session",
}


@pytest.fixture(scope="module")
def objects() -> dict[str, object]:
    graph = mlp()
    session = ws.build_session(graph, batch_size=4)
    return {
        "graph": graph, "session": session, "trainer": ws.Trainer(session), "tensor": graph.parameters["w1"],
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), ANSWERS)
def test_a_name_of_an_ancestor_is_answered(objects: dict[str, object], kind: str, name: str) -> None:
    with pytest.raises(HabitError, match=f"a {kind} has no `{name}`: .*{ANSWERS[kind, name]}"):
        getattr(objects[kind], name)


@pytest.mark.parametrize("kind", ["graph", "session", "trainer"])
def test_any_other_name_is_an_attribute_error(objects: dict[str, object], kind: str) -> None:
    with pytest.raises(AttributeError, match=f"'{kind.capitalize()}' object has no attribute 'no_such_name'"):
        objects[kind].no_such_name  # noqa: B018


def test_what_answers_name_is_there(objects: dict[str, object]) -> None:
    methods = "forward backward apply_gradients clip_gradients set_optimizer set_observer print_gradient_stats get step"
    assert [name for name in methods.split() if not hasattr(objects["session"], name)] == []


# -- what the log and a trace say ---------------------------------------------------------------------------------


def test_a_cached_session_logs_hit_miss_and_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mlp.plan"

    def logged(**arguments: int) -> str:
        caplog.clear()
        with caplog.at_level(logging.INFO, "wholestep"):
            ws.build_session_cached(mlp(), path, **arguments)
        return caplog.text

    first = logged(batch_size=4)
    assert f"no valid cache in {path}, the step is planned: there is no such file" in first
    assert f"saved the plan to {path}" in first
    second = logged(batch_size=4)
    assert f"loaded the plan from {path}" in second
    assert "no valid cache" not in second
    assert "saved" not in second
    assert "no valid cache" in (third := logged(batch_size=8))
    assert "it is for another graph, optimizer, capacity, device, option or version" in third
    path.write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="is not used"):
        assert "the step is planned: this is not a plan file" in logged(batch_size=8)


def test_the_trace_of_an_epoch_over_arrays_has_set_input() -> None:
    session = ws.build_session(mlp(), batch_size=4)
    rows = data(8)
    ws.Trainer(session).train(ws.DataLoader(rows["x"], rows["labels"], batch_size=4), 1)
    (epoch,) = (s for s in session.spans if s.name == "train_epoch")
    inputs = [s for s in session.spans if s.name == "set_input"]
    assert [s.depth for s in inputs] == [epoch.depth + 1]
    session.set_input("x", rows["x"][:4])
    assert len([s for s in session.spans if s.name == "set_input"]) == 2


def test_the_report_of_a_small_mlp_names_no_rewrite_of_no_gain() -> None:
    """784-128-10 with cross entropy: all that rules find there is one operation on a scalar less."""
    g = ws.Graph()
    x, labels = g.input("x", (4, 784)), g.input("labels", (4, 10))
    w1, b1, w2 = g.parameter("w1", (784, 128)), g.parameter("b1", (128,)), g.parameter("w2", (128, 10))
    logits = g.matmul(g.relu(g.bias_add(g.matmul(x, w1), b1)), w2)
    g.set_outputs([g.cross_entropy_loss(logits, labels)])
    _, report = ws.compile_training_graph(g)
    assert report.fusions_applied == ()
    assert all(stage.cost_after == stage.cost_before for stage in report.egraph)


# -- callbacks in a loop of one's own ---------------------------------------------------------------------------------


def test_callbacks_are_composed_without_naming_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ML Odyssey's third pattern: the session is the only one of the process that trains."""
    monkeypatch.chdir(tmp_path)
    session = ws.build_session(mlp(), batch_size=8)
    monkeypatch.setattr("wholestep.session.session.alive", [session])  # other tests have theirs
    callbacks = ws.CallbackList([
        ws.EarlyStopping(patience=10),
        ws.ModelCheckpoint("checkpoints/"),
        ws.CSVLogger("training.log"),
        ws.TensorBoardLogger("logs/"),
    ])  # fmt: skip
    for epoch in range(2):
        callbacks.on_epoch_begin(epoch)
        loss = float(session.step(data(8)))
        callbacks.on_epoch_end(epoch, {"loss": loss, "val_loss": loss})
    callbacks.on_train_end()
    assert len(Path("training.log").read_text().splitlines()) == 3
    assert list(Path("checkpoints").iterdir())
    assert list(Path("logs").iterdir())
