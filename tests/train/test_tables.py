"""Frames through fit, save, load, predict and evaluate: the encoder is learnt with the model and stays with it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from safetensors import safe_open
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import wholestep as ws
from wholestep.cli import app
from wholestep.data.tables.frame_data import as_framed
from wholestep.errors import CheckpointError, InputError, OptionError, UnknownNameError, UsageError
from wholestep.nn.layers.table_encoding import encoding_of
from wholestep.train.fitting import trainer_for

ROWS, NUMPY = 120, "reference"  # nothing here is about compiled code


def made_frame() -> pd.DataFrame:
    """Animals: what they are follows from all columns but the last."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, ROWS)
    weight = np.array([4.0, 30.0, 500.0])[kind] * rng.uniform(0.8, 1.2, ROWS)
    weight[rng.random(ROWS) < 0.2] = np.nan
    said = [f"{['purrs', 'barks', 'neighs'][k]} loudly {i}" for i, k in enumerate(kind)]
    return pd.DataFrame(
        {
            "weight": weight,
            "home": pd.Series([["sofa", "kennel", "stable"][k] if rng.random() < 0.9 else None for k in kind]),
            "born": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, ROWS), "D"),
            "said": said,
            "tag": rng.integers(0, 5, ROWS),
            "animal": np.array(["cat", "dog", "horse"], object)[kind],
            "price": weight * 0 + 100.0 * kind + rng.normal(0, 5, ROWS),
        }
    ).assign(price=lambda f: f["price"].fillna(150.0))


FRAME = made_frame()
INPUTS = ["weight", "home", "born", "said", "tag"]


@pytest.fixture(scope="module")
def trained() -> ws.models.Tabular:
    model = ws.models.Tabular(hidden=(16,))
    history = ws.fit(
        model,
        (FRAME[[*INPUTS, "animal"]], "animal"),
        validation=ws.data.Holdout(0.25, stratify=True),
        encoder=ws.data.Encoder(categories=["tag"]),
        loss="cross_entropy",
        metrics=["accuracy"],
        optimizer=ws.Adam(lr=0.02),
        epochs=8,
        progress=False,
        device=NUMPY,
    )
    assert history.epochs[-1].logs["val_accuracy"] > 0.9
    return model


def scores(model: ws.nn.Module, frame: object) -> np.ndarray:
    return model.predict(frame, device=NUMPY)


def test_predictions_are_by_name_whatever_the_frame(trained: ws.models.Tabular) -> None:
    expected = scores(trained, FRAME)
    assert (np.argmax(expected, 1) == np.unique(FRAME["animal"], return_inverse=True)[1]).mean() > 0.9
    others = [
        FRAME[INPUTS[::-1]],
        pl.from_pandas(FRAME[INPUTS])
        if _has_pyarrow()
        else pl.DataFrame({n: [None if pd.isna(v) else v for v in FRAME[n].tolist()] for n in INPUTS}),
        {n: FRAME[n] for n in INPUTS},
    ]
    for frame in others:
        np.testing.assert_array_equal(scores(trained, frame), expected)
    labels = trained.predict_classes(FRAME, device=NUMPY)
    assert set(labels) == {"cat", "dog", "horse"}
    assert (labels == FRAME["animal"]).mean() > 0.9
    found = trained.evaluate(FRAME, "animal", loss="cross_entropy", metrics=["accuracy"], device=NUMPY)
    assert found["accuracy"] > 0.9
    shuffled = FRAME.sample(frac=1, random_state=0)
    again = trained.evaluate((shuffled, "animal"), loss="cross_entropy", device=NUMPY)
    assert again["loss"] == pytest.approx(found["loss"], rel=1e-5)


def _has_pyarrow() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def test_the_encoder_is_saved_with_the_model(trained: ws.models.Tabular, tmp_path: Path) -> None:
    file = tmp_path / "animals.safetensors"
    trained.save(file)
    with safe_open(file, "np") as opened:
        stored = json.loads(opened.metadata()["wholestep.encoding"])
    assert stored["target"]["values"] == ["cat", "dog", "horse"]
    again = ws.models.Tabular(hidden=(16,))
    again.load(file)
    np.testing.assert_array_equal(scores(again, FRAME), scores(trained, FRAME))
    np.testing.assert_array_equal(scores(copy.deepcopy(again), FRAME), scores(trained, FRAME))
    other = ws.models.Tabular(hidden=(8,))
    with pytest.raises(
        ws.errors.ShapeError, match=r"'layers\.0\.bias' has shape \(8,\) in the model; received \(16,\)"
    ):
        other.load(file)
    assert not other.named_arrays()  # as it was


def test_a_damaged_encoder_is_refused(trained: ws.models.Tabular, tmp_path: Path) -> None:
    file = tmp_path / "animals.safetensors"
    trained.save(file)
    raw = file.read_bytes()
    for old, new in (
        (b'\\"version\\": 1', b'\\"version\\": 7'),
        (b'\\"kind\\": \\"Classes\\"', b'\\"kine\\": \\"Classes\\"'),
    ):
        assert old in raw
        file.write_bytes(raw.replace(old, new))
        with pytest.raises(CheckpointError, match=r"holds an encoder that cannot be read .* Save the model again"):
            ws.models.Tabular(hidden=(16,)).load(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("numbers", 0, "std"), 0.0),
        (("numbers", 0, "mean"), "NaN"),
        (("numbers", 0, "name"), 3),
        (("words", 0, "length"), 10**9),
        (("words", 0, "values"), [1]),
        (("categories", 0, "values"), [["x"]]),
        (("target", "values"), None),
        (("target",), []),
        (("dates",), 7),
    ],
)
def test_an_encoder_of_strangers(trained: ws.models.Tabular, path: tuple[Any, ...], value: object) -> None:
    found = json.loads(encoding_of(trained).to_json())  # type: ignore[union-attr]
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(CheckpointError, match="it holds an encoder that cannot be read"):
        ws.data.Encoding.from_json(json.dumps(found), "it")


def test_what_was_not_seen_counts_for_nothing(trained: ws.models.Tabular) -> None:
    strange = FRAME[INPUTS].assign(home="igloo", tag=77, said="quite unheard of")
    empty = FRAME[INPUTS].assign(home="cave", tag=78, said="")
    np.testing.assert_array_equal(scores(trained, strange), scores(trained, empty))
    assert np.isfinite(scores(trained, FRAME[INPUTS].assign(weight=None, home=None, born=pd.NaT, said=None))).all()


def test_encoded_columns() -> None:
    data = as_framed((FRAME[["weight", "tag", "home", "born"]].assign(same=3.0), FRAME["price"]))
    assert data is not None
    found = ws.data.Encoder(ignore=["born"]).fit(data)
    arrays = found.encode(data.inputs)
    gaps = FRAME["weight"].isna().to_numpy()
    expected = StandardScaler().fit_transform(FRAME[["weight"]])[:, 0]
    np.testing.assert_allclose(arrays["x"][~gaps, 0], expected[~gaps], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(arrays["x"][gaps, 0], 0)
    np.testing.assert_array_equal(arrays["x"][:, 1], gaps)
    np.testing.assert_array_equal(arrays["x"][:, -1], 0)  # a column of one value
    codes = pd.Categorical(FRAME["home"], categories=["kennel", "sofa", "stable"]).codes
    np.testing.assert_array_equal(arrays["categories"][:, 0], np.where(codes < 0, 4, codes + 1))
    assert (found.width, found.entries, found.outputs) == (4, (5, 1), 1)
    assert ws.data.Encoding.from_json(found.to_json(), "it") == found


def test_dates_turn_with_year_week_and_day() -> None:
    days = pd.DataFrame({"at": pd.to_datetime(["2024-01-01 00:00", "2024-07-01 12:00", "2025-01-01 06:00"])})
    data = as_framed((days, np.zeros(3)))
    assert data is not None
    x = ws.data.Encoder().fit(data).encode(data.inputs)["x"]
    np.testing.assert_allclose(x[0, 1:], [0, 1, 0, 1, 0, 1], atol=1e-6)  # new year, a Monday, midnight
    np.testing.assert_allclose(x[1, 3:], [0, 1, 0, -1], atol=1e-6)  # a Monday, noon
    np.testing.assert_allclose(x[2, 3:], [np.sin(4 * np.pi / 7), np.cos(4 * np.pi / 7), 1, 0], atol=1e-6)


def test_numbers_are_predicted_in_their_units() -> None:
    model = ws.models.Tabular(hidden=(8,))
    options = {"loss": "mse", "metrics": ["mae"], "epochs": 12, "progress": False, "device": NUMPY}
    history = ws.fit(model, (FRAME[["home", "price"]], "price"), optimizer=ws.Adam(lr=0.03), **options)
    assert scores(model, FRAME).shape == (ROWS,)
    mae = np.abs(scores(model, FRAME) - FRAME["price"]).mean()
    assert mae < 0.6 * np.abs(FRAME["price"] - FRAME["price"].mean()).mean()
    found = model.evaluate(FRAME[["home"]], FRAME["price"], loss="mse", metrics=["mae"], device=NUMPY)
    assert found["mae"] == pytest.approx(mae, rel=1e-4)
    assert history.epochs[0].logs["mae"] > mae
    with pytest.raises(UsageError, match="trained to predict numbers, which have no classes; use predict"):
        model.predict_classes(FRAME, device=NUMPY)


def test_answers_and_arrays_of_any_model() -> None:
    """Any model takes the numbers of a frame; with an encoder, labels of any type."""
    frame = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0] * 4, "b": [1, 0, 1, 0] * 4, "yes": [False, False, True, True] * 4})
    model = ws.nn.Sequential(ws.nn.Linear(2, 1), ws.nn.Lambda(lambda x: x.reshape((x.shape[0],))))
    ws.fit(
        model,
        (frame, "yes"),
        encoder=ws.data.Encoder(),
        loss="bce",
        epochs=1,
        batch_size=8,
        progress=False,
        device=NUMPY,
    )
    assert scores(model, frame).shape == (16,)
    answers = model.predict_classes(frame, device=NUMPY)
    assert answers.dtype == bool
    np.testing.assert_array_equal(answers, scores(model, frame) > 0)
    plain = ws.nn.Linear(2, 1)
    ws.fit(
        plain,
        (frame[["a", "b"]], frame["a"].to_numpy()[:, None]),
        loss="mse",
        batch_size=8,
        progress=False,
        device=NUMPY,
    )
    np.testing.assert_array_equal(
        scores(plain, frame[["a", "b"]]), scores(plain, frame[["a", "b"]].to_numpy("float32"))
    )


def test_a_run_carries_its_encoder(tmp_path: Path) -> None:
    """Going on learns the same encoder from the same rows; a checkpoint's weights bring it to a new model."""
    runs = []
    for epochs, folder, resume in ((1, "a", False), (2, "a", True), (2, "b", False)):
        model = ws.models.Tabular(hidden=(4,))
        options = {"loss": "cross_entropy", "validation": 0.25, "progress": False, "device": NUMPY, "resume": resume}
        ws.fit(
            model, (FRAME[["home", "animal"]], "animal"), seed=0, epochs=epochs, checkpoint=tmp_path / folder, **options
        )
        runs.append(scores(model, FRAME))
    np.testing.assert_array_equal(runs[1], runs[2])
    stored = ws.load_checkpoint(tmp_path / "b")
    assert stored.path is not None
    again = ws.models.Tabular(hidden=(4,))
    again.load(stored.path / "weights.safetensors")
    np.testing.assert_array_equal(scores(again, FRAME), runs[2])


def held_rows(data: object, validation: object, **options: Any) -> tuple[list[float], list[float]]:
    """The first input of the rows that are trained on, and of those that are held out."""
    model = ws.nn.Linear(1, 3)
    trainer, loader = trainer_for(
        model, data, loss="cross_entropy", validation=validation, batch_size=4, device=NUMPY, **options
    )
    assert trainer.validation is not None
    return [table.inputs["x"][:, 0].tolist() for table in (loader.source, trainer.validation)]  # type: ignore[union-attr]


def test_fit_holds_out_as_it_is_told() -> None:
    x, y, who = np.arange(24, dtype=np.float32)[:, None], np.arange(24) % 3, np.arange(24) // 4
    _, held = held_rows((x, y), ws.data.Holdout(0.25, stratify=True))
    assert np.bincount(y[np.array(held, int)]).tolist() == [2, 2, 2]
    train, held = held_rows((x, y), ws.data.Holdout(0.34, groups=who))
    assert not {v // 4 for v in train} & {v // 4 for v in held}
    for how, options in ((ws.data.Holdout(0.25, shuffle=False), {}), (ws.data.Holdout(0.25), {"shuffle": False})):
        assert held_rows((x, y), how, **options)[1] == [18.0, 19.0, 20.0, 21.0, 22.0, 23.0]
    frame = pd.DataFrame({"v": x[:, 0], "y": y, "w": np.linspace(1, 2, 24)})
    train, held = held_rows((frame, "y", "w"), 0.25)
    assert (len(train), len(held)) == (18, 6)


# -- mistakes ------------------------------------------------------------------------------------------------------


def test_mistakes_at_predict(trained: ws.models.Tabular) -> None:
    with pytest.raises(
        UnknownNameError, match=r"lacks the column 'weight', .* it has: 'home', .* order does not matter"
    ):
        trained.predict(FRAME[["home", "born", "said", "tag"]])
    with pytest.raises(InputError, match=r"'weight' holds text, e.g. 'heavy'; in training it held number"):
        trained.predict(FRAME[INPUTS].assign(weight="heavy"))
    with pytest.raises(
        UsageError, match=r"trained on a table with the columns 'weight'.*; received ndarray. Give a frame"
    ):
        trained.predict(np.zeros((3, 5), np.float32))
    with pytest.raises(
        InputError, match=r"the label 'cow' in row 0 was not among the classes .* 'cat', 'dog', 'horse'"
    ):
        trained.evaluate(FRAME[INPUTS], ["cow"] * ROWS, loss="cross_entropy")
    with pytest.raises(InputError, match=r"'weight' holds inf in row 0; .* frame\.replace"):
        trained.predict(FRAME[INPUTS].assign(weight=np.inf))


def fit(data: object, **options: object) -> None:
    model = options.pop("model", None) or ws.models.Tabular()
    ws.fit(model, data, **{"loss": "cross_entropy", "progress": False, "device": NUMPY, **options})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fit((FRAME, "animl")), UnknownNameError, "no column 'animl'; it has: 'weight'"),
        (
            lambda: fit((np.zeros((4, 2)), [0, 1, 0, 1])),
            UsageError,
            r"Tabular needs the columns of a frame; data is tuple",
        ),
        (
            lambda: fit((FRAME, "animal"), validation=(np.zeros((2, 2)), [0, 1])),
            UsageError,
            r"so validation is one too",
        ),
        (lambda: fit((FRAME, "home")), InputError, "the target has no value in .* rows, the first of them row"),
        (
            lambda: fit((FRAME, "animal"), loss="bce"),
            InputError,
            "is for binary targets, and the target has 3 values: 'cat'",
        ),
        (lambda: fit((FRAME.assign(animal="cat"), "animal")), InputError, "the target is 'cat' in every row"),
        (lambda: fit((FRAME, "born"), loss="mse"), InputError, "the target is a date; predict a number"),
        (
            lambda: fit((FRAME.assign(new=None), "animal")),
            InputError,
            r"'new' has no value in any row; .*ignore=\['new'\]",
        ),
        (lambda: ws.data.Encoder(ignore="tag"), OptionError, r"received 'tag'\. Write ignore=\['tag'\]"),
        (
            lambda: fit((FRAME, "animal"), encoder=ws.data.Encoder(text=["x"])),
            UnknownNameError,
            "no column 'x' to encode",
        ),
        (lambda: fit((FRAME, "animal"), encoder=ws.data.Encoder(text=["tag"])), InputError, "has numbers, not text"),
        (lambda: ws.models.Tabular().predict(FRAME), UsageError, "Tabular has no layers yet: .* ws.fit"),
        (lambda: ws.models.Tabular(hidden=(0,)), OptionError, "hidden must be an integer of at least 1; received 0"),
    ],
)
def test_mistakes_before_training(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# -- the command line ----------------------------------------------------------------------------------------------

SCRIPT = """
from typer.testing import CliRunner

import wholestep as ws
from wholestep.cli import app

def build():
    table = (ws.data.read_frame("animals.csv"), "animal")
    return ws.Experiment(model=ws.models.Tabular(hidden=(4,)), data=table, test=table, loss="cross_entropy",
                         metrics=["accuracy"], device="reference")
"""


def test_a_table_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("animals.py").write_text(SCRIPT)
    FRAME[["weight", "home", "animal"]].to_csv("animals.csv", index=False)
    run = CliRunner().invoke
    assert run(app, ["train", "animals.py", "--folder", "runs/animals"]).exit_code == 0
    found = run(app, ["evaluate", "runs/animals"])
    assert f"on {ROWS} rows of test data" in found.output
    found = run(app, ["predict", "runs/animals", "animals.csv", "-o", "scores.npy"])
    assert found.exit_code == 0, found.output
    assert np.load("scores.npy").shape == (ROWS, 3)


PLAIN = """
import numpy as np
import wholestep as ws

def build():
    x = np.random.default_rng(0).standard_normal((16, 3)).astype("f4")
    return ws.Experiment(model=ws.nn.Linear(3, 2), data=(x, np.arange(16, dtype="i4") % 2), loss="cross_entropy",
                         device="reference")
"""


def test_numbers_without_a_header_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text(PLAIN)
    run = CliRunner().invoke
    assert run(app, ["train", "plain.py", "--folder", "run"]).exit_code == 0
    np.savetxt("equal.csv", np.zeros((4, 3)), delimiter=",")
    np.savetxt("differ.csv", np.arange(12.0).reshape(4, 3) + 0.5, delimiter=",")
    for arguments in (["equal.csv"], ["differ.csv", "--no-header"]):
        found = run(app, ["predict", "run", *arguments, "-o", "scores.npy"])
        assert found.exit_code == 0, found.output
        assert np.load("scores.npy").shape == (4, 2)
    found = run(app, ["predict", "run", "differ.csv"])
    assert found.exit_code == 1
    assert "--no-header" in found.output
    assert run(app, ["predict", "run", "differ.csv", "--header", "-o", "scores.npy"]).exit_code == 0
    assert np.load("scores.npy").shape == (3, 2)


def test_warnings_of_the_command_are_one_line(tmp_path: Path) -> None:
    """An identifier is warned of at no line of the script, which reads the table in build() and is not running then."""
    (tmp_path / "animals.py").write_text(SCRIPT)
    FRAME[["weight", "home", "animal"]].assign(id=np.arange(ROWS)).to_csv(tmp_path / "animals.csv", index=False)
    command = [sys.executable, "-m", "wholestep.cli", "train", "animals.py", "--no-progress"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    warned = [line for line in found.stderr.splitlines() if "warning" in line.lower()]
    assert len(warned) == 1
    assert warned[0].startswith("warning: the column 'id' has a different value in every row")
    assert warned[0].endswith("name it in Encoder(numbers=...).")
