"""Section H of the conformance page: trainer, data, history."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
import pytest

import wholestep as ws

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)).astype(np.float32), RNG.integers(0, 2, 20).astype(np.int32)


def model() -> ws.nn.Module:
    return ws.nn.Linear(3, 2)


def session(optimizer: ws.Optimizer | None = None, batch_size: int = 4, **options: Any) -> ws.Session:
    return ws.build_session(
        model(),
        inputs=ws.Spec(("batch", 3)),
        targets=ws.Spec(("batch",), "int32"),
        loss="cross_entropy",
        optimizer=optimizer,
        batch_size=batch_size,
        **options,
    )


def test_h01_defaults() -> None:
    c = ws.TrainConfig()
    assert (c.learning_rate, c.log_interval, c.data_input, c.label_input) == (0.01, 100, "x", "labels")


def test_h02_the_learning_rate_is_of_plain_descent() -> None:
    chosen = ws.TrainConfig(learning_rate=0.1).chosen()
    assert isinstance(chosen, ws.SGD)
    assert chosen.lr == 0.1
    with pytest.warns(UserWarning, match=r"learning_rate=0.1 is ignored: the optimizer Adam has its own, lr=0.001"):
        ws.TrainConfig(learning_rate=0.1, optimizer=ws.Adam())


def test_h03_whose_optimizer_it_is() -> None:
    own = session(ws.Adam(lr=0.003))
    ws.Trainer(own, ws.TrainConfig())
    assert own.optimizer.lr == 0.003
    ws.Trainer(own, ws.TrainConfig(optimizer=ws.Adam(lr=0.5)))
    assert own.optimizer.lr == 0.5

    class Spy(ws.Callback):
        def on_train_begin(self) -> None:
            assert self.run is not None
            seen.append(dict(self.run.session.scalars.items()))

    seen: list[dict[str, float]] = []
    ws.fit(model(), (X, Y), loss="cross_entropy", batch_size=4, progress=False, callbacks=Spy())
    assert (seen[0]["optimizer.lr"], seen[0]["optimizer.weight_decay"]) == (1e-3, 0.01)


def test_h04_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="wholestep")

    def lines(interval: int) -> list[str]:
        caplog.clear()
        ws.Trainer(session(), ws.TrainConfig(log_interval=interval)).train(ws.DataLoader(X, Y, 4), 1)
        return [r.getMessage() for r in caplog.records if "epoch 0" in r.getMessage()]

    every = lines(2)
    assert [line.split(":")[0].strip() for line in every] == [
        "epoch 0 step 0", "epoch 0 step 2", "epoch 0 step 4", "epoch 0"
    ]  # fmt: skip
    assert len(every[0].rpartition(".")[2]) == 4
    assert [line.split(":")[0] for line in lines(0)] == ["epoch 0"]


def test_h05_h06_history() -> None:
    history = ws.Trainer(session(), ws.TrainConfig(log_interval=0)).train(ws.DataLoader(X, Y, 4), 3)
    assert [e.epoch for e in history.epochs] == [0, 1, 2]
    assert [e.steps for e in history.epochs] == [5, 5, 5]
    stats = ws.EpochStats(epoch=3, avg_loss=0.42, steps=100)
    assert (stats.epoch, stats.avg_loss, stats.steps) == (3, 0.42, 100)
    assert ws.TrainHistory().final_loss() is None
    assert ws.TrainHistory([ws.EpochStats(0, 2.5, 1), ws.EpochStats(1, 1.2, 1)]).final_loss() == 1.2


def test_h07_empty_data() -> None:
    class Empty:
        def shuffle(self, epoch: int) -> None: ...

        def reset(self) -> None: ...

        def next_batch(self) -> None:
            return None

    with pytest.warns(UserWarning, match="gave no batches"):
        stats = ws.Trainer(session()).train_epoch(Empty(), 7)
    assert stats == ws.EpochStats(7, 0.0, 0)
    with pytest.raises(ws.errors.InputError, match="the data set is empty"):
        ws.fit(model(), (X[:0], Y[:0]), loss="cross_entropy")


def test_h08_the_mean_goes_by_examples() -> None:
    g = ws.Graph()
    x, labels = g.input("x", ("batch",)), g.input("labels", ("batch",))
    w = g.parameter("w", (), init=1.0)
    g.set_outputs([((x + 0.0 * labels) * w).mean()])
    data = np.array([1, 1, 1, 1, 2], np.float32)
    trainer = ws.Trainer(ws.build_session(g, optimizer=ws.SGD(lr=0.0), batch_size=4), ws.TrainConfig(log_interval=0))
    history = trainer.train(ws.DataLoader(data, data, 4, shuffle=False), 1)
    assert history.final_loss() == pytest.approx(1.2)

    class Steps(ws.DataLoader):
        def arrays(self) -> None:
            return None

    assert trainer.train_epoch(Steps(data, data, 4, shuffle=False), 1).avg_loss == pytest.approx(1.2)


def test_h09_calls_on_the_loader() -> None:
    calls: list[str] = []

    class Spy(ws.DataLoader):
        def arrays(self) -> None:
            return None

        def shuffle(self, epoch: int) -> None:
            calls.append(f"shuffle({epoch})")
            super().shuffle(epoch)

        def reset(self) -> None:
            calls.append("reset()")
            super().reset()

        def next_batch(self) -> Any:
            calls.append("next_batch()")
            return super().next_batch()

    ws.Trainer(session(batch_size=10)).train(Spy(X, Y, 10), 2)
    each = ["reset()", *["next_batch()"] * 3]
    assert calls == ["shuffle(0)", *each, "shuffle(1)", *each]


def test_h11_callbacks_of_steps_and_epochs() -> None:
    seen: list[ws.StepMetrics] = []
    epochs: list[ws.EpochStats] = []

    class OnlySteps(ws.MetricCallback):
        def on_step(self, metrics: ws.StepMetrics) -> None:
            seen.append(metrics)

    class OnlyEpochs(ws.MetricCallback):
        def on_epoch(self, stats: ws.EpochStats) -> None:
            epochs.append(stats)

    losses = ws.LossHistory()
    trainer = ws.Trainer(session(), callbacks=[OnlySteps(), losses, OnlyEpochs()])
    trainer.train(ws.DataLoader(X, Y, 4), 2)
    assert [(m.epoch, m.step) for m in seen] == [(e, s) for e in range(2) for s in range(5)]
    assert losses.losses == [m.loss for m in seen]
    assert [e.epoch for e in epochs] == [0, 1]


def test_h12_the_session_itself() -> None:
    s = session()
    assert ws.Trainer(s).session is s
    assert [name for name, _ in s.plan.inputs] == ["x", "labels"]


@pytest.mark.parametrize("optimizer", [ws.SGD(lr=0.3), ws.AdamW(lr=0.01)])
def test_h13_h14_a_step_in_four_parts_equals_the_compiled_one(optimizer: ws.Optimizer) -> None:
    whole, parts = session(optimizer, clip_norm=0.05), session()
    for name, value in whole.state_dict().items():
        if name in parts.state:
            parts.set(name, value)
    if not isinstance(optimizer, ws.SGD):
        parts.set_optimizer(optimizer)
    for step in range(3):
        rows = slice(4 * step, 4 * step + 4)
        norm = whole.step(x=X[rows], labels=Y[rows]).metrics["grad_norm"]
        out = parts.forward(x=X[rows])
        value, grad = ws.losses.value_and_grad("cross_entropy", out, Y[rows])
        parts.backward(grad)
        assert parts.clip_gradients(0.05) == pytest.approx(norm, rel=1e-5)
        parts.apply_gradients(optimizer.lr)
    for name in ("weight", "bias"):
        np.testing.assert_allclose(parts.get(name), whole.get(name), rtol=1e-5, atol=1e-6)


def test_the_four_parts_come_in_order() -> None:
    s = session()
    with pytest.raises(ws.errors.UsageError, match=r"call session\.forward"):
        s.backward(np.ones((4, 2), np.float32))
    with pytest.raises(ws.errors.UsageError, match=r"call session\.backward"):
        s.apply_gradients(0.1)
    with pytest.raises(ws.errors.OptionError, match="max_norm must be above 0"):
        s.clip_gradients(0.0)


def test_no_warning_in_a_plain_run() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ws.Trainer(session()).train(ws.DataLoader(X, Y, 4), 1)
