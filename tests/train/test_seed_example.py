"""The examples of the third seed, word for word but for the language: `var`, types, and where things come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.losses.table import LOSSES

EXAMPLE = """
# Create optimizer
var optimizer = Adam(
    learning_rate=0.001,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-8
)

# Create learning rate scheduler
var scheduler = CosineAnnealingLR(
    optimizer=optimizer,
    T_max=100,
    eta_min=1e-6
)

# Create metrics
var train_loss = LossTracker()
var train_acc = Accuracy()
var val_loss = LossTracker()
var val_acc = Accuracy()

# Create callbacks
var early_stopping = EarlyStopping(
    monitor="val_loss",
    patience=10,
    mode="min"
)

var checkpoint = ModelCheckpoint(
    filepath="checkpoints/best_model.mojo",
    monitor="val_acc",
    mode="max"
)

# Create and run training loop
var loop = BasicTrainingLoop(
    model=my_model,
    optimizer=optimizer,
    scheduler=scheduler,
    metrics=[train_loss, train_acc, val_loss, val_acc],
    callbacks=[early_stopping, checkpoint]
)

loop.fit(
    train_data=train_loader,
    val_data=val_loader,
    epochs=100
)
"""


def torch_rates(epochs: int) -> list[float]:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=0.001)
    scheduler, used = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100, 1e-6), []
    for _ in range(epochs):
        used.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return used


def test_the_example_runs_and_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = ws.datasets.digits()
    names = {
        "Adam": ws.Adam, "CosineAnnealingLR": ws.schedules.CosineAnnealingLR, "LossTracker": ws.metrics.LossTracker,
        "Accuracy": ws.metrics.Accuracy, "EarlyStopping": ws.EarlyStopping, "ModelCheckpoint": ws.ModelCheckpoint,
        "BasicTrainingLoop": ws.BasicTrainingLoop, "my_model": ws.nn.Linear(64, 10),
        "train_loader": ws.DataLoader(x[:200], y[:200], 50), "val_loader": ws.DataLoader(x[200:300], y[200:300], 50),
    }  # fmt: skip
    text = EXAMPLE.replace("var ", "").replace("loop.fit(", "history = loop.fit(")
    exec(text, names)
    history: ws.TrainHistory = names["history"]  # type: ignore[assignment]
    assert history.names == ["loss", "accuracy", "val_loss", "val_accuracy", "lr"]
    np.testing.assert_allclose(history["lr"], torch_rates(len(history)), rtol=1e-9)
    best = ws.load_checkpoint("checkpoints/best_model.mojo", best="val_acc")
    assert best.logs["val_accuracy"] == max(history["val_acc"])
    loaded = ws.nn.Linear(64, 10)
    loaded.load("checkpoints/best_model.mojo")  # under the name that the example gives it
    assert all((loaded.state_dict()[name] == best.arrays[name]).all() for name in best.own)
    assert history["val_acc"][-1] > 0.7
    assert "optimizer.lr follows Cosine by epoch" in capsys.readouterr().err
    train, held = (names["my_model"].evaluate(x[a], y[a], loss="cross_entropy") for a in (slice(200), slice(200, 300)))  # type: ignore[attr-defined]
    assert history["val_loss"][-1] == pytest.approx(held["loss"], rel=1e-4)
    assert train["loss"] < history["loss"][0]


CUSTOM_LOOP = '''
fn custom_training_loop(
    model: Model,
    optimizer: SGD,
    train_data: DataLoader,
    epochs: Int
):
    """Custom training loop for paper-specific needs."""
    for epoch in range(epochs):
        var total_loss: Float32 = 0.0
        var accuracy = Accuracy()

        for batch in train_data:
            # Forward pass
            var outputs = model.forward(batch.inputs)
            var loss = compute_loss(outputs, batch.targets)

            # Backward pass
            var grads = compute_gradients(loss, model)

            # Optimizer step (from training library)
            optimizer.step(model.parameters(), grads)

            # Track metrics (from training library)
            total_loss += loss.item()
            accuracy.update(outputs, batch.targets)

        # Paper-specific logging or validation
        print("Epoch:", epoch, "Loss:", total_loss / len(train_data))
        print("Accuracy:", accuracy.compute())
'''


class Own(ws.nn.Module):
    """Written out, so that `forward` meets its own parameters."""

    def __init__(self) -> None:
        self.weight, self.last = ws.nn.Parameter((20, 64)), ws.nn.Linear(20, 10)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.last(ws.tanh(x @ self.weight.T))


def test_the_custom_loop_trains_as_a_session_does(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = ws.datasets.digits()
    x, y = x[:230], y[:230]
    loop: dict[str, Any] = {
        "Accuracy": ws.metrics.Accuracy, "compute_loss": ws.losses.cross_entropy, "Model": ws.nn.Module,
        "compute_gradients": ws.compute_gradients, "SGD": ws.SGD, "DataLoader": ws.DataLoader, "Int": int,
        "Float32": float,
    }  # fmt: skip
    exec(CUSTOM_LOOP.replace("fn ", "def ").replace("var ", ""), loop)
    by_hand, by_session = Own(), Own()
    by_session.load_state_dict(by_hand.state_dict())
    loop["custom_training_loop"](by_hand, ws.SGD(lr=0.1), ws.DataLoader(x, y, 64, shuffle=False), 3)
    said = capsys.readouterr().out.splitlines()
    spec = {"inputs": ws.Spec(("batch", 64)), "targets": ws.Spec(("batch",), "int64"), "loss": "cross_entropy"}
    session = ws.build_session(by_session, optimizer=ws.SGD(lr=0.1), batch_size=64, metrics=["accuracy"], **spec)
    for epoch in range(3):
        session.reset_metrics()
        rows = range(0, 230, 64)
        losses = [session.step(x=x[i : i + 64], labels=y[i : i + 64]).loss for i in rows]
        assert said[2 * epoch].startswith(f"Epoch: {epoch} Loss: ")
        assert float(said[2 * epoch].split()[-1]) == pytest.approx(np.mean(losses), rel=1e-5)
        assert float(said[2 * epoch + 1].split()[-1]) == pytest.approx(session.metrics()["accuracy"], abs=1e-6)
    for name, value in by_session.state_dict().items():
        np.testing.assert_allclose(by_hand.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_gradients_of_arrays_are_torchs_and_say_what_they_need() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 5)).astype("float32"), rng.normal(size=(7, 2)).astype("float32")
    model, other = ws.nn.Linear(5, 2), ws.nn.Linear(5, 2)
    loss = ws.losses.huber_loss(model(x), y, delta=0.5)
    found = ws.compute_gradients(loss, model)
    twin = torch.nn.Linear(5, 2)
    twin.load_state_dict({name: torch.tensor(a) for name, a in model.state_dict().items()})
    theirs = torch.nn.functional.huber_loss(twin(torch.tensor(x)), torch.tensor(y), delta=0.5)
    theirs.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-6)
    for name, parameter in twin.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad, rtol=1e-5, atol=1e-7)
    outputs = model(x)
    assert type(outputs + 1.0) is np.ndarray, "what NumPy makes of outputs is an array"
    for wrong, text in {
        0.5: "takes a loss of ws.losses of a model's outputs",
        ws.losses.mse_loss(outputs + 1.0, y): "takes a loss of ws.losses of a model's outputs",
        ws.losses.mse_loss(other(x), y): "is of another model's outputs",
    }.items():
        with pytest.raises(ws.errors.UsageError, match=text):
            ws.compute_gradients(wrong, model)  # type: ignore[arg-type]
    dropping = ws.nn.Sequential(ws.nn.Linear(5, 2), ws.nn.Dropout(0.5))
    with pytest.raises(ws.errors.UsageError, match="uses dropout or batch statistics in training"):
        ws.compute_gradients(ws.losses.mse_loss(dropping(x), y), dropping)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_takes_arrays(name: str) -> None:
    """The same number as `value_and_grad`'s; what it needs beside two arrays it says in its own words."""
    given = np.random.default_rng(1).uniform(0.1, 0.9, (2, 4, 3)).astype("float32")
    function = LOSSES[name].function
    assert hasattr(function, "__wrapped__"), f"{name} lacks @on_arrays"
    try:
        value = function(*given)
    except (ws.errors.WholestepError, TypeError):
        return
    assert value.item() == ws.losses.value_and_grad(function, *given)[0]


PATTERN_3 = """
var callbacks = CallbackList([
    EarlyStopping(patience=10),
    ModelCheckpoint("checkpoints/"),
    CSVLogger("training.log"),
    TensorBoardLogger("logs/")
])

# Use in training loop
for epoch in range(epochs):
    callbacks.on_epoch_begin(epoch)
    # Training logic...
    callbacks.on_epoch_end(epoch, logs)
"""


def test_callbacks_in_a_loop_of_ones_own_find_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wholestep.session.session.alive", WeakSet())
    x, y = ws.datasets.digits()
    model, logs = ws.nn.Linear(64, 10), {"val_loss": 0.5}
    spec = {"inputs": ws.Spec(("batch", 64)), "targets": ws.Spec(("batch",), "int64"), "loss": "cross_entropy"}
    session = ws.build_session(model, optimizer=ws.SGD(lr=0.1), batch_size=64, **spec)
    with ws.build_session(ws.nn.Linear(64, 10), optimizer=ws.SGD(lr=0.1), batch_size=64, **spec):
        pass  # closed: it trains no longer
    names = {name: getattr(ws, name) for name in ("CallbackList", "EarlyStopping", "ModelCheckpoint", "CSVLogger")}
    names |= {"TensorBoardLogger": ws.TensorBoardLogger, "epochs": 2, "logs": logs, "session": session}
    trains = PATTERN_3.replace("# Training logic...", "session.step(x=x, labels=y)").replace("var ", "")
    loop: dict[str, Any] = {**names, "x": x[:64], "y": y[:64]}
    exec(trains, loop)
    assert session.state.step == 2
    loop["callbacks"].on_train_end()
    assert ws.load_checkpoint("checkpoints").logs == logs
    assert [p.name for p in Path("checkpoints").glob("step-*")] == ["step-00000001"]  # the second is no better
    assert len(Path("training.log").read_text().splitlines()) == 3
    assert list(Path("logs").iterdir())


def test_the_same_metric_twice_is_one_and_two_of_a_name_are_refused() -> None:
    from wholestep.steps.options import as_measures

    twice = as_measures([ws.metrics.Accuracy(), "accuracy", ws.metrics.LossTracker(), ws.metrics.LossTracker()])
    assert [m.metric.name for m in twice] == ["accuracy", "loss"]
    with pytest.raises(ws.errors.OptionError, match="two metrics are called 'accuracy'"):
        as_measures([ws.metrics.Accuracy(), ws.metrics.Accuracy(threshold=0.3)])
