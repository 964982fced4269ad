"""`within=`: a run that ends at a time.  The clock of most tests advances by a tenth of a second per reading."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from benchmarks import deadlines
from wholestep import nn
from wholestep.callbacks import deadline
from wholestep.errors import OptionError, UsageError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    ticking = SimpleNamespace(now=0.0)

    def monotonic() -> float:
        ticking.now += 0.1
        return float(ticking.now)

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr("wholestep.train.experiment.time", SimpleNamespace(monotonic=monotonic))
    return ticking


def train(**settings: Any) -> tuple[nn.Module, ws.TrainHistory]:
    x, y = ws.datasets.digits()
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    settings = {"loss": "cross_entropy", "seed": 0, "progress": False, "device": "reference", **settings}
    return model, ws.fit(model, (x[:256], y[:256]), **settings)


def test_a_run_ends_before_its_time_and_the_schedule_spans_it(clock: SimpleNamespace) -> None:
    _, history = train(within="20s", schedule=ws.schedules.cosine(lr=1e-2))
    assert 15 < clock.now < 20.4
    assert history.stopped_by == "the time of 20 s is over"
    rates = history["lr"]
    assert rates[0] > 0.9e-2
    assert rates[-1] < 0.1e-2
    assert rates == sorted(rates, reverse=True)


def test_the_weights_are_those_of_the_best_validation(clock: SimpleNamespace) -> None:
    class Spoil(ws.Callback):
        def on_epoch_begin(self, epoch: int) -> None:
            if epoch == 4:
                self.session.set("2.bias", np.full(10, 50.0, np.float32) * np.arange(10, dtype=np.float32))

    x, y = ws.datasets.digits()
    held = x[256:400], y[256:400]
    model, history = train(within=10, validation=held, callbacks=[Spoil()], optimizer=ws.SGD(lr=1e-3))
    measured = [loss for loss in history["val_loss"] if np.isfinite(loss)]
    assert max(measured) > 2 * min(measured)
    assert model.evaluate(*held, verbose=0)["loss"] == pytest.approx(min(measured), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "error", "pattern"),
    [
        ({"within": "soon"}, OptionError, "within='soon': expected a duration above 0"),
        ({"within": 0}, OptionError, "expected a duration above 0"),
        ({"within": 5, "epochs": 3}, UsageError, "leave out epochs=, workers= and resume="),
        ({"within": 5, "schedule": ws.schedules.Cosine(1e-3, 100)}, UsageError, "Cosine counts steps or epochs"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], error: type[Exception], pattern: str) -> None:
    with pytest.raises(error, match=pattern):
        train(**settings)


@pytest.mark.parametrize(("text", "seconds"), [("60s", 60), (5, 5), ("1.5h", 5400), ("2 min", 120), ("0.5", 0.5)])
def test_durations(text: object, seconds: float) -> None:
    assert deadline.as_seconds(text) == seconds


def test_a_schedule_takes_the_rate_of_the_optimizer_and_counts_its_warm_up_in_steps(clock: SimpleNamespace) -> None:
    rates: list[float] = []

    class Watch(ws.Callback):
        every = 1

        def on_slice(self, steps: int, loss: float) -> None:
            rates.append(self.session.scalars["optimizer.lr"])

    schedule = ws.schedules.cosine(warmup=20)
    train(within="30s", schedule=schedule, optimizer=ws.Adam(lr=4e-3), callbacks=[Watch()])
    assert len(rates) > 60
    assert rates[9] == pytest.approx(4e-3 * 10 / 20, rel=0.15)  # the tenth step of 20
    assert max(rates) == pytest.approx(4e-3, rel=0.05)
    assert 15 < rates.index(max(rates)) < 25
    assert rates[-1] < 0.1 * 4e-3


def test_a_run_validates_at_its_end_once_and_stops_where_a_validation_would_not_fit(clock: SimpleNamespace) -> None:
    """Each step takes 0.2 s of this clock, a validation of 64 rows 3 s."""
    x, y = ws.datasets.digits()

    held = x[256:320], y[256:320]
    evaluate = ws.Session.evaluate_together
    calls: list[float] = []

    def slow(self: Any, *given: Any) -> Any:
        clock.now += 3.0
        calls.append(clock.now)
        return evaluate(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ws.Session, "evaluate_together", slow)
        train(within="40s", validation=held)
    assert 32 < clock.now < 40
    assert all(later - earlier > 3.15 for earlier, later in pairwise(calls[1:]))  # never two without a step between


@pytest.mark.long
@pytest.mark.parametrize("name", deadlines.EXAMPLES)
def test_an_example_ends_in_time_and_trains_as_well_as_with_fixed_epochs(name: str) -> None:
    found = deadlines.measure(name, seconds=20, threads=2)
    assert 19.5 < found["seconds"] < 20.4
    assert found["loss"] <= 1.1 * found["fixed_loss"]
