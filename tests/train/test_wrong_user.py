"""What a new user does wrong: each gets an error that says what to do, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.errors import (
    CheckpointError,
    GraphError,
    HabitError,
    InputError,
    OptionError,
    ShapeError,
    UnknownNameError,
    UsageError,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
IMAGES = RNG.integers(0, 256, (12, 1, 4, 4)).astype(np.uint8)
TOKENS = RNG.integers(0, 9, (4, 6))


def linear(features: int = 3, classes: int = 2) -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Flatten(), ws.nn.Linear(features, classes))


def fit(x: Any = X, y: Any = Y, model: ws.nn.Module | None = None, **options: Any) -> ws.TrainHistory:
    given = {"loss": "cross_entropy", "batch_size": 4, "seed": 0, "progress": False, **options}
    return ws.fit(model or linear(), (x, y), **given)


def changed(array: np.ndarray, row: int, value: float) -> np.ndarray:
    out = array.copy()
    out[row] = value
    return out


def watched_by(*callbacks: ws.Callback, **options: Any) -> Callable[[], object]:
    return lambda: fit(callbacks=callbacks, metrics=["accuracy"], **options)


def session() -> ws.Session:
    inputs, targets = ws.Spec(("batch", 3)), ws.Spec(("batch",), "int32")
    return ws.build_session(linear(), inputs=inputs, targets=targets, loss="cross_entropy", batch_size=12)


def graph_loss() -> ws.Tensor:
    g = ws.Graph()
    return (g.input("x", ("batch", 3)) @ g.parameter("w", (3, 1))).mean()


def gpt() -> ws.nn.Module:
    return ws.models.gpt2(layers=1, width=8, heads=2, vocabulary=9, context=5)


Case = tuple[Callable[[], object], type[Exception], str]

LABELS: dict[str, Case] = {
    "one-hot": (lambda: fit(y=np.eye(2, dtype=int)[Y]), InputError, r"one-hot integers; .*y\.argmax\(axis=1\)"),
    "floats": (lambda: fit(y=Y.astype(float)), InputError, r"labels are floats; .*y\.astype\('int32'\)"),
    "booleans": (lambda: fit(y=Y > 0), InputError, r"labels are booleans; .*y\.astype\('int32'\)"),
    "text": (lambda: fit(y=np.array(["cat", "dog"])[Y]), InputError, r"dtype <U3, not numbers; .*return_inverse=True"),
    "several columns": (
        lambda: fit(y=np.stack([Y] * 5, 1)),
        ShapeError,
        r"need labels of shape \(batch,\); received \(batch, 5\)",
    ),
    "more classes than outputs": (
        lambda: fit(y=Y + 5),
        InputError,
        "labels go up to 6, which needs 7 classes; the model has 2 outputs. Make its last layer larger",
    ),
    "from 1": (lambda: fit(y=Y + 1), InputError, "labels go up to 2, .* or number the classes from 0"),
    "negative": (lambda: fit(y=Y - 1), InputError, r"labels go down to -1; .* y - y\.min\(\)\. .*ignore_index=-1"),
    "one missing": (lambda: fit(y=Y[:-1]), ShapeError, "one row per example; received {'x': 12, 'labels': 11} rows"),
    "none": (
        lambda: ws.fit(linear(), X, loss="mse", batch_size=4),
        UsageError,
        r"there are no targets: data is \(x, y\)",
    ),
    "by position": (
        lambda: ws.fit(linear(), X, Y, loss="mse"),
        UsageError,
        r"data is one argument: ws\.fit\(model, \(x, y\), loss=\.\.\.\); received 2 by position",
    ),
}

FEATURES: dict[str, Case] = {
    "uint8 images": (
        lambda: fit(IMAGES),
        InputError,
        r"uint8 images; .*x\.astype\('float32'\) / 255, .*ws\.data\.Scale",
    ),
    "uint8 rows": (
        lambda: fit(IMAGES.reshape(12, 16), model=linear(16)),
        InputError,
        r"'x' is uint8, .*integer inputs are for embeddings. Convert features, x\.astype\('float32'\), and scale",
    ),
    "integers": (lambda: fit(np.ones((12, 3), int)), InputError, r"'x' is int64, .*x\.astype\('float32'\)"),
    "NaN at the start": (lambda: fit(changed(X, 0, np.nan)), InputError, r"'x' holds nan at \[0, 0\]; .*nan_to_num"),
    "NaN at the end": (lambda: fit(changed(X, 11, np.nan)), InputError, r"'x' holds nan at \[11, 0\]; .*Drop the row"),
    "infinity": (lambda: fit(changed(X, 5, -np.inf)), InputError, r"'x' holds -inf at \[5, 0\]"),
    "NaN targets": (lambda: fit(y=changed(X[:, :2], 3, np.nan), loss="mse"), InputError, r"'labels' holds nan at \[3"),
    "empty": (lambda: fit(X[:0], Y[:0]), InputError, "the data set is empty: its arrays have 0 rows"),
    "no batches": (lambda: ws.fit(linear(), [], loss="mse"), InputError, "the data is empty: it has no batches"),
    "another width": (lambda: fit(X[:, :2]), ShapeError, r"takes 3 features on the last axis; received \(batch, 2\)"),
}

VALIDATION: dict[str, Case] = {
    "empty": (lambda: fit(validation=(X[:0], Y[:0])), InputError, "validation: the data set is empty"),
    "NaN": (lambda: fit(validation=(changed(X, 2, np.nan), Y)), InputError, r"validation: 'x' holds nan at \[2, 0\]"),
    "another width": (
        lambda: fit(validation=(X[:, :2], Y)),
        ShapeError,
        r"validation: the rows of 'x' have shape \(2,\), those of the training data \(3,\)",
    ),
    "no labels": (lambda: fit(validation=X), ShapeError, "validation: it has 'x', the training data has 'x', 'labels'"),
    "too many classes": (lambda: fit(validation=(X, Y + 9)), InputError, "validation: the labels go up to 10"),
    "a fraction of a data set": (
        lambda: ws.fit(linear(), ws.DataLoader(X, Y), validation=0.1, loss="cross_entropy"),
        UsageError,
        r"validation=0\.1 holds out rows of arrays or a data set; received DataLoader\. .*ws\.data\.split",
    ),
}


class TwoSided(ws.nn.Module):
    """Two inputs, two outputs."""

    def __init__(self) -> None:
        self.left, self.right = ws.nn.Linear(3, 2), ws.nn.Linear(3, 1)

    def forward(self, a: ws.Tensor, b: ws.Tensor) -> dict[str, ws.Tensor]:
        return {"kind": self.left(a), "size": self.right(b)}


BOTH = {"kind": Y, "size": X[:, :1]}

NAMES: dict[str, Case] = {
    "inputs": (
        lambda: fit({"a": X, "c": X}, BOTH, TwoSided(), loss={"kind": "cross_entropy", "size": "mse"}),
        UsageError,
        r"TwoSided\.forward takes a, b; the inputs are called a, c\. Give both the same names",
    ),
    "one loss for two outputs": (
        lambda: fit({"a": X, "b": X}, BOTH, TwoSided(), loss="mse"),
        UsageError,
        r"mse takes one output and one target; .*outputs kind, size .*for each, loss={'kind': 'mse', \.\.\.}",
    ),
    "a loss for no output": (
        lambda: fit({"a": X, "b": X}, BOTH, TwoSided(), loss={"sort": "mse"}),
        UsageError,
        r"loss\['sort'\] needs an output and a target of that name; there are outputs: kind, size",
    ),
    "metric": (lambda: fit(metrics=["acuracy"]), KeyError, "there is no metric 'acuracy'. Did you mean 'accuracy'"),
    "loss": (
        lambda: fit(loss="crossentropy"),
        KeyError,
        "there is no loss 'crossentropy'. Did you mean 'cross_entropy'",
    ),
    "monitor": (
        watched_by(ws.EarlyStopping("val_los"), validation=(X, Y)),
        KeyError,
        "EarlyStopping monitors 'val_los', which this run does not have. Did you mean 'val_loss'",
    ),
    "monitor of a checkpoint": (
        watched_by(ws.ModelCheckpoint("never", "val_acuracy"), validation=(X, Y)),
        KeyError,
        "ModelCheckpoint monitors 'val_acuracy', .*Did you mean 'val_accuracy'",
    ),
    "monitor without validation": (
        watched_by(ws.EarlyStopping("val_loss")),
        KeyError,
        r"There is no validation data: pass validation=\(x, y\) or validation=0\.1",
    ),
    "optimizer by a wrong name": (lambda: fit(optimizer="adm"), UnknownNameError, r"no optimizer 'adm'\. .*'adam'"),
    "a callback's class": (lambda: fit(callbacks=[ws.EarlyStopping]), UsageError, r"ws\.Callback objects; .*add \(\)"),
}

HABITS: dict[str, Case] = {
    "Adam(parameters)": (
        lambda: ws.Adam(linear().parameters()),
        UsageError,
        r"ws\.Adam takes no parameters, only numbers; .*ws\.fit\(model, data, \.\.\., optimizer=ws\.Adam\(lr=0\.01\)\)",
    ),
    "loss.backward()": (
        lambda: graph_loss().backward(),
        HabitError,
        r"no `backward`: gradients are recorded, ws\.gradients\(loss, params\)",
    ),
    "step().backward()": (
        lambda: session().step(x=X, labels=Y).backward(),
        HabitError,
        "the result of a step has no `backward`: session.step has computed the gradients and applied the update",
    ),
    "step().item()": (
        lambda: session().step(x=X, labels=Y).item(),
        HabitError,
        r"write result\.loss, or float\(result",
    ),
    "model.train()": (lambda: linear().train(), HabitError, "belongs to the entry point"),
    "model.zero_grad()": (lambda: linear().zero_grad(), HabitError, "there is nothing to set to zero"),
    "a graph to fit": (
        lambda: ws.fit(ws.Graph(), (X, Y), loss="mse"),
        UsageError,
        r"trains a ws\.nn\.Module or a @ws\.step function; .*Graph",
    ),
}

LAYERS: dict[str, Case] = {
    "channels": (
        lambda: ws.nn.Conv2d(3, 4, 3)(np.zeros((2, 1, 8, 8), "f")),
        ShapeError,
        r"takes 3 channels, \(N, 3, H, W\); received \(batch, 1, 8, 8\)",
    ),
    "channels last": (
        lambda: ws.nn.Conv2d(3, 4, 3)(np.zeros((2, 8, 8, 3), "f")),
        ShapeError,
        r"The channels seem to come last: x\.transpose\(0, 3, 1, 2\)",
    ),
    "no axis of channels": (
        lambda: ws.nn.Conv2d(1, 4, 3)(np.zeros((2, 8, 8), "f")),
        ShapeError,
        r"Add the axis of channels: x\[:, None\]",
    ),
    "kernel larger than the image": (
        lambda: ws.nn.Conv2d(1, 4, 9)(np.zeros((2, 1, 8, 8), "f")),
        ShapeError,
        "a window of 9 x 9 is larger than the image of 8 x 8 .*; use a smaller kernel or more padding",
    ),
    "odd heads": (
        lambda: ws.nn.MultiHeadAttention(10, 3),
        OptionError,
        "a width of 10 does not divide into 3 heads; choose a multiple of 3",
    ),
    "odd heads of a gpt": (
        lambda: ws.models.gpt2(layers=1, width=10, heads=3, vocabulary=9, context=5),
        OptionError,
        "gpt2: a width of 10 does not divide into 3 heads; choose a multiple of 3",
    ),
    "index outside an embedding": (
        lambda: ws.nn.Embedding(9, 2)(TOKENS + 1),
        InputError,
        "'x' holds indices from 0 to 8; received 9 at position",
    ),
    "index outside an embedding, trained": (
        lambda: fit(TOKENS + 1, TOKENS, ws.nn.Sequential(ws.nn.Embedding(9, 2), ws.nn.Linear(2, 9))),
        InputError,
        "'x' holds indices from 0 to 8; received 9 at position",
    ),
    "longer than the context": (
        lambda: fit(TOKENS, TOKENS, gpt()),
        ShapeError,
        "gpt2: 6 tokens are more than its context of 5; cut the text",
    ),
}

RATES: dict[str, Case] = {
    "a schedule by name": (
        lambda: fit(schedule="cosine"),
        UsageError,
        r"schedule='cosine' is a name; give the schedule: schedule=ws\.schedules\.cosine\(\.\.\.\)",
    ),
    "a class of schedules": (
        lambda: fit(schedule=ws.schedules.StepDecay),
        UsageError,
        r"schedule is ws\.schedules\.StepDecay itself; call it",
    ),
    "a schedule that was not called": (
        lambda: fit(schedule=ws.schedules.cosine),
        UsageError,
        r"schedule is ws\.schedules\.cosine itself; call it: schedule=ws\.schedules\.cosine\(\.\.\.\)",
    ),
    "torch's schedule": (
        lambda: fit(schedule=type("StepLR", (), {"get_last_lr": None})()),
        UsageError,
        r"another library's StepLR; ours has the same name: schedule=ws\.schedules\.StepLR\(optimizer, \.\.\.\)",
    ),
    "a function as a schedule": (
        lambda: fit(schedule=lambda epoch: 0.9**epoch),
        UsageError,
        r"schedule is a function.*ws\.schedules\.Lambda\(function\) multiplies it",
    ),
    "steps in place of the rate": (
        lambda: fit(schedule=ws.schedules.cosine(100)),
        OptionError,
        r"cosine\(100\): the first argument is the learning rate.*say steps=100",
    ),
    "rate and steps exchanged": (
        lambda: ws.schedules.Cosine(100, 1e-3),
        OptionError,
        r"T_max=0\.001 is less than one step; the order is Cosine\(lr, T_max\)",
    ),
    "a metric that is called": (
        lambda: ws.metrics.Accuracy()(np.eye(2), [0, 1]),
        HabitError,
        r"a metric is not called: accuracy\.update\(prediction, target\) counts a batch, accuracy\.compute\(\)",
    ),
    "metrics in one text": (
        lambda: fit(metrics="accuracy, f1"),
        UnknownNameError,
        r"there is no metric 'accuracy, f1'\. Several are a list: metrics=\['accuracy', 'f1'\]",
    ),
    "metrics of an output that is not there": (
        lambda: fit(metrics={"mask": ["accuracy"]}),
        GraphError,
        r"the metric 'accuracy' is about the input 'mask'; there are: \['x', 'labels'\]",
    ),
}

CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "labels": LABELS,
        "features": FEATURES,
        "validation": VALIDATION,
        "names": NAMES,
        "habits": HABITS,
        "layers": LAYERS,
        "rates and metrics": RATES,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_says_what_to_do(case: str) -> None:
    make, kind, text = CASES[case]
    with pytest.raises(ws.errors.WholestepError, match=text) as raised:
        make()
    assert isinstance(raised.value, kind)


def test_resuming_into_another_architecture(tmp_path: Path) -> None:
    fit(checkpoint=tmp_path)
    wider = ws.nn.Sequential(ws.nn.Flatten(), ws.nn.Linear(3, 2, bias=False))
    before = wider.state_dict()
    with pytest.raises(CheckpointError, match=r"another model, .*it has 1\.bias.*Nothing was loaded\. Train as before"):
        fit(model=wider, checkpoint=tmp_path, resume=True)
    assert all(np.array_equal(before[n], a) for n, a in wider.state_dict().items())
    with pytest.raises(
        CheckpointError, match=r"is of another model: 1\.weight is \(2, 3\) in it and \(3, 3\) here.*Build"
    ):
        fit(model=linear(3, 3), checkpoint=tmp_path, resume=True)


# -- and what looks wrong but is not -----------------------------------------------------------------------------


def test_probabilities_are_labels_too() -> None:
    assert np.isfinite(fit(y=np.eye(2, dtype=np.float32)[Y]).final_loss())


def test_images_of_bytes_with_a_transform() -> None:
    """What the error advises works, for training and validation data."""
    loader = ws.DataLoader(IMAGES, Y, 4, transform=ws.data.Scale(1 / 255))
    history = ws.fit(linear(16), loader, validation=loader, loss="cross_entropy", seed=0, progress=False)
    floats = IMAGES.astype(np.float32) / 255
    expected = fit(floats, Y, linear(16), validation=(floats, Y))
    assert history.last == pytest.approx(expected.last, rel=1e-5)


def test_validation_data_of_every_kind() -> None:
    class Rows:
        def __len__(self) -> int:
            return len(X)

        def __getitem__(self, i: int) -> tuple[Any, Any]:
            return X[i], Y[i]

    expected = fit(validation=(X, Y))["val_loss"]
    for held in (Rows(), [(X[:5], Y[:5]), (X[5:], Y[5:])], ws.DataLoader(X, Y, 5), ws.DataLoader(Rows(), batch_size=5)):
        assert fit(validation=held)["val_loss"] == pytest.approx(expected, rel=1e-6)


def test_metrics_that_keep_scores_have_room_for_all_rows() -> None:
    history = fit(validation=0.25, metrics=["roc_auc"])
    assert 0.0 <= history["roc_auc"][0] <= 1.0
    assert 0.0 <= fit(metrics=["roc_auc"])["roc_auc"][0] <= 1.0


def test_a_loss_of_ones_own_says_what_weights_mean() -> None:
    def squares(output: ws.Tensor, target: ws.Tensor) -> ws.Tensor:
        return ws.losses.mse(output, target)

    def weighed(output: ws.Tensor, target: ws.Tensor, sample_weight: ws.Tensor) -> ws.Tensor:
        return ws.losses.mse(output, target, sample_weight=sample_weight)

    data = X, X[:, :2], np.ones(12, np.float32)
    with pytest.raises(
        UsageError, match=r"loss squares does not take them: .*def squares\(output, target, sample_weight"
    ):
        ws.fit(linear(), data, loss=squares, batch_size=4, progress=False)
    history = ws.fit(linear(), data, loss=weighed, batch_size=4, seed=0, progress=False)
    expected = ws.fit(linear(), data[:2], loss="mse", batch_size=4, seed=0, progress=False)
    np.testing.assert_allclose(history["loss"], expected["loss"])
