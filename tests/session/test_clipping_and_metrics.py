"""Clipping, non-finite gradients and metrics inside the step, against torch and against the step without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.sessions import Array, data, mlp
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import GraphError, NonFiniteError, OptionError, UnknownNameError, UsageError


def torch_steps(start: dict[str, Array], clip: Any, steps: int) -> tuple[dict[str, Array], list[float]]:
    """The same network and batches under SGD, its gradients clipped by `clip(parameters)`."""
    p = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    optimizer, norms = torch.optim.SGD(p.values(), lr=0.5), []
    for i in range(steps):
        batch = data(13, seed=i)
        hidden = torch.relu(torch.tensor(batch["x"]) @ p["w1"] + p["b1"])
        loss = torch.nn.functional.cross_entropy(hidden @ p["w2"] + p["b2"], torch.tensor(batch["labels"]).long())
        optimizer.zero_grad()
        loss.backward()
        norms.append(clip(list(p.values())))
        optimizer.step()
    return {name: t.detach().numpy() for name, t in p.items()}, norms


def each_norm(params: list[torch.Tensor]) -> None:
    for p in params:
        torch.nn.utils.clip_grad_norm_([p], 0.2)


CLIPS = {
    "clip_norm": (0.3, lambda ps: torch.nn.utils.clip_grad_norm_(ps, 0.3)),
    "clip_value": (0.02, lambda ps: torch.nn.utils.clip_grad_value_(ps, 0.02)),
    "clip_each": (0.2, each_norm),
}


@pytest.mark.parametrize("option", CLIPS)
def test_torch_agrees(option: str) -> None:
    limit, clip = CLIPS[option]
    session = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.5), batch_size=16, **{option: limit})
    names = ("w1", "b1", "w2", "b2")
    expected, norms = torch_steps({n: session.get(n) for n in names}, clip, 6)
    for i in range(6):
        result = session.step(**data(13, seed=i))
        if option == "clip_norm":
            assert result.metrics["grad_norm"] == pytest.approx(float(norms[i]), rel=1e-5)
    for n in names:
        np.testing.assert_allclose(session.get(n), expected[n], rtol=2e-5, atol=2e-6)


def test_limits_are_runtime_scalars_and_off_is_structure() -> None:
    session = ws.build_session(mlp(), batch_size=16, clip_norm=1.0, clip_value=1.0, clip_each=1.0)
    session.step(**data(8))
    compiles = compile_counter.value
    for name in ("clip.norm", "clip.value", "clip.each"):
        session.scalars[name] = 1e-9
    before = session.get("w1")
    session.step(**data(8))
    np.testing.assert_allclose(session.get("w1"), before, atol=1e-8)
    assert compile_counter.value == compiles
    plain, again = (ws.compile_training_graph(mlp(), batch_size=16)[0] for _ in range(2))
    assert plain == again == ws.build_session(mlp(), batch_size=16).plan


def test_gradients_that_are_kept_are_those_before_clipping() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 2)), g.parameter("w", (2, 1), init=0.0)
    w.keep()
    g.set_outputs([(x @ w).mean()])
    session = ws.build_session(g, optimizer=ws.SGD(lr=1.0), batch_size=4, clip_norm=1.0)
    session.step(x=np.array([[3, 4]], np.float32))
    np.testing.assert_allclose(session.get("w.grad"), [[3], [4]])
    np.testing.assert_allclose(session.get("w"), [[-0.6], [-0.8]], rtol=1e-6)


@pytest.mark.parametrize("option", ["clip_norm", "clip_value", "clip_each"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "1", True])
def test_refused_limits(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=rf"{option}={value!r}: expected a number above 0, or None"):
        ws.build_session(mlp(), batch_size=4, **{option: value})


# -- gradients that are not finite -------------------------------------------------------------------------------


def broken(seed: int) -> dict[str, Array]:
    batch = data(13, seed=seed)
    batch["x"][3, 4] = np.inf
    return batch


@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "batch_size": 8}])
def test_a_skipped_step_changes_no_bit_but_its_count(options: dict[str, Any]) -> None:
    arguments = {"optimizer": ws.Adam(), "batch_size": 16, "metrics": ["accuracy"], **options}
    skipping = ws.build_session(mlp(), nonfinite="skip", schedule=ws.schedules.Exponential(0.1, 0.9), **arguments)
    smooth = ws.build_session(mlp(), nonfinite="skip", schedule=ws.schedules.Exponential(0.1, 0.9), **arguments)
    for i in range(3):
        skipping.step(**data(13, seed=i))
        smooth.step(**data(13, seed=i))
        before = skipping.state_dict()
        skipping.step(**broken(i))
        after = skipping.state_dict()
        changed = [k for k in before if before[k].tobytes() != after[k].tobytes()]
        assert changed == ["nonfinite.skipped"]
    assert skipping.skipped_steps == 3
    assert skipping.state.step == 3
    mine, others = skipping.state_dict(), smooth.state_dict()
    assert [k for k in mine if mine[k].tobytes() != others[k].tobytes()] == ["nonfinite.skipped"]


def test_skipping_in_a_run() -> None:
    whole = data(64)
    whole["x"][20] = np.nan
    session = ws.build_session(mlp(), nonfinite="skip", batch_size=16)
    losses = session.run(**whole, shuffle=False)
    assert np.isnan(losses).tolist() == [False, True, False, False]
    assert (session.skipped_steps, session.state.step) == (1, 3)
    assert np.isfinite(session.get("w1")).all()


def test_large_gradients_are_finite() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 2)), g.parameter("w", (2, 1), init=0.0)
    g.set_outputs([(x @ w).sum()])
    session = ws.build_session(g, optimizer=ws.SGD(lr=1e-30), nonfinite="skip", batch_size=4)
    session.step(x=np.full((1, 2), 1e30, np.float32))  # its square is not
    assert session.skipped_steps == 0


@pytest.mark.parametrize("run", [True, False])
def test_raise_says_so_and_changes_nothing(run: bool) -> None:
    session = ws.build_session(mlp(), nonfinite="raise", batch_size=16)
    session.step(**data(13))
    before = session.get("w1")
    with pytest.raises(
        NonFiniteError, match=r"step 1: \d+ elements of the loss and the gradients .* No state was changed"
    ):
        session.run(**broken(0)) if run else session.step(**broken(0))
    assert session.get("w1").tobytes() == before.tobytes()


def test_ignore_is_the_default_and_other_words_are_refused() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    session.step(**broken(0))
    assert np.isnan(session.get("w1")).any()
    with pytest.raises(OptionError, match="nonfinite='no': expected one of 'ignore', 'skip', 'raise'"):
        ws.build_session(mlp(), batch_size=16, nonfinite="no")


# -- metrics -----------------------------------------------------------------------------------------------------


def accuracy(session: ws.Session, batch: dict[str, Array]) -> float:
    return float((session.predict(x=batch["x"]).argmax(1) == batch["labels"]).mean())  # type: ignore[union-attr]


def test_metrics_of_an_epoch_and_of_an_evaluation() -> None:
    session = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.0), batch_size=16, metrics=["accuracy"])
    parts = [data(16, seed=1), data(5, seed=2)]
    right = sum(accuracy(session, p) * len(p["x"]) for p in parts)
    for part in parts:
        result = session.step(**part)
    metrics = result.metrics
    assert metrics == {"accuracy": pytest.approx(right / 21)}
    held_out = data(16, seed=3)
    evaluated = session.evaluate(**held_out)
    assert evaluated.metrics == {"accuracy": pytest.approx(accuracy(session, held_out))}
    assert session.metrics("evaluate") == evaluated.metrics
    assert session.metrics() == metrics
    assert session.end_epoch() == metrics
    assert np.isnan(session.metrics()["accuracy"])
    whole = data(70)
    session.run(**whole, epochs=2)
    rows = [accuracy(session, {k: v[i : i + 1] for k, v in whole.items()}) for i in range(70)]
    assert session.metrics() == {"accuracy": pytest.approx(np.mean(rows))}


def test_metrics_change_no_bit_of_training() -> None:
    plain, measured = (
        ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, metrics=m) for m in ((), ["accuracy"])
    )
    for i in range(4):
        for session in (plain, measured):
            session.step(**data(13, seed=i))
        measured.evaluate(**data(7))
    assert measured.state.step == 4
    for name, value in plain.state_dict().items():
        assert measured.state_dict()[name].tobytes() == value.tobytes()


def test_a_metric_says_what_it_is_about() -> None:
    g = ws.Graph()
    x, y = g.input("x", ("batch", 4)), g.input("kind", ("batch",), "int32")
    w = g.parameter("w", (4, 3))
    logits = x @ w
    loss = ws.losses.cross_entropy(logits, y)
    g.set_outputs({"loss": loss, "other": logits * 0.0, "logits": logits})
    named = ws.build_session(g, batch_size=8, metrics=[("accuracy", "logits", "kind")])
    batch = {"x": np.eye(4, dtype=np.float32), "kind": np.array([0, 1, 2, 0], np.int32)}
    named.step(**batch)
    assert 0 <= named.metrics()["accuracy"] <= 1
    with pytest.raises(
        GraphError, match=r"needs a target, and no input is called 'labels' or .*inputs: \['x', 'kind'\]"
    ):
        ws.build_session(g, batch_size=8, metrics=["accuracy"])
    with pytest.raises(GraphError, match=r"about the output 'score'; there are: \['loss', 'other', 'logits'\]"):
        ws.build_session(g, batch_size=8, metrics=[("accuracy", "score", "kind")])
    alone = mlp()
    alone.set_outputs([alone.outputs["loss"]])
    with pytest.raises(GraphError, match="needs a prediction, and the loss is the only output"):
        ws.build_session(alone, batch_size=8, metrics=["accuracy"])
    with pytest.raises(OptionError, match="two metrics are called 'accuracy'"):
        ws.build_session(mlp(), batch_size=8, metrics=["accuracy", ws.metrics.Accuracy(threshold=0.3)])
    with pytest.raises(UnknownNameError, match="there is no metric 'accurasy'"):
        ws.build_session(mlp(), batch_size=8, metrics=["accurasy"])
    with pytest.raises(UsageError, match="metrics must be a list of metrics"):
        ws.build_session(mlp(), batch_size=8, metrics=3)


# -- the session's wiring ----------------------------------------------------------------------------------------


def test_a_step_written_by_hand_takes_schedules_and_records_the_rest_itself() -> None:
    @ws.step(inputs={"x": ws.Spec(("batch", 2))})
    def train(g: ws.Graph, x: ws.Tensor) -> dict[str, ws.Tensor]:
        w = g.parameter("w", (2, 1), init=0.0)
        loss = (x @ w).mean()
        grads, norm = ws.optim.clip_by_global_norm(ws.gradients(loss, [w]), 1.0)
        ws.SGD(lr=9.0).update(g, [w], grads)
        return {"loss": loss, "norm": norm}

    session = ws.build_session(train, batch_size=4, schedule=ws.schedules.Constant(2.0))
    assert float(session.step(x=np.array([[3, 4]], np.float32))["norm"]) == 5.0
    np.testing.assert_allclose(session.get("w"), [[-1.2], [-1.6]], rtol=1e-6)
    for options in ({"clip_norm": 1.0}, {"accumulate": 2}, {"nonfinite": "skip"}):
        with pytest.raises(
            UsageError, match="of these options it takes only metrics=, schedule=, precision= and memory="
        ):
            ws.build_session(train, batch_size=4, **options)  # type: ignore[arg-type]
    assert session.evaluate(x=np.ones((9, 2), np.float32)).loss == pytest.approx(-2.8)  # without the update
    assert session.get("w").sum() == pytest.approx(-2.8)
    with pytest.raises(
        UsageError, match=r"gradients needs gradients and updates as separate programs, and a @ws.step function has"
    ):
        session.gradient_stats(x=np.ones((1, 2), np.float32))


def test_set_optimizer() -> None:
    session = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.1), batch_size=16, clip_norm=1.0)
    session.step(**data(8))
    compiles, before = compile_counter.value, session.get("w1")
    session.set_optimizer(ws.SGD(lr=0.0))
    session.step(**data(8))
    assert compile_counter.value == compiles
    assert session.get("w1").tobytes() == before.tobytes()
    session.set_optimizer(ws.AdamW(lr=1e-3))
    assert "grad_norm" in session.step(**data(8)).metrics
    with pytest.raises(UsageError, match=r"such as ws.Adam\(lr=1e-3\), or a name such as 'adam'; received 3"):
        session.set_optimizer(3)  # type: ignore[arg-type]
    session.set_optimizer("adam")
    assert session.optimizer.lr == ws.Adam().lr


def test_typos_teach() -> None:
    session = ws.build_session(mlp(), batch_size=16)
    x, labels = data(8).values()
    with pytest.raises(UsageError, match=r"by name: session.step\(x=..., labels=...\); received 2 by position"):
        session.step(x, labels)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"by name: session.run\(x=..., labels=...\); received 1 by position"):
        session.run(x)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"run has no option 'epoch'; did you mean epochs=3\?"):
        session.run(x=x, labels=labels, epoch=3)


def test_an_output_that_is_no_scalar_is_no_loss() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 2))
    g.set_outputs([x * 2.0, x.sum()])
    out = ws.build_inference_session(g, batch_size=4).step(x=np.ones((1, 2), np.float32)).outputs
    assert list(out) == ["output", "output1"]
    g.set_outputs([x.sum()])
    assert list(g.outputs) == ["loss"]
