"""Mistakes that still train: probabilities instead of raw scores, targets that a loss cannot learn from."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep import losses as L
from wholestep.errors import InputError, TrainingWarning
from wholestep.losses.forms import LINT
from wholestep.train.data.targets import check_targets

Array = np.ndarray[Any, Any]
MADE = {"softmax": ws.softmax, "sigmoid": ws.sigmoid, "log_softmax": ws.log_softmax}
CLASSES, YES = ["cross_entropy", "kl_div", "focal", "dice"], ["bce", "focal", "dice"]


def scores_and_target(each: bool, kind: str) -> tuple[ws.Tensor, ws.Tensor]:
    g = ws.Graph()
    whole = kind != "kl_div" and not each
    return g.input("x", ("batch", 3)), g.input(
        "y", ("batch",) if whole else ("batch", 3), "int32" if whole else "float32"
    )


@pytest.mark.parametrize(("each", "op"), LINT)
def test_scores_that_are_probabilities_already_are_warned_about(each: bool, op: str) -> None:
    for kind in YES if each else CLASSES:
        x, y = scores_and_target(each, kind)
        with pytest.warns(
            TrainingWarning, match=rf"applies the {'sigmoid' if each else 'softmax'} itself: leave the {op}"
        ):
            L.Loss(kind)(MADE[op](x).reshape(x.shape), y)


def test_scores_that_are_not_are_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in CLASSES:
            x, y = scores_and_target(False, kind)
            L.Loss(kind)(ws.log_softmax(x), y)  # log softmax of log softmax is itself
            x, y = scores_and_target(False, kind)
            L.Loss(kind)(ws.softmax(x) * 2.0, y)
        for kind in YES:
            x, y = scores_and_target(True, kind)
            L.Loss(kind)(ws.tanh(x), y)
            L.Loss(kind)(ws.nn.Linear(3, 3)(ws.sigmoid(x)), y)


def test_the_warning_stands_at_the_users_line_in_fit() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(3, 2), ws.nn.Softmax())
    x, y = np.zeros((8, 3), np.float32), np.zeros(8, np.int32)
    with pytest.warns(
        TrainingWarning, match=r"cross_entropy takes raw scores.*ws\.nn\.Softmax\(\)\(model\.predict\(x\)\)"
    ) as found:
        ws.estimate(
            model,
            inputs=ws.Spec(("batch", 3)),
            targets=ws.Spec(("batch",), "int32"),
            loss="cross_entropy",
            batch_size=8,
        )
    assert [w.filename for w in found] == [__file__]
    del x, y


# -- targets -----------------------------------------------------------------------------------------------------

ROWS = np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]

REFUSED: dict[str, tuple[Any, Array, str]] = {
    "bce above 1": ("bce", np.array([0.0, 1, 2, 1]), r"to 1 \(yes\); received 2 in row 2.*'cross_entropy'"),
    "bce below 0": ("bce", np.array([[0], [1], [-1], [1]]), r"received -1 in row 2\. \(y \+ 1\) / 2 makes them"),
    "bce of text": ("bce", np.array(["a", "b"]), r"dtype <U1, not numbers; number the classes"),
    "focal above 1": ("focal", np.array([[0.5, 1.5]]), r"focal takes targets from 0 \(no\) to 1 \(yes\); received 1.5"),
    "dice below 0": ("dice", np.array([[0.5, -1.0]]), r"dice takes targets from 0 .*received -1 in row 0"),
    "hinge of 0 and 1": ("hinge", np.array([[0.0], [1.0]]), r"1 \(yes\); received 0 in row 0\. 2 \* y - 1"),
    "hinge of bools": ("hinge", np.array([True, False]), r"received 0 in row 1\. 2 \* y - 1 makes them of 0 and 1"),
    "float classes": ("cross_entropy", np.array([0.0, 1.0]), r"labels are floats; .*y\.astype\('int32'\).*loss='bce'"),
    "float column": ("cross_entropy", np.array([[0.0], [1.0]]), r"labels are floats"),
    "several ones": ("cross_entropy", ROWS + ROWS[::-1], r"row 0 has the sum 2\. Where several labels .*loss='bce'"),
    "below 0": ("cross_entropy", np.array([[1.5, -0.5]]), r"rows of probabilities, from 0 and with the sum 1"),
    "kl": ("kl_div", 2 * ROWS, r"kl_div takes rows of probabilities"),
    "on axis 1": (L.Loss("cross_entropy", axis=1), np.ones((2, 3, 4), np.float32), r"row 0 has the sum 3"),
    "one-hot ints": ("cross_entropy", ROWS.astype(int), r"one-hot integers; .*y\.argmax\(axis=1\)"),
    "text": ("cross_entropy", np.array(["cat", "dog"]), r"not numbers; number the classes"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_targets_that_a_loss_cannot_learn_from(name: str) -> None:
    loss, y, text = REFUSED[name]
    with pytest.raises(InputError, match=text):
        check_targets(L.get(loss), y)  # type: ignore[arg-type]


def test_targets_that_a_loss_can_learn_from() -> None:
    for loss, y in (
        ("bce", np.array([True, False])),
        ("bce", np.array([[0.25], [1.0]])),
        ("cross_entropy", ROWS),
        ("cross_entropy", np.array([[3], [4]], np.uint8)),
        ("hinge", np.array([-1.0, 1.0])),
        ("focal", np.array([7, 8])),
        (L.Loss("cross_entropy", axis=1), np.full((2, 4, 3), 0.25)),
        ("mse", np.array([5.0, -7.0])),
    ):
        check_targets(L.get(loss), y)  # type: ignore[arg-type]


def test_fit_looks_at_all_rows_before_it_compiles_and_at_the_first_batch_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "wholestep.train.data.data_spec.DataSpec.build", lambda *_, **__: pytest.fail("something was compiled")
    )
    x, y = np.zeros((20, 3), np.float32), np.zeros((20, 1), np.float32)
    y[13] = 2.0
    model = ws.nn.Linear(3, 1)
    with pytest.raises(InputError, match=r"received 2 in row 13"):
        ws.fit(model, (x, y), loss="bce", batch_size=4)
    with pytest.raises(InputError, match=r"received 2 in row 1"):
        ws.fit(model, [(x[12:16], y[12:16])], loss="bce", batch_size=4)
    with pytest.raises(InputError, match=r"received 2 in row 13"):
        model.evaluate(x, y, loss="bce")
    with pytest.raises(InputError, match=r"received 2 in row 13"):
        ws.fit(model, (x, {"output": y}), loss={"output": "bce"}, batch_size=4)
