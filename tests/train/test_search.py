"""Grids, random draws and trials of others; votes, stacks and soups of the models that they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.compilers import quick
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import OptionError, UsageError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("f")
Y = ((X[:, 0] + 0.5 * X[:, 1] > 0) + (X[:, 2] > 0.5)).astype("int32")
OPTIONS: dict[str, Any] = {"progress": False}


def build(lr: float = 0.1, width: int = 4, epochs: int = 3) -> ws.Experiment:
    return ws.Experiment(
        model=ws.nn.Sequential(ws.nn.Linear(4, width), ws.nn.Tanh(), ws.nn.Linear(width, 3)), data=(X, Y),
        validation=0.25, loss="cross_entropy", metrics=["accuracy"], optimizer=ws.Adam(lr=lr), batch_size=15,
        epochs=epochs, device="reference",
    )  # fmt: skip


def test_a_grid_runs_every_combination() -> None:
    found = ws.search(build, {"lr": [1e-3, 0.03, 0.1], "width": [5, 6]}, **OPTIONS)
    assert len({(t.settings["lr"], t.settings["width"]) for t in found.trials}) == 6
    values = [min(t.history["val_loss"]) for t in found.trials]
    assert found.best.value == min(values)
    assert [t.value for t in found.by_value] == sorted(values)
    assert found.best.settings["lr"] > 1e-3
    assert f"{found.best.value:.6g}" in str(found).splitlines()[1]


@pytest.mark.long
def test_a_search_compiles_once_per_architecture(tmp_path: Path) -> None:
    options = {"device": "cpu", "options": replace(quick(), cache_dir=str(tmp_path)), **OPTIONS}
    count = compile_counter.value
    ws.search(build, {"lr": [1e-3, 0.03, 0.1], "width": [5, 6]}, **options)
    one_architecture = (compile_counter.value - count) / 2
    count = compile_counter.value
    ws.search(build, {"lr": [0.2], "width": [7]}, **options)
    assert one_architecture == compile_counter.value - count > 0


def test_random_draws_follow_the_seed_and_the_monitor() -> None:
    space = {"lr": lambda rng: 10 ** rng.uniform(-3, -1), "width": [3, 4]}
    first, again, other = (
        ws.search(build, space, trials=3, seed=seed, monitor="val_accuracy", epochs=1, **OPTIONS) for seed in (1, 1, 2)
    )
    assert [t.settings for t in first.trials] == [t.settings for t in again.trials]
    assert [t.settings for t in first.trials] != [t.settings for t in other.trials]
    assert first.mode == "max"
    assert first.best.value == max(t.history["val_accuracy"][-1] for t in first.trials)


class Study:
    """As an Optuna trial: the second report is bad."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, int]] = []

    def report(self, value: float, step: int) -> None:
        self.reports.append((value, step))

    def should_prune(self) -> bool:
        return len(self.reports) == 2


def test_a_pruned_trial_ends_its_run() -> None:
    study = Study()
    pruning = ws.callbacks.PruneTrial(study)
    history = build().fit(callbacks=[pruning], **OPTIONS)
    assert pruning.pruned
    assert len(history["val_loss"]) == 2
    assert "the trial was pruned at epoch" in history.stopped_by
    assert [value for value, _ in study.reports] == history["val_loss"]


# -- ensembles and soups -----------------------------------------------------------------------------------------


def members() -> list[ws.nn.Module]:
    models = []
    for seed in range(3):
        experiment = build(epochs=6)
        experiment.fit(seed=seed, **OPTIONS)
        models.append(experiment.model)
    return models


def test_members_vote_and_a_stack_is_trained_over_them() -> None:
    models = members()
    scores = [m.predict(X, device="reference") for m in models]
    votes = np.mean([np.eye(3)[s.argmax(-1)] for s in scores], 0)
    vote = ws.nn.Ensemble(models, combine="vote")
    np.testing.assert_allclose(vote.predict(X, device="reference"), votes, rtol=1e-6)
    np.testing.assert_array_equal(vote.predict_classes(X, device="reference"), votes.argmax(-1))
    for model in models:
        model.freeze("*")
    before = [m.state_dict() for m in models]
    stack = ws.nn.Ensemble(models, combine=ws.nn.Linear(9, 3))
    history = ws.fit(
        stack, (X, Y), loss="cross_entropy", optimizer=ws.Adam(lr=0.1), epochs=8, device="reference", **OPTIONS
    )
    assert history["loss"][-1] < history["loss"][0]
    for old, model in zip(before, models, strict=True):
        assert all(array.tobytes() == model.state_dict()[n].tobytes() for n, array in old.items())
    head = stack.combine.state_dict()
    expected = np.concatenate(scores, -1) @ head["weight"].T + head["bias"]
    np.testing.assert_allclose(stack.predict(X, device="reference"), expected, rtol=1e-4, atol=1e-5)


def test_a_soup_is_the_mean_of_weights_and_a_greedy_one_leaves_out_what_harms() -> None:
    models, target = members(), build().model
    assert ws.nn.soup(target, models) == [0, 1, 2]
    for name, array in target.state_dict().items():
        np.testing.assert_allclose(array, np.mean([m.state_dict()[name] for m in models], 0), rtol=1e-6, atol=1e-7)
    goal = models[1].state_dict()["0.weight"]

    def score(model: ws.nn.Module) -> float:
        return -float(np.abs(model.state_dict()["0.weight"] - goal).sum())

    twin = build().model
    twin.load_state_dict(models[1].state_dict())
    assert sorted(ws.nn.soup(target, [*models, twin], score)) == [1, 3]
    np.testing.assert_allclose(target.state_dict()["0.weight"], goal, rtol=1e-6)


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a grid of a function": (
        lambda: ws.search(build, {"lr": lambda rng: 0.1}),
        OptionError,
        r"a list of values for 'lr'",
    ),
    "no trials": (lambda: ws.search(build, {"lr": [0.1]}, trials=0), OptionError, "integer of at least 1; received 0"),
    "no experiment": (
        lambda: ws.search(lambda lr: lr, {"lr": [1]}),
        OptionError,
        r"returns a ws.Experiment; received 1",
    ),
    "an unknown number": (
        lambda: ws.search(build, {"lr": [0.1]}, monitor="val_f1", epochs=1, **OPTIONS),
        OptionError,
        r"search monitors 'val_f1'; the history has: loss",
    ),
    "no trial": (lambda: ws.callbacks.PruneTrial(3), OptionError, "a trial with report and should_prune; received 3"),
    "a way": (
        lambda: ws.nn.Ensemble([ws.nn.Linear(2, 2)], "max"),
        OptionError,
        "'mean', 'vote' or a mod.* received 'max'",
    ),
    "a soup of others": (
        lambda: ws.nn.soup(ws.nn.Linear(2, 2), [ws.nn.Linear(2, 3)]),
        UsageError,
        "at least one model with the names and shapes of Linear's arrays",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    call, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        call()
