"""The loop's controls through `fit`, each compared with a plain loop in torch; a test runs a table of combinations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.compilers import quick
from wholestep.session.building.plans import Plans

RNG = np.random.default_rng(0)
X = RNG.normal(size=(22, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.1).astype(np.float32)
XV, YV = X[:9] + 0.5, Y[:9] - 0.25
START = {"weight": np.array([[0.3, 0.1, -0.2]], np.float32), "bias": np.array([0.05], np.float32)}
GIVEN: dict[str, Any] = {"loss": "mse", "optimizer": ws.SGD(lr=0.1), "batch_size": 4, "progress": False, "seed": 5}


def line() -> ws.nn.Module:
    model = ws.nn.Linear(3, 1)
    model.load_state_dict(START)
    return model


def fit(model: ws.nn.Module | None = None, data: Any = (X, Y), **settings: Any) -> ws.TrainHistory:
    return ws.fit(model or line(), data, **{**GIVEN, "options": quick(), **settings})


class Rows:
    """A data set that is read row by row."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Any:
        return X[i], Y[i]


class Batches:
    """An iterable of batches, in one order."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        return ((X[i : i + self.size], Y[i : i + self.size]) for i in range(0, len(X), self.size))


def by_torch(epochs: Any, *, clip_value: float | None = None) -> tuple[list[float], dict[str, np.ndarray]]:
    """A plain loop over given batches: the mean loss of each epoch by rows, and the weights."""
    model = torch.nn.Linear(3, 1)
    model.load_state_dict({name: torch.tensor(a) for name, a in START.items()})
    optimizer, means = torch.optim.SGD(model.parameters(), lr=0.1), []
    for batches in epochs:
        total = rows = 0.0
        for x, y in batches:
            loss = torch.nn.functional.mse_loss(model(torch.tensor(x)), torch.tensor(y))
            optimizer.zero_grad()
            loss.backward()
            if clip_value is not None:
                torch.nn.utils.clip_grad_value_(model.parameters(), clip_value)
            optimizer.step()
            total, rows = total + loss.item() * len(x), rows + len(x)
        means.append(total / rows)
    return means, {name: p.detach().numpy() for name, p in model.named_parameters()}


def orders(size: int, epochs: int, **options: Any) -> list[list[Any]]:
    """The batches that a loader of the run's seed gives, epoch by epoch."""
    loader = ws.DataLoader(X, Y, size, seed=5, **options)
    return [[(b.inputs, b.targets) for b in loader] for _ in range(epochs)]


def first_rows(batch: Any, rows: int) -> Any:
    return tuple(array[:rows] for array in batch)


LOOPS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "limit_batches": ({"limit_batches": 2}, [e[:2] for e in orders(4, 3)], {}),
    "a share of them": ({"limit_batches": 0.5}, [e[:3] for e in orders(4, 3)], {}),
    "drop_last": ({"drop_last": True}, [e[:5] for e in orders(4, 3)], {}),
    "drop_last, accumulate": (
        {"drop_last": True, "accumulate": 2},
        [[*e[:2], first_rows(e[2], 4)] for e in orders(8, 3)],
        {},
    ),
    "limit_batches, accumulate": (
        {"limit_batches": 3, "accumulate": 2},
        [[e[0], first_rows(e[1], 4)] for e in orders(8, 3)],
        {},
    ),
    "overfit_batches": ({"overfit_batches": 2}, [[(X[:4], Y[:4]), (X[4:8], Y[4:8])]] * 3, {}),
    "clip_value": ({"clip_value": 0.5}, orders(4, 3), {"clip_value": 0.5}),
    "steps of an iterable": ({"data": Batches(4), "limit_batches": 2}, [e[:2] for e in [list(Batches(4))] * 3], {}),
}


@pytest.mark.parametrize("case", LOOPS)
def test_a_control_is_that_of_a_plain_loop(case: str) -> None:
    settings, epochs, more = LOOPS[case]
    model = line()
    history = fit(model, epochs=3, **settings)
    means, weights = by_torch(epochs, **more)
    np.testing.assert_allclose(history["loss"], means, rtol=1e-5)
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(array, weights[name], rtol=1e-5, atol=1e-6)


# -- combinations ------------------------------------------------------------------------------------------------

CONTROLS: dict[str, dict[str, Any]] = {
    "none": {},
    "limit_batches": {"limit_batches": 4},
    "drop_last": {"drop_last": True},
    "validate_every": {"validate_every": 2},
    "validate_every_steps": {"validate_every_steps": 2},
    "limit_validation": {"limit_validation": 1},
    "clip_value": {"clip_value": 0.5},
    "overfit_batches": {"overfit_batches": 3},
    "min_epochs": {"min_epochs": 2},
}
OF_DATA = ("none", "limit_batches", "drop_last", "validate_every_steps", "overfit_batches")
SOURCES: dict[str, Any] = {
    "memory": lambda rows: (X, Y),
    "rows": lambda rows: Rows(),
    "iterable": lambda rows: Batches(rows),
}


@pytest.mark.parametrize(
    ("control", "accumulate"), [*product(CONTROLS, (1,)), *product((*OF_DATA, "clip_value"), (2,))]
)
def test_controls_with_resume_validation_accumulation_and_any_data(
    control: str, accumulate: int, tmp_path: Path
) -> None:
    """A run that is stopped inside its second epoch and gone on with ends with the same bits and the same history."""
    size = 4 // accumulate
    for source, make in SOURCES.items():
        if source == "rows" and accumulate > 1:
            continue  # as an iterable: batch by batch
        if source != "memory" and (control not in OF_DATA or (control, source) == ("drop_last", "iterable")):
            continue  # where steps come from makes no difference to it; or it is refused: see below
        given = {"data": make(4), "epochs": 3, "batch_size": size, "accumulate": accumulate, "validation": (XV, YV)}
        settings = {**CONTROLS[control], **given}
        whole, parts, folder = line(), line(), tmp_path / source
        history = fit(whole, **settings)
        steps = history.epochs[0].steps
        first = fit(parts, **{**settings, "min_epochs": 0}, checkpoint=folder, callbacks=ws.StepBudget(steps + 1))
        assert first.epochs[-1].partial, source
        again = fit(parts, **settings, checkpoint=folder, resume=True, exact=source == "memory")
        assert again.to_json() == history.to_json(), source
        for name, array in whole.state_dict().items():
            assert array.tobytes() == parts.state_dict()[name].tobytes(), source


def test_validation_now_and_then() -> None:
    events: list[tuple[int, int, float]] = []

    class Spy(ws.Callback):
        def on_validation(self, epoch: int, step: int, logs: Any) -> None:
            # What the weights are at that moment is measured, by the trainer and by hand.
            by_hand = self.session.evaluate_all({"x": XV, "labels": YV})["loss"]
            assert logs["val_loss"] == by_hand
            events.append((epoch, step, by_hand))

    history = fit(epochs=3, validation=(XV, YV), validate_every=2, validate_every_steps=4, callbacks=Spy())
    assert np.isnan(history["val_loss"]).tolist() == [True, False, False]  # the last one always
    assert [(e, s) for e, s, _ in events] == [(0, 4), (1, 4), (2, 4)]
    assert [(v.epoch, v.steps, v.logs["val_loss"]) for v in history.validations] == events
    assert ws.TrainHistory.from_json(history.to_json()).to_json() == history.to_json()
    every = fit(epochs=3, validation=(XV, YV))
    assert history["val_loss"][1:] == every["val_loss"][1:]
    assert history["loss"] == every["loss"]  # looking changes nothing


def test_who_watches_hears_of_validations_inside_epochs(tmp_path: Path) -> None:
    stopping = ws.EarlyStopping("val_loss", patience=2, mode="max")  # falling is no improvement
    log, lines = tmp_path / "log.csv", tmp_path / "log.jsonl"
    history = fit(
        epochs=4,
        validation=(XV, YV),
        validate_every=3,
        validate_every_steps=2,
        callbacks=[stopping, ws.CSVLogger(log), ws.JSONLinesLogger(lines)],
        checkpoint=tmp_path / "run",
    )
    assert history.stopped_by == "val_loss has not improved for 2 epochs"
    assert [(v.epoch, v.steps) for v in history.validations] == [(0, 2), (0, 4), (1, 2)]
    assert history.epochs[-1].partial
    assert log.read_text().splitlines()[0] == "epoch,loss,lr,val_loss"
    assert [line.count("step") for line in lines.read_text().splitlines()] == [1, 1, 0, 1]
    best = ws.load_checkpoint(tmp_path / "run", best="val_loss")
    assert (best.position.epoch, best.position.step) == (1, 2)
    assert best.logs["val_loss"] == min(v.logs["val_loss"] for v in history.validations)


def test_what_validates_is_compiled_before_the_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch's time is its own, and what is wrong with validation is told before hours of training."""
    heard: list[str] = []
    plan = Plans.plan
    monkeypatch.setattr(Plans, "plan", lambda self, entry: heard.append(entry) or plan(self, entry))

    class Hears(ws.Callback):
        def on_epoch_begin(self, epoch: int) -> None:
            heard.append(f"epoch {epoch}")

    history = fit(validation=(XV, YV), epochs=2, callbacks=[Hears()], device="reference")
    assert len(history["val_loss"]) == 2
    assert heard[-2:] == ["epoch 0", "epoch 1"]
    assert {name.partition(".")[0] for name in heard[:-2]} == {"evaluate"}


def test_a_limit_of_the_validation_data() -> None:
    rows = fit(epochs=1, validation=(XV[:8], YV[:8]))["val_loss"]
    assert fit(epochs=1, validation=(XV, YV), limit_validation=2)["val_loss"] == rows
    assert fit(epochs=1, validation=(XV, YV), limit_validation=0.5)["val_loss"] == rows


def test_overfitting_validates_on_what_it_trains_on() -> None:
    model = line()
    history = fit(model, epochs=200, validation=(XV, YV), overfit_batches=1)
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(X[:4], Y[:4], loss="mse")["loss"], rel=1e-6)
    assert history["val_loss"][-1] < 0.01 * history["val_loss"][0]
    read_by_row = fit(epochs=3, data=Rows(), overfit_batches=2)
    assert read_by_row["loss"] == fit(epochs=3, overfit_batches=2)["loss"]


def test_a_fast_run_tries_everything_and_writes_nothing(tmp_path: Path) -> None:
    seen: list[str] = []

    class Spy(ws.Callback):
        def on_epoch_end(self, epoch: int, logs: Any) -> None:
            seen.append(f"epoch {epoch}: {sorted(logs)}")

    files = [ws.CSVLogger(tmp_path / "a.csv"), ws.ModelCheckpoint(tmp_path / "b"), Spy()]
    history = fit(
        epochs=9, validation=(XV, YV), fast_dev_run=True, callbacks=files, checkpoint=tmp_path / "c", resume=True
    )
    assert [e.steps for e in history.epochs] == [1]
    assert seen == ["epoch 0: ['loss', 'lr', 'val_loss']"]
    assert not list(tmp_path.iterdir())
    assert fit(epochs=9, fast_dev_run=3).epochs[0].steps == 3


def test_least_epochs() -> None:
    stopping = ws.EarlyStopping("loss", patience=1, mode="max")
    assert len(fit(epochs=6, callbacks=stopping)) == 2
    stopping = ws.EarlyStopping("loss", patience=1, mode="max")
    history = fit(epochs=6, min_epochs=4, callbacks=stopping)
    assert len(history) == 4
    assert "has not improved" in history.stopped_by
    assert len(fit(epochs=2, min_epochs=4)) == 2  # no more than there are
    budget = fit(epochs=3, min_epochs=1, callbacks=ws.StepBudget(2))
    assert [(e.steps, e.partial) for e in budget.epochs] == [(6, False)]


def test_early_stopping_has_a_baseline_and_a_divergence() -> None:
    def judged(stopping: ws.EarlyStopping, *values: float) -> tuple[int, str]:
        callbacks = ws.CallbackList([stopping])
        for epoch, value in enumerate(values):
            callbacks.on_epoch_end(epoch, {"val_loss": value})
            if callbacks.stopped_by:
                return epoch, callbacks.stopped_by
        return -1, ""

    falling = (5.0, 4.0, 3.0, 2.0, 0.5)
    assert judged(ws.EarlyStopping(patience=3), *falling) == (-1, "")
    assert judged(ws.EarlyStopping(patience=3, baseline=1.0), *falling)[0] == 2
    assert judged(ws.EarlyStopping(patience=5, baseline=1.0), *falling) == (-1, "")
    assert judged(ws.EarlyStopping(divergence=10.0), 1.0, 11.0) == (1, "val_loss is 11, beyond the divergence of 10")
    assert judged(ws.EarlyStopping(divergence=10.0), 1.0, float("nan"))[0] == 1
    assert judged(ws.EarlyStopping(divergence=0.2, mode="max"), 0.3, 0.1)[0] == 1
    assert judged(ws.EarlyStopping(divergence=0.2, mode="max"), 0.3, 0.25)[0] == -1


def test_per_micro_batch_accepts_what_cannot_be_cut() -> None:
    def spread(output: Any, target: Any) -> Any:
        return (output - target).abs().max()

    settings: dict[str, Any] = {"loss": spread, "accumulate": 2, "batch_size": 2, "drop_last": True, "shuffle": False}
    with pytest.raises(ws.errors.GraphError, match=r"cannot be split into batches.*per_micro_batch=True"):
        fit(**settings)
    model = line()
    first = fit(model, **settings, per_micro_batch=True, limit_batches=2)["loss"][0]
    out = X[:4] @ START["weight"].T + START["bias"]
    worst = np.abs(out - Y[:4]).reshape(2, 2).max(1)
    assert first == pytest.approx(worst.mean(), rel=1e-6)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "limit": (
        {"limit_batches": 0},
        ws.errors.OptionError,
        r"limit_batches=0: expected a number of batches, e.g. 10, or",
    ),
    "share": ({"limit_batches": 1.5}, ws.errors.OptionError, r"limit_batches=1.5: expected a number of batches"),
    "share of an iterable": (
        {"data": Batches(4), "limit_batches": 0.5},
        ws.errors.OptionError,
        "an iterable does not say how many batches it has; give a number, not a share",
    ),
    "nothing to cut": (
        {"limit_validation": 2},
        ws.errors.UsageError,
        r"limit_validation=2 limits validation data, and there is none: give validation=\(x, y\)",
    ),
    "nothing to measure": (
        {"validate_every_steps": 2},
        ws.errors.UsageError,
        r"validate_every_steps=2 evaluates validation data, and there is none: give validation=",
    ),
    "never reached": (
        {"validate_every_steps": 12, "validation": 0.1},
        ws.errors.OptionError,
        "an epoch has 5 steps, so none would be reached. Count epochs instead: validate_every=2",
    ),
    "every 0": (
        {"validate_every": 0},
        ws.errors.OptionError,
        "validate_every=0: expected an integer of at least 1",
    ),
    "two sizes": (
        {"overfit_batches": 1, "limit_batches": 1},
        ws.errors.UsageError,
        "overfit_batches= limits the data itself; leave limit_batches and limit_validation out",
    ),
    "overfit": ({"overfit_batches": 0.5}, ws.errors.OptionError, "overfit_batches=0.5: expected an integer of at"),
    "iterable": (
        {"data": Batches(4), "drop_last": True},
        ws.errors.UsageError,
        "drop_last: an iterable decides its own batches; leave its last one out there",
    ),
    "fast": (
        {"fast_dev_run": "yes"},
        ws.errors.OptionError,
        r"fast_dev_run='yes': expected True \(one batch\), a number",
    ),
    "least": ({"min_epochs": -1}, ws.errors.OptionError, "min_epochs=-1: expected an integer of at least 0"),
    "clip": ({"clip_value": 0.0}, ws.errors.OptionError, "clip_value=0.0: expected a number above 0, or None"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_makes_no_sense_is_told_with_the_fix(case: str) -> None:
    settings, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        fit(**{"epochs": 2, **settings})


def test_a_baseline_that_is_no_number() -> None:
    with pytest.raises(ws.errors.OptionError, match="EarlyStopping: baseline must be a number, or None; received 'x'"):
        ws.EarlyStopping(baseline="x")  # type: ignore[arg-type]


def test_a_loader_of_ones_own_is_not_changed() -> None:
    loader = ws.DataLoader(X, Y, 4, seed=5)
    history = fit(data=loader, epochs=2, limit_batches=2, drop_last=True)
    assert [e.steps for e in history.epochs] == [2, 2]
    assert (len(loader), loader.limit, loader.drop_last) == (6, None, False)
    assert len(list(islice(ws.DataLoader(Batches(4), limit=3), 9))) == 3
    assert len(list(ws.DataLoader(Batches(4), limit=3, prefetch=2))) == 3
