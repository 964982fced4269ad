"""Schedule by unit by loop: the lr of every single step is torch's, whoever drives, resumed or not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import wholestep as ws
from wholestep import schedules as S

RATE, EPOCHS, STEPS = 0.5, 4, 3
ONES = np.ones((4 * STEPS, 1))
Lrs = list[float]


class Falling(ws.nn.Module):
    """Its gradient is 1 at every step: the weight falls by exactly the learning rate."""

    def __init__(self) -> None:
        self.weight = ws.nn.Parameter((1,), 0.0, "float64")

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return x * self.weight


def mean(output: ws.Tensor, target: ws.Tensor) -> ws.Tensor:
    return output.mean()


class Rates(ws.Callback):
    """The lr of each step, read from how far the weight fell."""

    every = 1

    def __init__(self) -> None:
        self.used: Lrs = []
        self.weight = 0.0

    def on_train_begin(self) -> None:
        assert self.run is not None
        self.weight = float(self.run.session.get("weight")[0])

    def on_step(self, metrics: ws.StepMetrics) -> None:
        assert self.run is not None
        before, self.weight = self.weight, float(self.run.session.get("weight")[0])
        self.used.append(before - self.weight)


# How each is made, from torch's module or ours.
NAMED: dict[str, Callable[..., Any]] = {
    "ConstantLR": lambda m, o, **u: m.ConstantLR(o, 0.5, 2, **u),
    "LinearLR": lambda m, o, **u: m.LinearLR(o, 0.2, 1.0, 3, **u),
    "PolynomialLR": lambda m, o, **u: m.PolynomialLR(o, 4, 2.0, **u),
    "CosineAnnealingLR": lambda m, o, **u: m.CosineAnnealingLR(o, 4, 1e-3, **u),
    "ExponentialLR": lambda m, o, **u: m.ExponentialLR(o, 0.8, **u),
    "StepLR": lambda m, o, **u: m.StepLR(o, 2, 0.3, **u),
    "MultiStepLR": lambda m, o, **u: m.MultiStepLR(o, [1, 3], 0.4, **u),
    "OneCycleLR": lambda m, o, **u: m.OneCycleLR(o, 0.9, 12, **u),
    "CosineAnnealingWarmRestarts": lambda m, o, **u: m.CosineAnnealingWarmRestarts(o, 2, **u),
    "SequentialLR": lambda m, o, **u: m.SequentialLR(
        o, [m.LinearLR(o, 0.1, total_iters=2), m.ExponentialLR(o, 0.7)], [2], **u
    ),
    "LambdaLR": lambda m, o, **u: m.LambdaLR(o, lambda n: 0.9**n, **u),
    "LambdaLR that branches": lambda m, o, **u: m.LambdaLR(o, lambda n: 1.0 if n < 2 else math.exp(-0.3 * n), **u),
    "CyclicLR": lambda m, o, **u: m.CyclicLR(o, 0.02, 0.3, 2, 3, "triangular2", **u),
    "ChainedScheduler": lambda m, o, **u: m.ChainedScheduler(
        [m.LinearLR(o, 0.1, total_iters=2), m.ExponentialLR(o, 0.7)], optimizer=o, **u
    ),
    "SWALR": lambda m, o, **u: getattr(m, "SWALR", torch.optim.swa_utils.SWALR)(o, 0.03, 3, **u),
}
BY_STEP_HORIZON = {  # schedules that rise again after their end in torch: as long as the run
    "PolynomialLR": lambda m, o, **u: m.PolynomialLR(o, 12, 2.0, **u),
    "CosineAnnealingLR": lambda m, o, **u: m.CosineAnnealingLR(o, 12, 1e-3, **u),
}


BY_STEP = ("OneCycleLR", "CyclicLR")


def counts(name: str, unit: str | None) -> str:
    """What a loop of epochs counts."""
    return unit or ("step" if name in BY_STEP else "epoch")


def made(name: str, unit: str | None, module: Any, optimizer: Any, options: dict[str, Any]) -> Any:
    table = BY_STEP_HORIZON if counts(name, unit) == "step" and name in BY_STEP_HORIZON else NAMED
    return table[name](module, optimizer, **options)


def expected(name: str, unit: str | None) -> Lrs:
    """The lr of every step of torch's loop, which calls `step` in the place that the unit says."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    extra = {"cycle_momentum": False} if name in BY_STEP else {}
    scheduler, used = made(name, unit, lr_scheduler, optimizer, extra), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its SequentialLR
        for _ in range(EPOCHS):
            for _ in range(STEPS):
                used.append(float(optimizer.param_groups[0]["lr"]))
                optimizer.step()
                if counts(name, unit) == "step":
                    scheduler.step()
            if counts(name, unit) == "epoch":
                scheduler.step()
    return used


def scheduled(name: str, unit: str | None) -> tuple[ws.Optimizer, Any]:
    optimizer = ws.SGD(lr=RATE)
    return optimizer, made(name, unit, S, optimizer, {} if unit is None else {"unit": unit})


OPTIONS: dict[str, Any] = {"batch_size": 4, "progress": False, "shuffle": False}


def by_fit(optimizer: ws.Optimizer, schedule: Any, folder: Path) -> tuple[Lrs, Lrs]:
    rates = Rates()
    history = ws.fit(
        Falling(), (ONES, ONES), loss=mean, optimizer=optimizer, schedule=schedule, epochs=EPOCHS, callbacks=rates,
        **OPTIONS,
    )  # fmt: skip
    return rates.used, history["lr"]


def by_loop(optimizer: ws.Optimizer, schedule: Any, folder: Path) -> tuple[Lrs, Lrs]:
    rates = Rates()
    loop = ws.BasicTrainingLoop(Falling(), optimizer, schedule, callbacks=[rates], loss=mean)
    return rates.used, loop.fit((ONES, ONES), epochs=EPOCHS, **OPTIONS)["lr"]


def session_for(optimizer: ws.Optimizer, schedule: Any = None) -> ws.Session:
    spec = ws.Spec(("batch", 1), "float64")
    return ws.build_session(
        Falling(), inputs=spec, targets=spec, loss=mean, optimizer=optimizer, schedule=schedule, batch_size=4
    )


def by_trainer(optimizer: ws.Optimizer, schedule: Any, folder: Path) -> tuple[Lrs, Lrs]:
    session = session_for(optimizer, schedule)
    rates = Rates()
    trainer = ws.Trainer(session, ws.TrainConfig(log_interval=0), rates)
    history = trainer.train(ws.DataLoader(ONES, ONES, batch_size=4, shuffle=False), EPOCHS)
    return rates.used, history["lr"]


def resumed(optimizer: ws.Optimizer, schedule: Any, folder: Path) -> tuple[Lrs, Lrs]:
    """Stopped inside the second epoch."""
    used: Lrs = []
    model = Falling()
    for stop in (STEPS + 1, 10**6):
        rates = Rates()
        history = ws.fit(
            model, (ONES, ONES), loss=mean, optimizer=optimizer, schedule=schedule, epochs=EPOCHS,
            callbacks=[rates, Pause(stop), ws.ModelCheckpoint(folder, "loss", last=1)],
            resume=folder if any(folder.iterdir()) else None, **OPTIONS,
        )  # fmt: skip
        used += rates.used
        model = Falling()
    return used, history["lr"]


class Pause(ws.StepBudget):
    """A budget that a checkpoint does not remember, and at whose end there is one, as at Ctrl-C."""

    def on_step(self, metrics: ws.StepMetrics) -> None:
        super().on_step(metrics)
        assert self.run is not None
        self.run.interrupted = bool(self.run.stopped_by)

    def state_dict(self) -> dict[str, Any]:
        return {}


def twice(optimizer: ws.Optimizer, schedule: Any, folder: Path) -> tuple[Lrs, Lrs]:
    """The second `fit` of a model begins its schedule anew, as the second `train` of a trainer does."""
    model, rates = Falling(), Rates()
    for callbacks in ([], [rates]):
        history = ws.fit(
            model, (ONES, ONES), loss=mean, optimizer=optimizer, schedule=schedule, epochs=EPOCHS, callbacks=callbacks,
            **OPTIONS,
        )  # fmt: skip
    return rates.used, history["lr"]


def trained_twice(optimizer: ws.Optimizer, schedule: Any, folder: Path) -> tuple[Lrs, Lrs]:
    rates = Rates()
    trainer = ws.Trainer(session_for(optimizer, schedule), ws.TrainConfig(log_interval=0))
    loader = ws.DataLoader(ONES, ONES, batch_size=4, shuffle=False)
    trainer.train(loader, EPOCHS)
    trainer.callbacks.append(rates)
    return rates.used, trainer.train(loader, EPOCHS)["lr"][EPOCHS:]


LOOPS = {"fit": by_fit, "BasicTrainingLoop": by_loop, "Trainer": by_trainer, "resumed": resumed}
AGAIN = {"a second fit": twice, "a second train": trained_twice}


@pytest.fixture(autouse=True)
def _horizons_have_tests_of_their_own() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the schedule of")
        yield


CELLS = [(unit, loop) for unit in (None, "step") for loop in (*LOOPS, *AGAIN)] + [
    ("epoch", "fit"),
    ("epoch", "Trainer"),
]


@pytest.mark.parametrize(("unit", "loop"), CELLS)
@pytest.mark.parametrize("name", NAMED)
def test_every_step_has_the_rate_of_torch(name: str, unit: str | None, loop: str, tmp_path: Path) -> None:
    wanted = expected(name, unit)
    if "branches" in name and loop in ("Trainer", "a second train"):  # a session alone does not know how long it runs
        with pytest.raises(ws.errors.UsageError, match=r"cannot become part of the step .* or train with ws\.fit"):
            session_for(*scheduled(name, unit))
        return
    used, logged = (LOOPS | AGAIN)[loop](*scheduled(name, unit), tmp_path)
    np.testing.assert_allclose(used, wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(logged, wanted[STEPS - 1 :: STEPS], rtol=1e-9)


class Two(ws.nn.Module):
    """Two weights that fall, each by its own rate."""

    def __init__(self) -> None:
        self.body, self.head = Falling(), Falling()

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.body(x) + self.head(x)


@pytest.mark.parametrize("kind", ["StepLR", "LinearLR", "LambdaLR that branches", "ChainedScheduler"])
def test_groups_follow_from_their_own_rates_through_fit(kind: str) -> None:
    """As torch's schedules move every group's rate."""
    theirs = torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (RATE, 5 * RATE)], lr=RATE
    )
    scheduler, wanted = NAMED[kind](lr_scheduler, theirs), np.zeros(2)
    for _ in range(EPOCHS):
        wanted += [STEPS * float(group["lr"]) for group in theirs.param_groups]
        theirs.step()
        scheduler.step()
    optimizer = ws.SGD(lr=RATE, groups=[ws.Group("head.*", lr=5 * RATE)])
    for by_callback in (False, True):
        schedule, model = NAMED[kind](S, optimizer), Two()
        given = {"callbacks": ws.callbacks.LearningRateScheduler(schedule)} if by_callback else {"schedule": schedule}
        ws.fit(model, (ONES, ONES), loss=mean, optimizer=optimizer, epochs=EPOCHS, **given, **OPTIONS)
        fallen = [-float(model.state_dict()[f"{part}.weight"][0]) for part in ("body", "head")]
        np.testing.assert_allclose(fallen, wanted, rtol=1e-9)


@pytest.fixture(scope="module")
def plain() -> ws.Session:
    return session_for(ws.SGD(lr=RATE))


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("unit", ["epoch", "step"])
def test_a_loop_of_ones_own_counts_the_calls(name: str, unit: str, plain: ws.Session) -> None:
    """`scheduler.step()` stands where the loop puts it, as in torch."""
    plain.optimizer.lr = RATE
    scheduler = made(name, unit, S, plain.optimizer, {})
    used: Lrs = []
    before = float(plain.get("weight")[0])
    for _ in range(EPOCHS):
        for _ in range(STEPS):
            plain.step(x=ONES[:4], labels=ONES[:4])
            after = float(plain.get("weight")[0])
            used.append(before - after)
            before = after
            if unit == "step":
                scheduler.step()
        if unit == "epoch":
            scheduler.step()
    np.testing.assert_allclose(used, expected(name, unit), rtol=1e-9, atol=1e-12)


# -- plateaus ----------------------------------------------------------------------------------------------------


def observed_by_torch(values: Lrs, **options: Any) -> Lrs:
    """The lr of every epoch, where torch's plateau sees these values after each."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler, used = lr_scheduler.ReduceLROnPlateau(optimizer, **options), []
    for value in values:
        used.append(float(optimizer.param_groups[0]["lr"]))
        scheduler.step(value)
    return used


PLATEAUS = {  # the loss always falls: whoever waits for it to rise sees a plateau
    "native": lambda o: S.ReduceOnPlateau(None, 0.5, patience=1, mode="max"),
    "torch's": lambda o: S.ReduceLROnPlateau(o, "max", 0.5, 1),
    "inside a warm-up": lambda o: S.Warmup(S.ReduceOnPlateau(None, 0.5, patience=1, mode="max"), 1),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", PLATEAUS)
def test_plateaus_observe_once_an_epoch(kind: str, loop: str, tmp_path: Path) -> None:
    optimizer = ws.SGD(lr=RATE)
    used, logged = LOOPS[loop](optimizer, PLATEAUS[kind](optimizer), tmp_path)
    wanted = observed_by_torch([4.0, 3.0, 2.0, 1.0], mode="max", factor=0.5, patience=1)
    assert wanted[-1] == RATE / 2
    np.testing.assert_allclose(used, np.repeat(wanted, STEPS))
    np.testing.assert_allclose(logged, wanted)


def test_a_plateau_watches_validation_or_what_it_is_told() -> None:
    held = (np.ones((4, 1)) * -1.0, np.ones((4, 1)))  # its loss rises as the other falls
    watched = {"": [1, 1, 0.5, 0.5], "loss": [1, 1, 1, 1], "val_loss": [1, 1, 0.5, 0.5]}
    for monitor, factors in watched.items():
        history = ws.fit(
            Falling(), (ONES, ONES), validation=held, loss=mean, optimizer=ws.SGD(lr=RATE), epochs=EPOCHS,
            schedule=S.ReduceOnPlateau(None, 0.5, patience=0, cooldown=2, monitor=monitor), **OPTIONS,
        )  # fmt: skip
        np.testing.assert_allclose(history["lr"], RATE * np.array(factors))
    assert S.ReduceOnPlateau(None, monitor="val_accuracy").way == "max"
    with pytest.raises(ws.errors.UsageError, match=r"'temperature', whose name does not say .* Give mode='min'"):
        _ = S.ReduceOnPlateau(None, monitor="temperature").way
    with pytest.raises(ws.errors.UsageError, match="ReduceOnPlateau monitors 'lr', whose name does not say"):
        ws.fit(Falling(), (ONES, ONES), loss=mean, schedule=S.ReduceOnPlateau(None, monitor="lr"), **OPTIONS)
    with pytest.raises(
        ws.errors.UnknownNameError, match="ReduceOnPlateau monitors 'val_lose', which this run does not"
    ):
        ws.fit(
            Falling(), (ONES, ONES), validation=held, loss=mean, epochs=EPOCHS,
            schedule=S.ReduceOnPlateau(None, mode="min", monitor="val_lose"), **OPTIONS,
        )  # fmt: skip


# -- what is said ------------------------------------------------------------------------------------------------

UNLIKE = {
    "by epochs, too long": (lambda o: S.CosineAnnealingLR(o, 100), "Cosine by epoch, goes on for 100 epochs, the run"),
    "by steps, too short": (lambda o: S.CosineAnnealingLR(o, 4, unit="step"), "ends after 4 steps, the run has 12: 0 "),
    "native": (lambda o: S.Cosine(None, 4), "ends after 4 steps, the run has 12: 0 holds .* or unit='epoch' if epochs"),
    "a warm-up": (lambda o: S.Warmup(S.Linear(None, 0.0, 90), 10), "Warmup by step, goes on for 100 steps, the run"),
    "milestones": (lambda o: S.MultiStepLR(o, [30, 60]), "MultiStep by epoch, goes on for 60 epochs, the run has 4"),
    "one cycle": (lambda o: S.OneCycleLR(o, 0.1, 100), "OneCycle by step, goes on for 100 steps, the run has 12"),
}
LIKE = {
    "the run": lambda o: S.CosineAnnealingLR(o, EPOCHS),
    "nearly": lambda o: S.Cosine(None, 11),
    "a rise": lambda o: S.LinearLR(o, total_iters=2),
    "for ever": lambda o: S.ExponentialLR(o, 0.9),
    "planned": lambda o: S.cosine(warmup=2),
}


def trained(make: Callable[[Any], Any]) -> None:
    optimizer = ws.SGD(lr=RATE)
    by_fit(optimizer, make(optimizer), Path())


@pytest.mark.parametrize("kind", UNLIKE)
def test_a_horizon_unlike_the_run_is_said(kind: str) -> None:
    make, text = UNLIKE[kind]
    with pytest.warns(UserWarning, match=text):
        trained(make)


@pytest.mark.parametrize("kind", LIKE)
def test_a_horizon_like_the_run_is_not(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(LIKE[kind])


def test_the_unit_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = ws.SGD(lr=RATE)
    for schedule, unit in [(S.StepLR(optimizer, 2, unit="step"), "step"), (S.StepLR(optimizer, 2), "call")]:
        assert f"unit='{unit}'" in repr(schedule)
        assert schedule.table(4).splitlines()[0].split() == [unit, "value"]
    ws.fit(
        Falling(), (ONES, ONES), loss=mean, optimizer=optimizer, schedule=S.StepLR(optimizer, 2), epochs=EPOCHS,
        batch_size=4,
    )  # fmt: skip
    told = capsys.readouterr().err
    assert "optimizer.lr follows StepDecay by epoch" in told
    assert "lr 0.05" in told


def test_a_run_of_a_session_counts_updates_and_says_where_that_is_unlike_it() -> None:
    optimizer = ws.SGD(lr=RATE)
    session = session_for(optimizer, S.CosineAnnealingLR(optimizer, EPOCHS))
    with pytest.warns(UserWarning, match="Cosine by step, ends after 4 steps, the run has 12: 0 holds .* unit='epoch'"):
        session.run(x=ONES, labels=ONES, epochs=EPOCHS)
    told = session_for(optimizer, S.CosineAnnealingLR(optimizer, EPOCHS, unit="epoch"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told.run(x=ONES, labels=ONES, epochs=EPOCHS)
    assert float(told.get("weight")[0]) == pytest.approx(-sum(S.Cosine(RATE, EPOCHS)(n) for n in range(EPOCHS)) * STEPS)


def test_a_schedule_brings_the_optimizer_that_it_was_made_for() -> None:
    """Without optimizer= it would else set the rate of another one."""
    rates = Rates()
    optimizer = ws.SGD(lr=RATE)
    ws.fit(
        Falling(), (ONES, ONES), loss=mean, schedule=S.ConstantLR(optimizer, 1.0, 1), epochs=1, callbacks=rates,
        **OPTIONS,
    )  # fmt: skip
    np.testing.assert_allclose(rates.used, [RATE] * STEPS)
    with pytest.raises(ws.errors.UsageError, match="ConstantLR was made for SGD, and optimizer= is Adam"):
        ws.fit(
            Falling(), (ONES, ONES), loss=mean, schedule=S.ConstantLR(optimizer), optimizer=ws.Adam(), **OPTIONS
        )  # fmt: skip


# -- by a callback -----------------------------------------------------------------------------------------------

RULES: dict[str, tuple[Any, str | None]] = {
    "a function of the epoch": (lambda epoch: RATE * 0.5**epoch, None),
    "a function of the epoch and the rate": (lambda epoch, lr: lr * 0.5 if epoch else lr, None),
    "a schedule": (S.Exponential(None, 0.5), "epoch"),
    "a schedule by steps": (S.Exponential(None, 0.5), None),
    "torch's": (S.ExponentialLR(ws.SGD(lr=RATE), 0.5), None),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_callback_sets_the_rate(rule: str) -> None:
    schedule, unit = RULES[rule]
    rates = Rates()
    ws.fit(
        Falling(), (ONES, ONES), loss=mean, optimizer=ws.SGD(lr=RATE), epochs=EPOCHS,
        callbacks=[rates, ws.callbacks.LearningRateScheduler(schedule, unit)], **OPTIONS,
    )  # fmt: skip
    n = np.arange(EPOCHS * STEPS) if rule == "a schedule by steps" else np.repeat(np.arange(EPOCHS), STEPS)
    np.testing.assert_allclose(rates.used, RATE * 0.5**n)


def test_a_callback_and_a_schedule_do_not_share_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ws.errors.OptionError, match=r"optimizer\.lr follows a schedule and cannot be set"):
        ws.fit(
            Falling(), (ONES, ONES), loss=mean, schedule=S.Exponential(None, 0.5),
            callbacks=ws.callbacks.LearningRateScheduler(lambda epoch: 0.1), **OPTIONS,
        )  # fmt: skip
    monkeypatch.setattr("wholestep.session.session.alive", ())
    with pytest.raises(
        ws.errors.UsageError, match=r"this loop has not given one: ws.CallbackList\(\[...\], session=session\)"
    ):
        ws.CallbackList([ws.callbacks.LearningRateScheduler(lambda epoch: 0.1)]).on_train_begin()
