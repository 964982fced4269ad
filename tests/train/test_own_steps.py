"""`ws.fit` of steps of one's own: several modules, metrics, validation, schedules, checkpoints; torch is the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import wholestep as ws
from tests.support.compilers import quick

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)).astype(np.float32)
KIND = (X[:, 0] > 0).astype(np.int32) + (X[:, 1] > 0.5)
XV, KV = X[:10] + 0.1, KIND[:10]
TEACHER = {"weight": RNG.normal(size=(3, 3)).astype(np.float32), "bias": RNG.normal(size=3).astype(np.float32)}
STUDENT = {name: 0.1 * a for name, a in TEACHER.items()}
GIVEN: dict[str, Any] = {
    "batch_size": 8,
    "shuffle": False,
    "progress": False,
    "device": "reference",
    "options": quick(),
}


def distilling() -> tuple[ws.Step, ws.nn.Module, ws.nn.Module]:
    """A student learns labels and a teacher's scores."""
    teacher, student = ws.nn.Linear(3, 3), ws.nn.Linear(3, 3)
    teacher.load_state_dict(TEACHER)
    student.load_state_dict(STUDENT)

    @ws.step(inputs={"x": ws.Spec(("batch", 3)), "kind": ws.Spec(("batch",), "int32")})
    def imitate(g: ws.Graph, x: ws.Tensor, kind: ws.Tensor) -> Any:
        scores, aim = student(x), ws.stop_gradient(teacher(x))
        labels, likeness = ws.losses.cross_entropy(scores, kind), ws.losses.mse_loss(scores, aim)
        loss = labels + 0.5 * likeness
        ws.SGD(lr=0.1).update(g, student.traced(g), ws.gradients(loss, student))
        return {"loss": loss, "labels": labels, "likeness": likeness, "scores": scores}

    return imitate, teacher, student


def by_torch(epochs: int, rates: list[float]) -> dict[str, list[float]]:
    models = {}
    for name, values in (("teacher", TEACHER), ("student", STUDENT)):
        models[name] = torch.nn.Linear(3, 3)
        models[name].load_state_dict({n: torch.tensor(a) for n, a in values.items()})
    teacher, student = models.values()

    def measured(x: np.ndarray, y: np.ndarray) -> dict[str, torch.Tensor]:
        scores = student(torch.tensor(x))
        labels, likeness = (
            F.cross_entropy(scores, torch.tensor(y).long()),
            F.mse_loss(scores, teacher(torch.tensor(x)).detach()),
        )
        right = (scores.argmax(1) == torch.tensor(y)).float().mean()
        return {"loss": labels + 0.5 * likeness, "labels": labels, "likeness": likeness, "accuracy": right}

    out: dict[str, list[float]] = {}
    for epoch in range(epochs):
        sums = dict.fromkeys(("loss", "labels", "likeness", "accuracy"), 0.0)
        for i in range(0, 24, 8):
            found = measured(X[i : i + 8], KIND[i : i + 8])
            for name, value in found.items():
                sums[name] += value.item() / 3
            grads = torch.autograd.grad(found["loss"], list(student.parameters()))
            for p, g in zip(student.parameters(), grads, strict=True):
                p.data -= rates[epoch] * g
        for name, value in {**sums, **{f"val_{n}": v.item() for n, v in measured(XV, KV).items()}}.items():
            out.setdefault(name, []).append(value)
    return out


def test_a_step_is_fitted_measured_and_validated_as_torch_does() -> None:
    step, teacher, student = distilling()
    history = ws.fit(
        step,
        {"x": X, "kind": KIND},
        validation={"x": XV, "kind": KV},
        metrics=[(ws.metrics.Accuracy(), "scores", "kind")],
        schedule=ws.schedules.StepDecay(0.1, 1, 0.5, unit="epoch"),
        epochs=3,
        **{**GIVEN, "device": "cpu", "options": quick()},
    )
    for name, values in by_torch(3, [0.1, 0.05, 0.025]).items():
        np.testing.assert_allclose(history[name], values, rtol=2e-5, err_msg=name)
    np.testing.assert_allclose(history["lr"], [0.1, 0.05, 0.025])
    found = student.evaluate(XV, KV, loss="cross_entropy", metrics=["accuracy"])
    assert history["val_labels"][-1] == pytest.approx(found["loss"], rel=1e-5)
    assert history["val_accuracy"][-1] == found["accuracy"]
    np.testing.assert_array_equal(teacher.state_dict()["weight"], TEACHER["weight"])


def test_a_step_is_stopped_saved_and_gone_on_with(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"validation": (XV, KV), "epochs": 3, "validate_every_steps": 2, **GIVEN}
    (step, _, whole), (other, _, parts) = distilling(), distilling()
    history = ws.fit(step, (X, KIND), **settings)  # the first input and the second
    first = ws.fit(other, (X, KIND), **settings, checkpoint=tmp_path, callbacks=ws.StepBudget(4))
    assert first.epochs[-1].partial
    again = ws.fit(other, (X, KIND), **settings, checkpoint=tmp_path, resume=True, exact=True)
    assert again.to_json() == history.to_json()
    for name, array in whole.state_dict().items():
        assert array.tobytes() == parts.state_dict()[name].tobytes()
    best = ws.load_checkpoint(tmp_path, best="val_loss")
    assert best.logs["val_likeness"] == history["val_likeness"][-1]
    stopping = ws.EarlyStopping("val_likeness", patience=1, min_delta=9.0)
    assert (
        len(ws.fit(distilling()[0], (X, KIND), **{**settings, "validate_every_steps": None}, callbacks=stopping)) == 2
    )


def test_a_gan_of_modules_has_the_numbers_of_torch() -> None:
    """Two networks, two optimizers, both losses in the history."""
    makers = {"g": (2, 3), "d": (3, 1)}
    start = {
        n: {"weight": RNG.normal(size=s[::-1]).astype(np.float32), "bias": np.zeros(s[1], np.float32)}
        for n, s in makers.items()
    }
    generator, critic = ws.nn.Linear(2, 3), ws.nn.Linear(3, 1)
    generator.load_state_dict(start["g"])
    critic.load_state_dict(start["d"])

    @ws.step(inputs={"real": ws.Spec(("batch", 3)), "noise": ws.Spec(("batch", 2))})
    def play(g: ws.Graph, real: ws.Tensor, noise: ws.Tensor) -> Any:
        fake = generator(noise)
        of_real, of_fake = critic(real), critic(ws.stop_gradient(fake))
        yes, no = of_real * 0 + 1.0, of_fake * 0
        bce = ws.losses.binary_cross_entropy_with_logits_loss
        critics, makers = bce(of_real, yes) + bce(of_fake, no), bce(critic(fake), yes)
        ws.SGD(lr=0.1, name="critic").update(g, critic.traced(g), ws.gradients(critics, critic))
        ws.SGD(lr=0.05, name="generator").update(g, generator.traced(g), ws.gradients(makers, generator))
        return {"loss": critics + makers, "critics": critics, "makers": makers}

    noise = RNG.normal(size=(24, 2)).astype(np.float32)
    history = ws.fit(play, {"real": X, "noise": noise}, epochs=2, **GIVEN)
    assert (history.last["lr/critic"], history.last["lr/generator"]) == pytest.approx((0.1, 0.05))

    p = {n: {k: torch.tensor(a, requires_grad=True) for k, a in v.items()} for n, v in start.items()}
    expected: dict[str, list[float]] = {"critics": [], "makers": []}
    for _ in range(2):
        sums = dict.fromkeys(expected, 0.0)
        for i in range(0, 24, 8):
            d = lambda x: x @ p["d"]["weight"].T + p["d"]["bias"]  # noqa: E731
            fake = torch.tensor(noise[i : i + 8]) @ p["g"]["weight"].T + p["g"]["bias"]
            one = torch.ones(8, 1)
            critics = F.binary_cross_entropy_with_logits(d(torch.tensor(X[i : i + 8])), one)
            critics = critics + F.binary_cross_entropy_with_logits(d(fake.detach()), 0 * one)
            makers_loss = F.binary_cross_entropy_with_logits(d(fake), one)
            of_d = torch.autograd.grad(critics, list(p["d"].values()))
            of_g = torch.autograd.grad(makers_loss, list(p["g"].values()))
            for q, g, lr in [
                *((q, g, 0.1) for q, g in zip(p["d"].values(), of_d, strict=True)),
                *((q, g, 0.05) for q, g in zip(p["g"].values(), of_g, strict=True)),
            ]:
                q.data -= lr * g
            sums["critics"] += critics.item() / 3
            sums["makers"] += makers_loss.item() / 3
        for name, value in sums.items():
            expected[name].append(value)
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=2e-5, err_msg=name)
    assert generator.predict(noise).shape == (24, 3)


def test_a_step_takes_data_of_every_kind() -> None:
    def lines(data: Any, **more: Any) -> list[float]:
        return ws.fit(distilling()[0], data, epochs=1, **{**GIVEN, **more})["loss"]

    expected = lines((X, KIND))
    rows = [{"x": X[i : i + 8], "kind": KIND[i : i + 8]} for i in range(0, 24, 8)]
    assert lines(rows) == pytest.approx(expected)
    assert lines(ws.DataLoader((X, KIND), None, 8, shuffle=False)) == pytest.approx(expected)
    assert lines((X, KIND), limit_batches=2, drop_last=True, fast_dev_run=2)[0] != expected[0]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "loss": ({"loss": "mse"}, "loss='mse': a @ws.step function defines that itself: the first output that it returns"),
    "optimizer": ({"optimizer": ws.Adam()}, r"optimizer=.*defines that itself: ws.Adam\(\).update"),
    "accumulate": ({"accumulate": 2}, "accumulate=2: .* give a larger batch_size. Leave accumulate= out"),
    "clip": ({"clip_norm": 1.0}, r"grads, norm = ws.optim.clip_by_global_norm\(grads, 1.0\) there"),
    "norm": ({"gradient_norm": True}, "what it returns is logged"),
    "skip": ({"nonfinite": "skip"}, "nonfinite='skip' cannot be added to a @ws.step function"),
    "names": (
        {"data": {"x": X, "y": KIND}},
        r"takes x, kind; the data has x, y. Name arrays as its inputs: data=\{'x'",
    ),
    "shape": (
        {"data": (X[:, :2], KIND)},
        r"the input 'x' of imitate has shape \(batch, 3\); the data has rows of shape",
    ),
    "nan": ({"data": (X * np.nan, KIND)}, "'x' holds nan at"),
    "held": ({"validation": (XV[:, :2], KV)}, "validation: the input 'x' of imitate has shape"),
    "target": ({"metrics": ["accuracy"]}, "the metric 'accuracy' needs a target, and no input is called"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_step_says_itself_is_told(case: str) -> None:
    settings, text = WRONG[case]
    with pytest.raises(ws.errors.WholestepError, match=text):
        ws.fit(distilling()[0], **{"data": (X, KIND), **GIVEN, **settings})


def test_a_module_needs_a_loss_and_a_graph_a_trainer() -> None:
    with pytest.raises(
        ws.errors.UsageError, match=r"loss= is missing: give what training minimises, e\.g\. loss='cross_en"
    ):
        ws.fit(ws.nn.Linear(3, 3), (X, KIND))
    with pytest.raises(ws.errors.UsageError, match=r"fit trains a ws.nn.Module or a @ws.step function; received Graph"):
        ws.fit(ws.Graph(), (X, KIND), loss="mse")  # type: ignore[arg-type]


def test_a_step_is_trained_by_the_shards_that_fit_is_told() -> None:
    step, _, _ = distilling()
    run = ws.Experiment(model=step, data=(X, KIND), shards=2, options=quick())
    assert run.trainer()[0].session._programs.where.ranks == 2


def test_a_step_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from wholestep.cli import app

    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "import numpy as np\nimport wholestep as ws\n\n"
        "def build() -> ws.Experiment:\n"
        "    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)\n"
        "    net = ws.nn.Linear(3, 1)\n\n"
        "    @ws.step(inputs={'x': ws.Spec(('batch', 3)), 'y': ws.Spec(('batch', 1))})\n"
        "    def fall(g, x, y):\n"
        "        loss = ws.losses.mse_loss(net(x), y)\n"
        "        ws.SGD(lr=0.1).update(g, net.traced(g), ws.gradients(loss, net))\n"
        "        return loss\n\n"
        "    return ws.Experiment(model=fall, data=(x, x[:, :1]), validation=0.25, epochs=2, batch_size=6)\n"
    )
    ran = CliRunner().invoke(app, ["train", "own.py", "--device", "reference", "--no-progress"])
    assert ran.exit_code == 0, ran.output
    last = ws.load_checkpoint("runs/own").logs["val_loss"]
    shown = CliRunner().invoke(app, ["evaluate", "runs/own", "--device", "reference"])
    assert f"loss            {last:.6g}" in shown.output, shown.output
    np.save("x.npy", X)
    refused = CliRunner().invoke(app, ["predict", "runs/own", "x.npy"])
    assert "this run is of a @ws.step function; predict with a module of it" in refused.output
