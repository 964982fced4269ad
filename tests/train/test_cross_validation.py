"""Folds: every row is validated once, by a model that has not seen it; `fit` in the words of Keras and Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.compilers import quick

RNG = np.random.default_rng(0)
X = RNG.normal(size=(21, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]], np.float32)).astype(np.float32)
GIVEN: dict[str, Any] = {
    "loss": "mse",
    "optimizer": ws.SGD(lr=0.1),
    "batch_size": 7,
    "epochs": 3,
    "progress": False,
    "options": quick(),
}


def line() -> ws.nn.Module:
    model = ws.nn.Linear(3, 1)
    model.load_state_dict({"weight": np.full((1, 3), 0.2, np.float32), "bias": np.zeros(1, np.float32)})
    return model


def test_every_fold_is_a_run_of_torch_that_has_not_seen_its_rows(tmp_path: Path) -> None:
    model = line()
    before = {name: a.tobytes() for name, a in model.state_dict().items()}
    given = {**GIVEN, "batch_size": 14, "device": "reference", "checkpoint": tmp_path}
    found = ws.cross_validate(model, (X, Y), folds=3, **given)
    expected = []
    for train, held in ws.data.folds((X, Y), 3):
        other = torch.nn.Linear(3, 1)
        with torch.no_grad():
            other.weight.fill_(0.2)
            other.bias.zero_()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        x, y = (torch.tensor(a) for a in (train.inputs["x"], train.targets["labels"]))
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(other(x), y).backward()
            optimizer.step()
        held_x, held_y = (torch.tensor(a) for a in (held.inputs["x"], held.targets["labels"]))
        expected.append(torch.nn.functional.mse_loss(other(held_x), held_y).item())
    np.testing.assert_allclose(found["val_loss"], expected, rtol=1e-5)
    assert found.mean() == pytest.approx(np.mean(expected))
    assert found.std() == pytest.approx(np.std(expected, ddof=1))
    assert {name: a.tobytes() for name, a in model.state_dict().items()} == before
    assert [m.evaluate(X, Y, loss="mse")["loss"] > 0 for m in found.models] == [True] * 3
    assert str(found).split()[:2] == ["fold", "val_loss"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fold-0", "fold-1", "fold-2"]
    again = ws.cross_validate(line(), (X, Y), folds=3, **{**given, "epochs": 3, "resume": True})
    assert again["val_loss"] == found["val_loss"]


def test_what_folds_cannot_do_is_told() -> None:
    with pytest.raises(ws.errors.UsageError, match="folds hold out their own rows, each once; leave validation= out"):
        ws.cross_validate(line(), (X, Y), validation=0.2, **GIVEN)
    with pytest.raises(
        ws.errors.UsageError, match=r"ws.cross_validate has no argument 'epoch'. Did you mean epochs=\?"
    ):
        ws.cross_validate(line(), (X, Y), epoch=2, **GIVEN)
    with pytest.raises(ws.errors.OptionError, match="folds: k must be an integer of at least 2; received 1"):
        ws.cross_validate(line(), (X, Y), folds=1, **GIVEN)


# -- in other words ----------------------------------------------------------------------------------------------

SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "validation_data": ({"validation_data": (X, Y)}, {"validation": (X, Y)}),
    "validation_split": ({"validation_split": 1 / 3}, {"validation": ws.data.Holdout(1 / 3, shuffle=False)}),
    "steps": ({"steps_per_epoch": 2, "validation_freq": 2, "validation_data": (X, Y), "validation_steps": 1},
              {"limit_batches": 2, "validate_every": 2, "validation": (X, Y), "limit_validation": 1}),
    "lightning": ({"max_epochs": 2, "limit_train_batches": 0.5, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
                  {"epochs": 2, "limit_batches": 0.5, "accumulate": 2, "clip_norm": 0.5}),
    "nothing to say": ({"initial_epoch": 0, "jit_compile": True, "deterministic": True}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_other_words_mean_the_same(case: str) -> None:
    theirs, ours = SAME[case]
    given = {**GIVEN, "device": "reference"}
    if "max_epochs" in theirs:
        given.pop("epochs")
    histories = [ws.fit(line(), (X, Y), **{**given, **words}) for words in (theirs, ours)]
    assert histories[0].to_json() == histories[1].to_json()


def test_validation_split_holds_out_the_last_rows() -> None:
    model = line()
    history = ws.fit(model, (X, Y), **GIVEN, validation_split=1 / 3, device="reference")
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(X[14:], Y[14:], loss="mse")["loss"], rel=1e-6)


@pytest.mark.parametrize(("verbose", "lines"), [(0, 0), (2, 3)])
def test_verbose(verbose: int, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    given = {name: value for name, value in GIVEN.items() if name != "progress"}
    ws.fit(line(), (X, Y), **given, verbose=verbose, device="reference")
    assert capsys.readouterr().err.count("\n") == lines


ANSWERED: dict[str, tuple[Any, str]] = {
    "sample_weight": (np.ones(21), r"ws.fit has no argument 'sample_weight': .*\(x, y, sample_weight\)"),
    "lr": (0.1, r"the learning rate is the optimizer's: optimizer=ws.AdamW\(lr=...\)"),
    "max_steps": (5, r"give callbacks=ws.StepBudget\(steps\)"),
    "initial_epoch": (3, r"ws.fit: initial_epoch=3 is not supported: a run goes on from its checkpoint"),
    "verbose": (7, r"verbose=7: expected 0 \(silent\), 1 \(a bar\) or 2 \(a line per epoch\)"),
    "val_check_interval": (
        0.5,
        "val_check_interval=0.5: give validate_every_steps= for parts of an epoch",
    ),
    "num_epochs": (3, "ws.fit: num_epochs= is another name of epochs=, and both were given"),
    "y": (Y, r"data is one argument: ws.fit\(model, \(x, y\), ...\)"),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_words_that_are_not_taken_are_answered(name: str) -> None:
    value, text = ANSWERED[name]
    with pytest.raises(ws.errors.UsageError, match=text):
        ws.fit(line(), (X, Y), loss="mse", epochs=2, **{name: value})


def test_every_word_is_one_of_ours() -> None:
    from wholestep.interop.keras.fit import FIT, Word
    from wholestep.train.fitting import SETTINGS

    assert {row.ours for row in FIT.values() if isinstance(row, Word)} <= SETTINGS.keys()
    assert not FIT.keys() & SETTINGS.keys()
