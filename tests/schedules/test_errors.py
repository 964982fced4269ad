"""What schedules refuse, by its text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import wholestep as ws
from tests.support.sessions import mlp
from wholestep import schedules as S
from wholestep.errors import OptionError, UnknownNameError, UsageError

REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "T_max": (lambda: S.Cosine(0.1, 0), OptionError, "Cosine: T_max must be above 0; received 0"),
    "torch T_max": (
        lambda: S.CosineAnnealingLR(ws.SGD(lr=0.1), T_max=0),
        OptionError,
        "Cosine: T_max must be above 0; received 0",
    ),
    "nan": (lambda: S.Constant(float("nan")), OptionError, "lr must be a finite number; received nan"),
    "gamma": (lambda: S.Exponential(0.1, -1), OptionError, "gamma must be above 0; received -1"),
    "T_mult": (lambda: S.WarmRestarts(0.1, 10, 0.5), OptionError, "T_mult must be at least 1; received 0.5"),
    "pct": (lambda: S.OneCycle(0.1, 10, 1.5), OptionError, "pct_start must be above 0 and at most 1; received 1.5"),
    "anneal": (lambda: S.OneCycle(0.1, 10, anneal="sin"), OptionError, "anneal='sin': expected one of 'cos', 'linear'"),
    "milestones": (lambda: S.MultiStep(0.1, (5, 3)), OptionError, r"each larger than the last; received \(5, 3\)"),
    "one too many": (
        lambda: S.Sequence((S.Constant(1.0),), (3,)),
        OptionError,
        "1 schedules meet at 0 milestones; received 1",
    ),
    "no schedule": (
        lambda: S.Warmup("cosine", 3),
        UsageError,
        "Warmup takes schedules, e.g. .* received 'cosine'",
    ),
    "units": (
        lambda: S.Warmup(S.Constant(1.0, unit="epoch"), 3),
        OptionError,
        "counts in unit='step', the schedule inside in 'epoch'",
    ),
    "unit": (lambda: S.Constant(1.0, unit="batch"), OptionError, "unit='batch': expected 'step' or 'epoch'"),
    "factor": (lambda: S.ReduceOnPlateau(0.1, 1.0), OptionError, "factor must be above 0 and at most 1"),
    "negative step": (lambda: S.Constant(1.0)(-1), OptionError, "a step counted from 0; received -1"),
    "open lr": (lambda: S.Cosine(None, 10)(0), UsageError, r"takes its lr from an optimizer .* use .bound\(lr\)"),
    "kind": (lambda: S.Schedule.from_config({"kind": "Sine"}), OptionError, "no schedule of kind 'Sine'; there are: "),
    "field": (
        lambda: S.Schedule.from_config({"kind": "Constant", "rate": 1}),
        OptionError,
        "Constant has no field 'rate'; it has: ",
    ),
    "no optimizer": (lambda: S.StepLR(0.1, 3), UsageError, "StepLR takes the optimizer first, e.g. .* received 0.1"),
    "observe": (lambda: S.ReduceOnPlateau(0.1).observe(1.0), UsageError, r"session.schedule.observe\(value\)"),
    "step without metric": (lambda: S.ReduceLROnPlateau(ws.SGD()).step(), UsageError, r"e.g. step\(val_loss\)"),
    "no function": (lambda: S.Lambda(0.9), UsageError, "Lambda takes a function of the step; received 0.9"),
    "a function of epochs in a session": (
        lambda: ws.build_session(mlp(), batch_size=4, schedule=S.Lambda(lambda n: 1.0 if n < 3 else 0.5)),
        UsageError,
        r"the lambda cannot become part of the step \(the truth value .*ws\.schedules\.Lambda\(function\)\.over\(100\)",
    ),
    "a function that gives no number": (
        lambda: S.Lambda(lambda n: None, 0.1)(3),
        OptionError,
        "the lambda returned None at 3; a factor of the lr is a finite number",
    ),
    "a function that never rests": (
        lambda: S.Lambda(lambda n: 1 / (1 + n), 0.1).over(600),
        OptionError,
        "changes 599 times in 600 steps, and a table has room for 512. Write it as a formula, count epochs",
    ),
    "a function in a file": (
        lambda: S.Lambda(lambda n: 0.9**n, 0.1).to_config(),
        UsageError,
        "is a function, which a configuration cannot store. A table can",
    ),
    "cyclic mode": (lambda: S.Cyclic(0.1, 0.0, mode="saw"), OptionError, "mode='saw': expected one of 'triangular'"),
    "momentum": (
        lambda: S.CyclicLR(ws.SGD(), 0.1, 0.2, cycle_momentum=True),
        UsageError,
        "CyclicLR changes the learning rate alone; schedule the momentum as well",
    ),
    "values for other groups": (
        lambda: S.LambdaLR(ws.SGD(groups=[ws.Group("*.bias", lr=1.0)]), [len]),
        OptionError,
        "LambdaLR: lr_lambda has 1 values, and the optimizer has 2 learning rates",
    ),
    "nothing to chain": (
        lambda: S.ChainedScheduler([0.1]),
        UsageError,
        r"list of schedules under torch's names, e.g. \[StepLR\(optimizer, 10\)",
    ),
    "a sum to chain": (
        lambda: S.ChainedScheduler([S.CosineAnnealingLR(ws.SGD(), 10, eta_min=0.1)]),
        OptionError,
        "ChainedScheduler multiplies, and Cosine with eta_min=0.1 adds. Give it eta_min=0",
    ),
    "table of factors": (
        lambda: S.Table(0.1, (1.0, 2.0)),
        OptionError,
        "2 factors meet at 1 milestones; received 0",
    ),
    "table": (lambda: S.Constant(1.0).table(10, every=0), OptionError, "every of at least 1; received 10, 0"),
    "a number": (
        lambda: ws.build_session(mlp(), batch_size=4, schedule=0.1),
        UsageError,
        r"schedule is a schedule, e.g. ws.schedules.Cosine\(1e-3, 1000\), .* received 0.1",
    ),
    "no such scalar": (
        lambda: ws.build_session(mlp(), batch_size=4, schedule={"optimizer.rate": S.Constant(1.0)}),
        UnknownNameError,
        "no runtime scalar 'optimizer.rate' to schedule; there are: 'optimizer.lr'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    call, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        call()


def test_a_live_schedule_refuses() -> None:
    session = ws.build_session(mlp(), batch_size=4, schedule=S.Cosine(0.1, 10))
    with pytest.raises(OptionError, match=r"optimizer.lr follows a schedule and cannot be set to 3"):
        session.optimizer.lr = 3
    with pytest.raises(OptionError, match="T_max must be above 0"):
        session.schedule.T_max = 0
    with pytest.raises(UnknownNameError, match="has no scalar 'tmax'; it has: lr, T_max, eta_min"):
        session.schedule.tmax = 3
    with pytest.raises(UsageError, match=r"Cosine observes nothing; ws.schedules.ReduceOnPlateau does"):
        session.schedule.observe(1.0)
    with pytest.raises(UsageError, match="this session has no schedule; build it with"):
        _ = ws.build_session(mlp(), batch_size=4).schedule
