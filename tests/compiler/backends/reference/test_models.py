"""The model suite on the reference backend, step by step against the interpreter: training, metrics, predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.steps.evaluate import evaluate_graph, predict_graph
from wholestep.steps.train import train_graph

Array = np.ndarray[Any, Any]

SEED, STEPS, CLASSES, WORDS = 3, 3, 10, 17
UNCHECKED = ws.CompileOptions(verify=False)  # the test is the check
# Sums of a few hundred terms are added up in float64 and rounded once; three steps pass their roundings on.
ROUNDINGS = 150


@dataclass(frozen=True)
class Case:
    model: Callable[[], ws.nn.Module]
    shape: tuple[int, ...]  # of one row
    optimizer: ws.optim.Optimizer
    rows: int = 4

    @property
    def reads_words(self) -> bool:
        return len(self.shape) == 1 and self.shape[0] == 6

    def data(self, rows: int, seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        if self.reads_words:
            x, y = (rng.integers(0, WORDS, (rows, *self.shape)).astype(np.int32) for _ in range(2))
            return {"x": x, "labels": y}
        x = rng.standard_normal((rows, *self.shape), dtype=np.float32)
        return {"x": x, "labels": rng.integers(0, CLASSES, rows).astype(np.int32)}


def mlp() -> ws.nn.Module:
    layers = ws.nn.Linear(20, 24), ws.nn.ReLU(), ws.nn.Dropout(0.3), ws.nn.Linear(24, 16), ws.nn.Tanh()
    return ws.nn.Sequential(*layers, ws.nn.Linear(16, CLASSES))


MODELS = {
    "mlp": Case(mlp, (20,), ws.Adam(lr=1e-3), rows=9),
    "lenet": Case(ws.models.lenet5, (1, 28, 28), ws.SGD(lr=1e-2, momentum=0.9)),
    "resnet": Case(ws.models.resnet20, (3, 8, 8), ws.SGD(lr=1e-2)),
    # The bias of keys has no gradient but for rounding, which Adam would divide by itself.
    "gpt": Case(
        lambda: ws.models.gpt2(layers=2, width=16, heads=2, vocabulary=WORDS, context=6),
        (6,),
        ws.SGD(lr=0.1, momentum=0.9),
    ),
    "lstm": Case(lambda: ws.models.lstm_lm(WORDS, width=12, layers=2), (6,), ws.Adam(lr=1e-3)),
}


def recorded(case: Case) -> ws.Graph:
    """The model's loss and scores over a batch of any size."""
    g, example = ws.Graph(), case.data(1, 0)
    x, y = (g.input(name, ("batch", *a.shape[1:]), a.dtype) for name, a in example.items())
    scores = case.model()(x)
    scores = scores[0] if isinstance(scores, tuple) else scores
    g.set_outputs({"loss": ws.losses.cross_entropy(scores, y), "scores": scores})
    return g


def meaning(graph: ir.IRGraph) -> ir.IRGraph:
    return strip_stop_gradients(expand_gradients(inline_calls(graph)))


def assert_near(got: Any, want: Any, what: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    limit = ROUNDINGS * np.finfo(np.float32).eps * max(1e-2, float(np.abs(want).max(initial=0.0)))
    worst = float(np.abs(got - want).max(initial=0.0))
    assert worst <= limit, f"{what} is off by {worst:.3g}, allowed {limit:.3g}"


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_to_the_interpreters_values(name: str) -> None:
    case = MODELS[name]
    graph = recorded(case)
    session = ws.build_session(
        graph, optimizer=case.optimizer, batch_size=case.rows, seed=SEED, device="reference", options=UNCHECKED
    )
    step = meaning(train_graph(graph.copy(), case.optimizer))
    state: Mapping[str, Array] = {n: session.state.get(n) for n in step.states()}
    for number in range(STEPS):
        batch = case.data(case.rows - number % 2, number)  # a full batch, then a smaller one
        result = session.step(**batch)
        want = interpret(step, inputs=batch, state=state, seed=SEED, step=number)
        state = want.state
        for output, value in want.outputs.items():
            assert_near(result[output], value, f"{output} of step {number}")
    for weight, value in state.items():
        assert_near(session.state.get(weight), value, weight)
    check_the_others(case, graph, session, state)


def check_the_others(case: Case, graph: ws.Graph, session: ws.Session, state: Mapping[str, Array]) -> None:
    """`evaluate` and `predict` after training."""
    batch = case.data(case.rows, 7)
    measured = interpret_entry(evaluate_graph(graph), batch, state)
    assert_near(session.evaluate(**batch).loss, measured["loss"], "the loss of evaluate")
    scores = interpret_entry(predict_graph(graph), {"x": batch["x"]}, state)
    predicted = session.predict(x=batch["x"])
    assert_near(predicted, scores["scores"], "what predict gives")


def interpret_entry(graph: ir.IRGraph, batch: Mapping[str, Array], state: Mapping[str, Array]) -> Mapping[str, Array]:
    meant = meaning(graph)
    held = {name: state[name] for name in meant.states()}
    return interpret(meant, inputs=batch, state=held, seed=SEED, step=STEPS).outputs


@pytest.mark.parametrize(("name", "precision"), [*((n, "bfloat16") for n in MODELS), ("gpt", "float16")])
def test_a_model_trains_in_half_precision(name: str, precision: str) -> None:
    """A step is held against the interpreter, which rounds where the graph says, by the session's own check."""
    case = MODELS[name]
    options = ws.CompileOptions(verify=True, cache=False)
    arguments = {"optimizer": case.optimizer, "batch_size": case.rows, "seed": SEED, "device": "reference"}
    half = ws.build_session(recorded(case), precision=precision, options=options, **arguments)
    assert "note: checked against the interpreter at batch=3" in str(half.report())
    single = ws.build_session(recorded(case), options=UNCHECKED, **arguments)
    losses = [[float(s.step(**case.data(case.rows, n))) for n in range(STEPS)] for s in (half, single)]
    np.testing.assert_allclose(*losses, rtol=0.03)
    assert losses[0] != losses[1]
