"""EMA weights are what a model shows: in validation, `evaluate`, `predict`, `save` and checkpoints; against torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import UnknownNameError, UsageError
from wholestep.optim import EMA, averaged, raw_weights

Array = np.ndarray[Any, Any]
ROWS, HELD, BATCH, EPOCHS, DECAY = 24, 8, 6, 3, 0.8
# A bias before a norm has no gradient but for rounding, which Adam makes steps of.
CLOSE: Any = {"rtol": 1e-6, "atol": 1e-7}


def network() -> ws.nn.Sequential:
    """With running statistics, which are not averaged."""
    return ws.nn.Sequential(
        ws.nn.Linear(4, 5, dtype="float64"), ws.nn.BatchNorm1d(5, dtype="float64"), ws.nn.Tanh(),
        ws.nn.Linear(5, 2, dtype="float64"),
    )  # fmt: skip


def table(rows: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 4)), rng.normal(size=(rows, 2))


DATA, VALIDATION = table(ROWS, 0), table(HELD, 1)


def fit(model: ws.nn.Module, epochs: int = EPOCHS, decay: float = DECAY, **options: Any) -> Any:
    return ws.fit(model, DATA, validation=VALIDATION, loss="mse", optimizer=EMA(ws.Adam(lr=0.05), decay=decay),
                  epochs=epochs, batch_size=BATCH, shuffle=False, seed=0, progress=False, **options)  # fmt: skip


class Theirs:
    """torch's loop: `AveragedModel`, with the running statistics of the network itself."""

    def __init__(self, model: ws.nn.Module) -> None:
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
        ).double()
        self.net.load_state_dict({n: torch.tensor(a) for n, a in model.state_dict().items()}, strict=False)
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(DECAY)
        self.mean = torch.optim.swa_utils.AveragedModel(self.net, multi_avg_fn=average)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=0.05)
        self.losses = [self.epoch() for _ in range(EPOCHS)]

    def epoch(self) -> float:
        self.net.train()
        for start in range(0, ROWS, BATCH):
            x, y = (torch.tensor(a[start : start + BATCH]) for a in DATA)
            self.adam.zero_grad()
            torch.nn.functional.mse_loss(self.net(x), y).backward()
            self.adam.step()
            self.mean.update_parameters(self.net)
        for ours, theirs in zip(self.mean.module.buffers(), self.net.buffers(), strict=True):
            ours.copy_(theirs)
        return self.loss(self.mean.module)

    def loss(self, net: torch.nn.Module) -> float:
        x, y = (torch.tensor(a) for a in VALIDATION)
        return float(torch.nn.functional.mse_loss(self.predict(net, x), y))

    @staticmethod
    def predict(net: torch.nn.Module, x: Any) -> torch.Tensor:
        net.eval()
        with torch.no_grad():
            return net(torch.as_tensor(x))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[ws.nn.Module, Any, Theirs, Path]:
    ws.manual_seed(0)
    model, folder = network(), tmp_path_factory.mktemp("run")
    theirs = Theirs(model)
    history = fit(model, callbacks=[ws.ModelCheckpoint(folder, best=1, last=1)])
    return model, history, theirs, folder


def test_validation_is_of_the_averages(trained: Any) -> None:
    _, history, theirs, _ = trained
    np.testing.assert_allclose(history["val_loss"], theirs.losses, **CLOSE)


def test_predict_evaluate_and_state_dict_are(trained: Any) -> None:
    model, _, theirs, _ = trained
    x, y = VALIDATION
    np.testing.assert_allclose(model.predict(x), theirs.predict(theirs.mean.module, x).numpy(), **CLOSE)
    assert model.evaluate(x, y, loss="mse")["loss"] == pytest.approx(theirs.losses[-1], rel=1e-7)
    for name, value in theirs.mean.module.state_dict().items():
        if "tracked" not in name:
            np.testing.assert_allclose(model.state_dict()[name], value.numpy(), **CLOSE, err_msg=name)
    assert averaged(model).keys() == model.parameters().keys()
    np.testing.assert_array_equal(averaged(model)["0.weight"], model.state_dict()["0.weight"])


def test_files_and_the_best_checkpoint_hold_them(trained: Any, tmp_path: Path) -> None:
    model, _, theirs, folder = trained
    model.save(tmp_path / "w.safetensors")
    other = network()
    other.load(tmp_path / "w.safetensors")
    np.testing.assert_array_equal(other.predict(VALIDATION[0]), model.predict(VALIDATION[0]))
    best = int(np.argmin(theirs.losses))
    steps = (best + 1) * ROWS // BATCH
    other.load(folder / f"step-{steps:08d}" / "weights.safetensors")
    assert other.evaluate(*VALIDATION, loss="mse")["loss"] == pytest.approx(theirs.losses[best], rel=1e-7)


def test_a_context_gives_the_others(trained: Any) -> None:
    model, _, theirs, _ = trained
    x, _ = VALIDATION
    shown = model.predict(x)
    with raw_weights(model):
        np.testing.assert_allclose(model.predict(x), theirs.predict(theirs.net, x).numpy(), **CLOSE)
        raw = theirs.net.state_dict()["0.weight"].numpy()
        np.testing.assert_allclose(model.state_dict()["0.weight"], raw, **CLOSE)
        with pytest.raises(UsageError, match="the raw weights are shown already"), raw_weights(model):
            pass
    np.testing.assert_array_equal(model.predict(x), shown)
    with pytest.raises(UnknownNameError, match=r"no averaged weights; train with optimizer=ws\.optim\.EMA"):
        raw_weights(network()).__enter__()


def test_a_run_goes_on_from_both(trained: Any, tmp_path: Path) -> None:
    """Two epochs, then resumed for the third: the same bits as in one go."""
    model, history, _, _ = trained
    fit(network(), epochs=2, checkpoint=tmp_path)
    resumed = network()
    again = fit(resumed, checkpoint=tmp_path, resume=True, exact=True)
    assert again["val_loss"] == history["val_loss"]
    with raw_weights(model), raw_weights(resumed):
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(resumed.state_dict()[name], value, err_msg=name)


# -- sessions --------------------------------------------------------------------------------------------------------


def session_over(model: ws.nn.Module, **options: Any) -> ws.Session:
    spec = ws.Spec(("batch", 4), "float64"), ws.Spec(("batch", 2), "float64")
    return ws.build_session(model, inputs=spec[0], targets=spec[1], loss="mse", batch_size=BATCH, **options)


def line() -> ws.nn.Linear:
    return ws.nn.Linear(4, 2, dtype="float64")


def batch(step: int) -> dict[str, Array]:
    x, y = table(BATCH, 50 + step)
    return {"x": x, "labels": y}


@pytest.fixture(scope="module")
def averaging() -> tuple[ws.nn.Module, ws.Session]:
    model = line()
    return model, session_over(model, optimizer=EMA(ws.SGD(lr=0.1), decay=0.9))


def test_a_session_evaluates_averages_and_trains_raw_weights(averaging: tuple[ws.nn.Module, ws.Session]) -> None:
    model, session = averaging
    first = model.predict(batch(9)["x"])
    np.testing.assert_array_equal(session.predict(x=batch(9)["x"]), first)  # before any step: the weights themselves
    raw = mean = model.state_dict()["weight"]
    bias = shown = model.state_dict()["bias"]
    for step in range(4):
        given = batch(step)
        error = given["x"] @ raw.T + bias - given["labels"]
        raw, bias = raw - 0.1 * error.T @ given["x"] / BATCH, bias - 0.1 * error.sum(axis=0) / BATCH
        mean = raw if step == 0 else 0.9 * mean + 0.1 * raw
        shown = bias if step == 0 else 0.9 * shown + 0.1 * bias
        if step % 2:
            session.step(given)
        else:  # the parts of a step are about the weights that are trained
            out = session.forward(given)
            session.backward(2.0 * (out - given["labels"]) / out.size)
            session.apply_gradients(0.1)
    np.testing.assert_allclose(session.get("weight.raw"), raw, rtol=1e-10)
    x, y = batch(9).values()
    np.testing.assert_allclose(session.predict(x=x), x @ mean.T + shown, rtol=1e-10)
    assert session.evaluate(batch(9)).loss == pytest.approx(((x @ mean.T + shown - y) ** 2).mean())
    with raw_weights(session):
        np.testing.assert_allclose(session.predict(x=x), x @ raw.T + bias, rtol=1e-10)
        with pytest.raises(UsageError, match=r"a step is not possible inside `with ws\.optim\.raw_weights"):
            session.step(batch(0))
        with pytest.raises(UsageError, match="state_dict is not possible inside"):
            session.state_dict()
    session.step(batch(4))


def test_loaded_weights_are_shown_and_trained(averaging: tuple[ws.nn.Module, ws.Session]) -> None:
    model, session = averaging
    session.step(batch(0))
    model.load_state_dict({"weight": np.zeros((2, 4)), "bias": np.ones(2)})
    np.testing.assert_array_equal(session.predict(x=batch(1)["x"]), np.ones((BATCH, 2)))
    assert session.step(batch(1)).loss == pytest.approx(((1.0 - batch(1)["labels"]) ** 2).mean())
    session.set("bias", np.zeros(2))
    np.testing.assert_array_equal(session.get("bias.raw"), np.zeros(2))


def test_an_average_ends_where_the_weights_are_trained_without_it(averaging: tuple[ws.nn.Module, ws.Session]) -> None:
    model, session = averaging
    session.step(batch(0))
    plain = session_over(model, optimizer=ws.SGD(lr=0.1))
    plain.step(batch(1))
    expected = model.predict(batch(2)["x"])
    loss = ((expected - batch(2)["labels"]) ** 2).mean()
    assert session.step(batch(2)).loss == pytest.approx(loss)
    np.testing.assert_array_equal(session.get("weight"), session.get("weight.raw"))  # the first average anew


def test_windows_average_once_an_update() -> None:
    whole, parts = line(), line()
    options: dict[str, Any] = {"optimizer": EMA(ws.Adam(lr=0.1), decay=0.5), "seed": 0}
    large = session_over(whole, **options)
    small = ws.build_session(parts, inputs=ws.Spec(("batch", 4), "float64"), targets=ws.Spec(("batch", 2), "float64"),
                             loss="mse", batch_size=BATCH // 3, accumulate=3, **options)  # fmt: skip
    for step in range(3):
        large.step(batch(step))
        small.step(batch(step))
    for name in ("weight", "weight.raw"):
        np.testing.assert_allclose(small.get(name), large.get(name), rtol=1e-10)
    assert not np.allclose(small.get("weight"), small.get("weight.raw"))


def test_an_own_step_shows_averages_too() -> None:
    @ws.step(inputs={"x": ws.Spec(("batch", 4), "float64"), "labels": ws.Spec(("batch", 2), "float64")})
    def step(g: ws.Graph, x: ws.Tensor, labels: ws.Tensor) -> ws.Tensor:
        w = g.parameter("w", (4, 2), init=0.1, dtype="float64")
        loss = ws.losses.mse_loss(x @ w, labels)
        EMA(ws.SGD(lr=0.1), decay=0.5).update(g, [w], ws.gradients(loss, [w]))
        return loss

    session = ws.build_session(step, batch_size=BATCH)
    raw = mean = np.full((4, 2), 0.1)
    for i in range(3):
        x, y = batch(i).values()
        raw = raw - 0.1 * x.T @ (x @ raw - y) / BATCH
        mean = raw if i == 0 else 0.5 * mean + 0.5 * raw
        session.step(batch(i))
    np.testing.assert_allclose(session.get("w.raw"), raw, rtol=1e-10)
    np.testing.assert_allclose(session.get("w"), mean, rtol=1e-10)
    np.testing.assert_allclose(averaged(session)["w"], mean, rtol=1e-10)


def test_a_module_in_an_own_step_shows_its_averages() -> None:
    net = line()

    @ws.step(inputs={"x": ws.Spec(("batch", 4), "float64"), "labels": ws.Spec(("batch", 2), "float64")})
    def step(g: ws.Graph, x: ws.Tensor, labels: ws.Tensor) -> ws.Tensor:
        loss = ws.losses.mse_loss(net(x), labels)
        params = net.traced(g)
        EMA(ws.SGD(lr=0.1), decay=0.5).update(g, params, ws.gradients(loss, params))
        return loss

    session = ws.build_session(step, batch_size=BATCH)
    for i in range(3):
        session.step(batch(i))
    known, shown, x = averaged(net), net.state_dict(), batch(9)["x"]
    np.testing.assert_array_equal(known["weight"], shown["weight"])
    with raw_weights(net):
        raw = net.state_dict()
        np.testing.assert_allclose(net.predict(x), x @ raw["weight"].T + raw["bias"], rtol=1e-10)
    assert not np.allclose(raw["weight"], shown["weight"])
    np.testing.assert_allclose(net.predict(x), x @ shown["weight"].T + shown["bias"], rtol=1e-10)
    net.load_state_dict({"weight": np.zeros((2, 4)), "bias": np.ones(2)})  # what the step trains, too
    assert session.step(batch(1)).loss == pytest.approx(((1.0 - batch(1)["labels"]) ** 2).mean())
    session_over(net, optimizer=ws.SGD(lr=0.1)).step(batch(2))
    expected = ((net.predict(batch(3)["x"]) - batch(3)["labels"]) ** 2).mean()
    assert session.step(batch(3)).loss == pytest.approx(expected)
