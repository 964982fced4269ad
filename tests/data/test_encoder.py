"""What an encoder makes of each column: dates in every notation, identifiers, the report, what `fit` takes."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import wholestep as ws
from wholestep.data.tables.column_encodings import (
    DAY_FIRST,
    ISO,
    MONTH_FIRST,
    NOTATIONS,
    parse_dates,
    possible_notations,
)
from wholestep.errors import CheckpointError, InputError, OptionError, TrainingWarning, UsageError

ROWS = 60
DAYS = [dt.date(1912, 1, 1) + dt.timedelta(days=17 * i % 366) for i in range(ROWS)]
WRITTEN = {ISO: "%Y-%m-%d", DAY_FIRST: "%d/%m/%Y", MONTH_FIRST: "%m/%d/%Y"}


def passengers() -> pd.DataFrame:
    """A table as people have it: an identifier, missing values, text, dates with the day first."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "PassengerId": np.arange(1, ROWS + 1),
            "Sex": rng.choice(["female", "male"], ROWS),
            "Age": np.where(np.arange(ROWS) % 5 == 0, np.nan, rng.integers(1, 80, ROWS)),
            "Boarded": [day.strftime("%d/%m/%Y") for day in DAYS],
            "Name": [f"Mr. {i} Smith" for i in range(ROWS)],
            "Survived": rng.integers(0, 2, ROWS),
        }
    )


def fitted(frame: object, **options: object) -> ws.models.Tabular:
    model = ws.models.Tabular(hidden=(4,))
    ws.fit(model, (frame, "Survived"), loss="cross_entropy", progress=False, device="reference", **options)  # type: ignore[arg-type]
    return model


def test_a_model_says_what_became_of_each_column(tmp_path: Path) -> None:
    encoder = ws.data.Encoder(ignore=["PassengerId"])
    assert ws.models.Tabular().encoder is None
    model = fitted(passengers(), encoder=encoder)
    lines = {line.split()[0]: line for line in str(model.encoder).splitlines()}
    assert lines["column"].split() == ["column", "holds", "missing", "encoded", "as", "remark"]
    for name, *words in (
        ("PassengerId", "int64", "not used"),
        ("Sex", "text", "category, 2 values, embedded"),
        ("Age", "float64", " 12 ", "number, (x - ", ", 1 where missing"),
        ("Boarded", "text", "date (day/month/year): seconds, year, week"),
        ("Name", "text", "words, vocabulary of 2, first 3 of a text"),
        ("(target)", "2 classes: 0, 1"),
    ):
        assert all(word in lines[name] for word in words), lines[name]
    model.save(tmp_path / "model.safetensors")
    again = ws.models.Tabular(hidden=(4,))
    again.load(tmp_path / "model.safetensors")
    assert str(again.encoder) == str(model.encoder)


def test_files_of_before_have_no_summary_and_load() -> None:
    found = ws.data.Encoder(ignore=["PassengerId"]).fit(passengers())
    stored = json.loads(found.to_json())
    del stored["summary"]
    for column in stored["dates"]:
        del column["notation"]
    read = ws.data.Encoding.from_json(json.dumps(stored), "it")
    assert read.dates[0].notation == ISO
    assert "category, 2 values" in str(read)
    for damage in ({"summary": [{"name": 3, "holds": "x", "missing": 0, "remark": ""}]}, {"summary": 7}):
        with pytest.raises(CheckpointError, match="an encoder that cannot be read"):
            ws.data.Encoding.from_json(json.dumps(stored | damage), "it")
    stored["dates"][0]["notation"] = "%d"
    with pytest.raises(CheckpointError, match="dates written as '%d'"):
        ws.data.Encoding.from_json(json.dumps(stored), "it")


@pytest.mark.parametrize("notation", NOTATIONS)
@pytest.mark.parametrize("time", ["", " %H:%M", "T%H:%M:%S"])
@pytest.mark.parametrize("separator", "-/.")
def test_dates_in_every_notation_are_the_dates(notation: str, time: str, separator: str) -> None:
    days = [dt.datetime(1912, 4, 3) + dt.timedelta(days=11 * i, minutes=13 * i) for i in range(40)]
    form = WRITTEN[notation].replace("-", separator).replace("/", separator) + time
    cells = [day.strftime(form) for day in days]
    assert possible_notations(cells) == [notation]
    expected = [dt.datetime.strptime(cell, form) for cell in cells]
    found = parse_dates(cells, notation)
    assert found is not None
    assert found.tolist() == expected
    as_text = ws.data.Encoder().fit({"day": cells}).encode(ws.data.as_frame({"day": cells}))
    dates = {"day": np.array(expected, "M8[us]")}
    as_dates = ws.data.Encoder().fit(dates).encode(ws.data.as_frame(dates))
    np.testing.assert_array_equal(as_text["x"], as_dates["x"])


@pytest.mark.parametrize(
    "cells",
    [
        ["13/13/1912"], ["31/04/1912"], ["1912-02-30"], ["13/03/12"], ["13/03-1912x"], ["a"], ["1.2.3"],
        ["13/03/1912 25:00"], ["13/03/1912", "03/13/1912"],
    ],
)  # fmt: skip
def test_what_is_no_date(cells: list[str]) -> None:
    assert possible_notations(cells) == []


def test_day_first_dates_predict_alike_in_text_and_as_dates(tmp_path: Path) -> None:
    frame = passengers()
    model = fitted(frame, encoder=ws.data.Encoder(ignore=["PassengerId"]))
    ambiguous = frame.assign(Boarded="03/04/1912")  # the rows to predict do not say which is the day: training did
    expected = model.predict(frame.assign(Boarded=pd.Timestamp("1912-04-03")), device="reference")
    np.testing.assert_array_equal(model.predict(ambiguous, device="reference"), expected)
    ambiguous.to_csv(tmp_path / "x.csv", index=False)
    np.testing.assert_array_equal(model.predict(ws.data.read_frame(tmp_path / "x.csv"), device="reference"), expected)
    with pytest.raises(
        InputError, match=r"'Boarded' holds '04/13/1912' in row 0; expected .* day/month/year, e\.g\. '31"
    ):
        model.predict(frame.assign(Boarded="04/13/1912"), device="reference")


def test_dates_that_can_be_read_both_ways() -> None:
    frame = pd.DataFrame({"day": [f"{1 + i % 12:02}/{1 + i % 11:02}/1912" for i in range(ROWS)]})
    with pytest.warns(TrainingWarning, match=r"'day' has dates that can be read .*Encoder\(dayfirst=True\)"):
        found = ws.data.Encoder().fit(frame)
    assert not found.dates
    assert "day or month first?" in str(found)
    first, second = (ws.data.Encoder(dayfirst=first).fit(frame).dates[0] for first in (True, False))
    assert (first.notation, second.notation) == (DAY_FIRST, MONTH_FIRST)
    with pytest.raises(InputError, match=r"can be read with the day first or the month first; say which"):
        ws.data.Encoder(dates=["day"]).fit(frame)
    with pytest.raises(InputError, match=r"'day' holds 'x' in row 1; expected a date written as year-month-day"):
        ws.data.Encoder(dates=["day"]).fit({"day": ["1912-04-10", "x"]})
    with pytest.raises(InputError, match=r"dates='day' has numbers, e\.g\. 3; convert it, .*pd\.to_datetime"):
        ws.data.Encoder(dates=["day"]).fit({"day": [3, 4]})


IDENTIFIERS: dict[str, tuple[bool, object]] = {
    "Row": (True, np.arange(ROWS)),
    "Shuffled": (True, np.random.default_rng(0).permutation(ROWS) + 1000),
    "Half": (True, np.arange(0, 2 * ROWS, 2)),
    "customer_id": (True, np.arange(ROWS) ** 3),
    "CustomerId": (True, np.arange(ROWS) ** 3),
    "code": (True, [f"X-{i}" for i in range(ROWS)]),
    "cube": (False, np.arange(ROWS) ** 3),
    "float": (False, np.arange(ROWS) * 1.0),
    "twice": (False, np.arange(ROWS) // 2),
    "name": (False, [f"Mr. {i}" for i in range(ROWS)]),
    "gap": (False, [None, *map(str, range(1, ROWS))]),
    "paid": (False, np.arange(ROWS) * 7919 % 10007),
    "day": (False, [day.strftime("%d/%m/%Y") for day in DAYS]),
}


@pytest.mark.parametrize("name", IDENTIFIERS)
def test_identifiers_are_flagged_and_quantities_are_not(name: str) -> None:
    flagged, values = IDENTIFIERS[name]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = ws.data.Encoder().fit({name: values, "x": np.arange(ROWS) % 7})
    assert len(seen) == flagged
    assert ("identifier?" in str(found)) == flagged
    if flagged:
        assert rf"Encoder(ignore=['{name}'])" in str(seen[0].message)
        assert seen[0].filename == __file__


def test_identifiers_are_warned_of_once_and_can_be_named() -> None:
    frame = passengers()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):  # as in a cross-validation
            fitted(frame, validation=0.2)
        options = {"loss": "cross_entropy", "epochs": 1, "progress": False, "device": "reference"}
        ws.cross_validate(ws.models.Tabular(hidden=(4,)), (frame, "Survived"), folds=3, **options)
    assert [str(w.message).partition(" has ")[0] for w in seen] == ["the column 'PassengerId'"] * 2  # once per line
    for options in ({"ignore": ["PassengerId"]}, {"numbers": ["PassengerId"]}, {"categories": ["PassengerId"]}):
        assert "identifier" not in str(ws.data.Encoder(**options).fit(frame))  # and no warning, which would be an error


def test_fit_takes_what_users_have() -> None:
    frame = passengers().drop(columns="PassengerId")
    columns = {name: [None if pd.isna(v) else v for v in frame[name].tolist()] for name in frame}
    expected = ws.data.Encoder().fit(frame)
    for data in (pl.DataFrame(columns), columns, ws.data.as_frame(frame)):
        assert ws.data.Encoder().fit(data).parts == expected.parts
    with_target = ws.data.Encoder().fit((columns, "Survived"), "classes")
    assert with_target.classes == (0, 1)
    assert "Survived" not in with_target.names
    with pytest.raises(UsageError, match=r"an encoder takes a DataFrame, a dict of columns, .*; received ndarray"):
        ws.data.Encoder().fit(np.zeros((3, 2)))
    for data in (frame, pl.DataFrame(columns), columns):
        np.testing.assert_array_equal(expected.encode(data)["x"], expected.encode(ws.data.as_frame(frame))["x"])
        table = with_target.table((data, "Survived"))
        np.testing.assert_array_equal(table.targets["labels"], frame["Survived"])


def test_a_dict_of_columns_trains_a_tabular_model() -> None:
    frame = passengers().drop(columns="PassengerId")
    columns, labels = (
        {name: frame[name].to_numpy() for name in frame if name != "Survived"},
        frame["Survived"].to_numpy(),
    )
    model, same = ws.models.Tabular(hidden=(4,)), fitted(frame)
    options = {"loss": "cross_entropy", "progress": False, "device": "reference"}
    ws.fit(model, (columns, labels), validation=(columns, labels), **options)
    assert str(model.encoder) == str(same.encoder)
    found = model.evaluate((columns, labels), loss="cross_entropy", device="reference")
    assert found == model.evaluate((frame, "Survived"), loss="cross_entropy", device="reference")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ws.data.Encoder(datse=["x"]), UsageError, r"Encoder has no argument 'datse'\. Did you mean dates=\?"),
        (lambda: ws.data.Encoder(dates="x"), OptionError, r"Write dates=\['x'\]"),
        (lambda: ws.data.Encoder(dayfirst="yes"), OptionError, "dayfirst must be True, False or None; received 'yes'"),
        (lambda: ws.data.Encoder(text=["a"], ignore=["a"]), OptionError, "'a' is in text and ignore; name it in one"),
        (lambda: ws.data.Encoder(numbers=["a"]).fit({"a": ["x"]}), InputError, "numbers='a' has texts, not number"),
        (
            lambda: ws.data.Encoder(categories=["a"]).fit({"a": np.array(["2024-01-01"], "M8[us]")}),
            InputError,
            "categories='a' has dates, which are not categories; convert it",
        ),
        (lambda: ws.data.read_frame("x.csv", encodng="x"), UsageError, "read_frame has no argument 'encodng'"),
        (lambda: ws.data.read_csv("x.csv", usecols=["x"]), UsageError, r"read_frame\(path\)\.without\('column'\)"),
        (lambda: ws.data.read_csv("x.csv", skiprows=1), UsageError, "read_csv has no argument 'skiprows'"),
        (lambda: ws.data.read_frame("x.csv", parse_dates=["x"]), UsageError, r"ws\.data\.Encoder\(dates="),
    ],
)
def test_mistakes(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_frame_prints_types_and_its_first_rows() -> None:
    frame = ws.data.as_frame(passengers().assign(long="x" * 50, day=pd.Timestamp("1912-04-10")))
    lines = str(frame).splitlines()
    assert lines[0] == f"{ROWS} rows, 8 columns"
    assert lines[1].split() == ["PassengerId", "Sex", "Age", "Boarded", "Name", "Survived", "long", "day"]
    assert lines[2].split() == ["type", "int64", "text", "float64", "text", "text", "int64", "text", "date"]
    assert lines[3].split() == ["missing", "0", "0", "12", *"00000"]
    assert lines[4].split()[:2] == ["0", "1"]
    assert " - " in lines[4]  # the missing age
    assert lines[4].endswith("1912-04-10")
    assert lines[-1] == f"… {ROWS - 5} more rows"
    assert len(lines) == 10
    wide = ws.data.as_frame({str(i): [1.5] for i in range(30)})
    assert str(wide).endswith("… 20 more columns")
