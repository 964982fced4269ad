"""Frames of pandas, Polars and Arrow, files of text, and the ways to hold rows out."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import GroupKFold, StratifiedKFold

import wholestep as ws
from wholestep.data.tables.column import Column
from wholestep.data.tables.frame import as_column, is_frame, is_series
from wholestep.errors import InputError, OptionError, ShapeError, UnknownNameError, UsageError

LONG = "a text of more than twelve bytes, é"
VALUES = {
    "whole": [1, None, 3, 4],
    "real": [0.5, 1.5, float("nan"), -2.0],
    "answer": [True, False, True, True],
    "word": ["x", LONG, None, "y"],
    "day": [dt.date(2024, 2, 29), None, dt.date(1969, 12, 31), dt.date(2000, 1, 1)],
    "moment": [dt.datetime(2024, 2, 29, 23, 59, 30), dt.datetime(1970, 1, 1), None, dt.datetime(2000, 1, 1, 6)],
}
DTYPES = {"whole": "Int64", "word": "string", "answer": "boolean"}


def told(column: Column) -> list[object]:
    return [None if gap else value for value, gap in zip(column.values.tolist(), column.missing.tolist(), strict=True)]


EXPECTED = {
    **VALUES,
    "real": [0.5, 1.5, None, -2.0],
    "day": [v and dt.datetime(v.year, v.month, v.day) for v in VALUES["day"]],  # type: ignore[attr-defined]
}


@pytest.mark.parametrize(
    "frame",
    [
        VALUES,
        pd.DataFrame(VALUES),
        pd.DataFrame(VALUES).astype(DTYPES),
        pl.DataFrame(VALUES),
        pl.concat([pl.DataFrame(VALUES)[:1], pl.DataFrame(VALUES)[1:]], rechunk=False),
        pl.DataFrame({name: [None, *values, None] for name, values in VALUES.items()})[
            1:5
        ],  # begins inside its buffers
    ],
    ids=["dict", "pandas", "pandas' own types", "polars", "polars in chunks", "a slice of polars"],
)
def test_every_frame_has_the_same_columns(frame: object) -> None:
    found = ws.data.as_frame(frame)
    assert {name: told(found[name]) for name in found} == EXPECTED
    assert [found[n].kind for n in found] == ["number", "number", "number", "text", "date", "date"]


def test_categories_and_series() -> None:
    names = ["b", "a", None, "b"]
    for series in (pd.Series(names, dtype="category"), pl.Series(names, dtype=pl.Categorical)):
        column = as_column(series, "names")
        assert (told(column), column.categorical) == (names, True)
        assert is_series(series)
        assert not is_frame(series)
    assert told(as_column(pl.Series([[1.5, 2.5]]).explode(), "x")) == [1.5, 2.5]
    assert told(as_column(pd.Series(pd.date_range("2024", periods=2, tz="Europe/Rome")), "t"))[0] == dt.datetime(
        2023, 12, 31, 23
    )
    assert not is_frame(np.zeros((2, 2)))


def test_other_arrow_types_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"the column 'pairs' is of the Arrow type '\+.*Cast it, or leave it out"):
        ws.data.as_frame(pl.DataFrame({"pairs": [[1, 2], [3, 4]]}))


@pytest.mark.parametrize("bits", [7, 8, 9, 17])
def test_gaps_and_answers_at_every_bit(bits: int) -> None:
    rng = np.random.default_rng(bits)
    values = [None if u < 0.3 else bool(u < 0.6) for u in rng.random(64)]
    for start in range(9):
        frame = pl.DataFrame({"a": values})[start : start + bits]
        assert told(ws.data.as_frame(frame)["a"]) == values[start : start + bits]


def test_a_frame_reads_text(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(
        "n, x,word,day,ok,all\n1,0.5,red,2024-02-29,true,\n,NA,,2024-03-01,False,\n3,1e3, blue ,null,true,?\n"
    )
    frame = ws.data.read_frame(file)
    assert {name: told(frame[name]) for name in frame} == {
        "n": [1, None, 3],
        "x": [0.5, None, 1000.0],
        "word": ["red", None, "blue"],
        "day": [dt.datetime(2024, 2, 29), dt.datetime(2024, 3, 1), None],
        "ok": [True, False, True],
        "all": [None, None, None],
    }
    file.write_text("1;2024-02-31\n2;2024-01-01\n")
    frame = ws.data.read_frame(file, header=False, delimiter=";")
    assert [frame[name].kind for name in frame] == ["number", "text"]  # there is no 31st of February
    for text, message in (
        ("a,a\n1,2\n", "two columns called 'a'; rename one"),
        ("a,b\n1\n", "line 2: 1 values; expected 2"),
        ("a,b\n", "has no rows of data"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            ws.data.read_frame(file)


# -- mistakes ------------------------------------------------------------------------------------------------------

FRAME = pd.DataFrame({"age": [30.0, 40.0, np.nan], "city": ["Rome", "Oslo", "Rome"], "y": [0, 1, 0]})


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((FRAME, "why"), UnknownNameError, "no column 'why'; it has: 'age', 'city', 'y'"),
        ((FRAME, "y"), InputError, r"'age' of the table has no value in row 2\. Train ws\.models\.Tabular"),
        ((FRAME[["city", "y"]], "y"), TypeError, "'city' of the table holds text, .* encoder=ws.data.Encoder"),
        ((FRAME[["y"]], "city"), UnknownNameError, "no column 'city'"),
        ((FRAME[["y"]], FRAME["city"]), UsageError, "the labels are text, e.g. 'Rome', .* encoder=ws.data.Encoder"),
        ((FRAME[["y"]], FRAME["age"]), InputError, r"no value in 1 rows, the first of them row 2\. Leave them out"),
        ((FRAME[["y"]], "y"), InputError, "no column besides 'y'; there is nothing to learn from"),
        ((FRAME[["y"]], FRAME["y"][:2]), ShapeError, "one target per row; received {'inputs': 3, 'targets': 2} rows"),
        ((FRAME[["y"]], FRAME["y"], "city"), UnknownNameError, "no column 'city'"),
        ((FRAME[["y"]], FRAME["y"], FRAME["city"]), InputError, "sample_weight must have a number for each row"),
        ((FRAME[:0], "y"), InputError, "the table is empty: 3 columns, 0 rows"),
    ],
)
def test_what_is_wrong_with_a_frame_is_said(data: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ws.data.as_table(data)


def test_columns_of_objects() -> None:
    with pytest.raises(InputError, match=r"'a' holds dict {} in row 1, besides str; .* frame\['a'\]\.astype\(str\)"):
        ws.data.as_frame(pd.DataFrame({"a": ["x", {}]}))
    with pytest.raises(InputError, match="'a' holds int 3 in row 1, besides str"):
        ws.data.as_frame({"a": ["x", 3]})
    with pytest.raises(ShapeError, match="the columns of a table have one length"):
        ws.data.as_frame({"a": [1], "b": [1, 2]})
    with pytest.raises(InputError, match="two columns called 'a'"):
        ws.data.as_frame(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_arrays_of_objects_say_what_to_give() -> None:
    with pytest.raises(UsageError, match=r"'x' is not an array of numbers; .* to ws\.models\.Tabular"):
        ws.data.as_table((np.array([["a", 1]], object), [1]))
    with pytest.raises(
        UsageError, match=r"(?s)'labels' is not an array of numbers; .* np\.unique\(y, return_inverse=True\)"
    ):
        ws.data.as_table((X, pd.Series(["a", "b"] * 20)))


# -- holding rows out ----------------------------------------------------------------------------------------------

X, Y = np.arange(40, dtype=np.float32)[:, None], np.repeat([0, 1, 2], [20, 12, 8])
PATIENTS = np.repeat(np.arange(10), 4)


def rows_of(table: ws.data.Table) -> list[int]:
    return [int(v) for v in table.inputs["x"][:, 0]]


def test_splits() -> None:
    train, held = ws.data.split((X, Y), 0.25, stratify=True)
    assert np.bincount(held.targets["labels"]).tolist() == [5, 3, 2]
    assert sorted(rows_of(train) + rows_of(held)) == list(range(40))
    train, held = ws.data.split((X, Y), 0.3, groups=PATIENTS)
    assert not {PATIENTS[r] for r in rows_of(train)} & {PATIENTS[r] for r in rows_of(held)}
    assert len(rows_of(held)) == 12
    _, held = ws.data.split((X, Y), 0.1, shuffle=False)
    assert rows_of(held) == [36, 37, 38, 39]
    frame = pd.DataFrame({"v": X[:, 0], "who": PATIENTS, "y": np.where(Y == 0, "no", "yes")})
    _, framed = ws.data.split((frame, "y"), 0.3, groups="who")
    assert framed.inputs["v"].values.tolist() == rows_of(ws.data.split((X, Y), 0.3, groups=PATIENTS)[1])
    _, framed = ws.data.split((frame, "y"), 0.25, stratify=True)
    assert sorted(framed.target.values) == ["no"] * 5 + ["yes"] * 5


def test_folds() -> None:
    pairs = list(ws.data.folds((X, Y), 4, stratify=True))
    theirs = [np.bincount(Y[test]).tolist() for _, test in StratifiedKFold(4).split(X, Y)]
    assert [np.bincount(held.targets["labels"]).tolist() for _, held in pairs] == theirs
    assert sorted(row for _, held in pairs for row in rows_of(held)) == list(range(40))
    assert all(not set(rows_of(train)) & set(rows_of(held)) for train, held in pairs)
    pairs = list(ws.data.folds((X, Y), 5, groups=PATIENTS))
    theirs = [len(test) for _, test in GroupKFold(5).split(X, Y, PATIENTS)]
    assert [len(held) for _, held in pairs] == theirs
    ordered = list(ws.data.folds((X, Y), 3, shuffle=False))
    assert [(rows_of(t)[-1], rows_of(h)[0], rows_of(h)[-1]) for t, h in ordered] == [
        (9, 10, 19),
        (19, 20, 29),
        (29, 30, 39),
    ]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ws.data.split((X, Y), 1.5), OptionError, "the fraction must be between 0 and 1"),
        (lambda: ws.data.split((X, Y), 0.01), OptionError, "0.01 of 40 rows leaves one part empty"),
        (lambda: ws.data.split((X, Y), 0.2, stratify=True, groups=PATIENTS), UsageError, "give one of them"),
        (
            lambda: ws.data.split((X, Y), 0.2, shuffle=False, stratify=True),
            UsageError,
            "leave out stratify= and groups=",
        ),
        (lambda: ws.data.split(X, 0.2, stratify=True), UsageError, "give an array of classes"),
        (lambda: ws.data.split((X, Y), 0.2, groups="who"), UsageError, "names a column of a frame; the data is arrays"),
        (lambda: ws.data.split((X, Y), 0.2, groups=PATIENTS[1:]), InputError, "the data has 40 rows; received 39"),
        (lambda: ws.data.folds((X, Y), 11, groups=PATIENTS), InputError, "there are 10 groups for 11 parts"),
        (lambda: ws.data.folds((X, Y), 1), OptionError, "k must be an integer of at least 2; received 1"),
        (lambda: ws.data.folds((X, Y), 41), OptionError, "too few for 41 parts; choose a smaller k"),
    ],
)
def test_splits_that_cannot_be(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# -- files without a header ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "header", "names", "rows"),
    [
        ("0.0,0.0,1.5\n2,3,4\n", None, ["0", "1", "2"], 2),  # equal numbers cannot be names
        ("0,1,2\n5,6,7\n", None, ["0", "1", "2"], 1),  # what a DataFrame without names writes
        ("5.1,3.5,1.4\n4.9,3.0,1.4\n", False, ["0", "1", "2"], 2),
        ("2019,2020,2021\n1,2,3\n", True, ["2019", "2020", "2021"], 1),
        ("a,1,2\n1,2,3\n", None, ["a", "1", "2"], 1),
    ],
)
def test_a_header_is_recognised(text: str, header: bool | None, names: list[str], rows: int, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    frame = ws.data.read_frame(file, header=header)
    assert (list(frame), len(frame)) == (names, rows)
    if not any(name.isalpha() for name in names):
        x, _ = ws.data.read_csv(file, header=header, sep=",")
        assert x.shape == (rows, len(names))


@pytest.mark.parametrize("read", [ws.data.read_frame, ws.data.read_csv])
def test_numbers_that_may_be_a_header_are_asked_about(read, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("5.1,3.5,1.4,0.2,9\n4.9,3.0,1.4,0.2,8\n")
    with pytest.raises(
        InputError, match=r"first line is numbers, 5\.1, 3\.5, 1\.4, 0\.2, …: .*header=False .*--no-header"
    ):
        read(tmp_path / "t.csv")
