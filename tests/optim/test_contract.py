"""What every optimizer of the table promises."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.optim.table import ROWS, Row, Torch, Transcript, assert_near, given_gradients, names, run, slopes, start
from tests.support.sessions import assert_same_bits
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.optim import Optimizer
from wholestep.optim.core.config import trial_values
from wholestep.optim.core.options import RANGE, trials_of

STEPS = 100
WITH_VALLEY = [name for name, row in ROWS.items() if row.valley is not None]


def pair(row: Row) -> tuple[ws.Session, Torch | Transcript]:
    return ws.build_session(given_gradients(row)), row.theirs({n: start(n) for n in names(row)})


WRAPPERS = {"EMA", "SWA", "Lookahead", "SAM", "AGC", "CautiousWeightDecay", "GradientCentralization", "Pruned"}
# over any optimizer: test_wrappers.py, test_catalogue.py, test_pruning.py


def test_every_optimizer_has_a_row() -> None:
    exported = {name: getattr(ws.optim, name) for name in ws.optim.__all__}
    ours = {name for name, cls in exported.items() if isinstance(cls, type) and issubclass(cls, Optimizer)}
    alone = {"LBFGS", "SophiaG"}  # an update depends on the loss: test_lbfgs.py, test_sophia.py
    assert ours - {"Optimizer"} - WRAPPERS - alone == {type(row.ours).__name__ for row in ROWS.values()}, (
        "add a row to ROWS of tests/optim/table.py"
    )


def test_every_number_of_an_optimizer_says_what_it_is_tried_with() -> None:
    found: dict[str, float] = {}
    exported = [getattr(ws.optim, name) for name in ws.optim.__all__]
    for cls in (c for c in exported if isinstance(c, type) and issubclass(c, Optimizer)):
        for f in fields(cls):
            limits = f.metadata.get(RANGE)
            if limits is None or limits.structural or f.name == "lr":  # of a rate the check itself finds a good one
                continue
            assert limits.trial is not None, f"{cls.__name__}.{f.name} lacks trial="
        for name, value in trials_of(cls).items():
            assert found.setdefault(name, value) == value, f"{cls.__name__}: {name} has two trials"
    assert found["beta1"] == 0.6
    assert found.keys() <= trial_values().keys()


@pytest.mark.parametrize("name", ROWS)
def test_a_hundred_given_gradients_agree(name: str) -> None:
    row = ROWS[name]
    session, theirs = pair(row)
    for number in range(STEPS):
        run(session, row, number)
        theirs.step(slopes(row, number))
        if number in (0, 1, 9):
            assert_near(session, row, theirs)
    assert_near(session, row, theirs)


def changed(key: str, value: float) -> float:
    """Another value that is in range for every optimizer."""
    return {"beta1": 0.7, "beta2": 0.95, "alpha": 0.9, "momentum": 0.6, "dampening": 0.2}.get(key, 0.9 * value)


@pytest.mark.parametrize("name", ROWS)
def test_every_hyperparameter_changes_without_a_recompile(name: str) -> None:
    row = ROWS[name]
    session, theirs = pair(row)
    compiles = compile_counter.value
    declared = row.ours.runtime_values()
    assert dict(session.scalars.items()) == declared
    new = {key: changed(key.removeprefix("optimizer."), value) for key, value in declared.items()}
    for number in range(12):
        if number == 5:
            for key, value in new.items():
                session.scalars[key] = value
            theirs.set({key.removeprefix("optimizer."): value for key, value in new.items()})
        run(session, row, number)
        theirs.step(slopes(row, number))
    assert_near(session, row, theirs)
    assert compile_counter.value == compiles


@pytest.mark.parametrize("name", ROWS)
def test_saved_and_restored_midway_gives_the_same_bits(name: str) -> None:
    row = ROWS[name]
    whole, half = ws.build_session(given_gradients(row)), ws.build_session(given_gradients(row))
    for number in range(5):
        run(whole, row, number)
        run(half, row, number)
    other = ws.build_session(given_gradients(row))
    other.load_state_dict(half.state_dict())
    for number in range(5, 10):
        run(whole, row, number)
        run(other, row, number)
    assert_same_bits(whole.state_dict(), other.state_dict())


@pytest.mark.parametrize("name", ROWS)
def test_the_array_form_is_the_same_expression(name: str) -> None:
    row, kind = ROWS[name], "matrix float64"
    array, theirs, optimizer = start(kind), row.theirs({kind: start(kind)}), replace(row.ours)
    for number in range(10):
        d = slopes(row, number)[kind]
        optimizer.step([array], [d])
        theirs.step({kind: d})
    np.testing.assert_allclose(array, theirs.trained(kind), rtol=0, atol=1e-12 * np.abs(array).max())


@pytest.mark.parametrize("name", ROWS)
def test_a_description_survives_json(name: str) -> None:
    ours = ROWS[name].ours
    again = Optimizer.from_config(json.loads(json.dumps(ours.to_config())))
    assert again == ours
    assert again.structure() == ours.structure()


def valley(optimizer: Optimizer) -> ws.Graph:
    """Σ (p - 3)² + Rosenbrock's valley from (-1.2, 1)."""
    g = ws.Graph()
    p = g.parameter("parabola", (2, 2), init=0.5, dtype="float64")
    q = g.parameter("rosenbrock", (1, 2), init=np.array([[-1.2, 1.0]]), dtype="float64")
    x, y = q[0, 0], q[0, 1]
    first, second = ((p - 3.0) * (p - 3.0)).sum(), (1.0 - x) * (1.0 - x) + 100.0 * (y - x * x) * (y - x * x)
    g.set_outputs({"loss": first + second, "parabola_loss": first, "rosenbrock_loss": second})
    return g


@pytest.mark.parametrize("name", WITH_VALLEY)
def test_it_finds_the_bottom_of_a_parabola_and_of_rosenbrocks_valley(name: str) -> None:
    row, steps = ROWS[name], 3000
    options: dict[str, Any] = {"weight_decay": 0.0} if name != "momentum" else {}
    optimizer = replace(row.ours, lr=row.valley, decay_on=None, **options)
    if name == "adagrad":
        optimizer = replace(optimizer, lr_decay=0.0)
    session = ws.build_session(valley(optimizer), optimizer=optimizer)
    first = None
    for number in range(steps):  # a warm-up, since RAdam begins as plain descent, and then down to 0
        session.set_learning_rate(row.valley * min((number + 1) / 300, 1.0 - number / steps))
        last = session.step()
        first = first or last
    assert first is not None
    assert first["parabola_loss"] > 20.0
    assert first["rosenbrock_loss"] > 20.0
    assert last["parabola_loss"] < 1e-3
    assert last["rosenbrock_loss"] < 0.05
