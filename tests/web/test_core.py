"""The page's readers and encoders, run in Node, against Python's."""

from __future__ import annotations

import base64
import csv
import io
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

import wholestep as ws
from tests.web.node import needs_node, packed, run, unpacked
from wholestep.data.files import read_frame
from wholestep.errors import WholestepError

pytestmark = needs_node

FILES = {
    "plain": "a,b\n1,x\n2,y\n",
    "quotes": 'a,b\n"1","say ""hi"", now"\n2,"two\nlines"\n',
    "quote inside": 'a,b\n1,5" wide\n2,x"y"z\n',
    "text after a quote": 'a,b\n1,"x"yz\n2,""\n',
    "line ends": "a,b\r\n1,2\r3,4\r\n\r\n5,6",
    "empty cells": "a,b,c\n,,\n1,,x\n",
    "trailing delimiter": "a,b\n1,\n2,",
    "one column": "a\n1\n\n2\n",
    "missing values": "a,b\nNA,x\nn/a,?\n3,-\nnull,NONE\n",
    "booleans": "a,b\nTrue,1\nFALSE,0\n,1\n",
    "integers": "a,b\n+1,007\n-2,9\n",
    "large": "a,b\n9223372036854775807,1\n9223372036854775808,2\n",
    "numbers": "a,b,c\n1e3,.5,inf\n-2.5E-2,5.,-Infinity\n",
    "not numbers": "a,b,c\n1_000,0x1f,1e\n2,3,4\n",
    "dates": "a,b\n2024-02-29,2024-03-31 10:20\n1969-12-31,2024-03-31T10:20:30.25\n",
    "no dates": "a,b\n2023-02-29,2024-3-1\n2023-01-01,2024-01-01\n",
    "names that are numbers": "0,1,2\n5,6,7\n",
    "no header": "1,1,2\n5,6,7\n",
    "spaces": " a , b \n 1 , x \n 2 ,\ty\n",
    "mixed": "a\n1\nx\n2.5\n",
    "all missing": "a,b\n,1\nNaN,2\n",
    "umlauts": "größe,Stadt\n1.5,Köln\n2,Tōkyō\n",
    "byte order mark": "\ufeffa,b\n1,2\n",
    "ragged": "a,b\n1,2\n3\n",
    "no rows": "a,b\n",
    "empty": "",
    "ambiguous": "5.1,3.5,1.4\n4.9,3.0,1.3\n",
    "twice": "a,b,a\n1,2,3\n",
}


def _python_frame(path: Path) -> dict:
    frame = read_frame(path)
    out = {}
    for name, column in frame.columns.items():
        dtype, values = column.type_name, column.values
        if dtype == "date":
            shown: list = values.astype(np.int64).tolist()
        elif dtype in ("int64", "float64"):
            shown = [float(v) for v in values.tolist()]
        else:
            shown = [str(v).lower() if dtype == "bool" else v for v in values.tolist()]
        out[name] = {"dtype": dtype, "missing": column.missing.tolist(), "values": shown}
    return out


def _as_python(frame: dict) -> dict:
    """JavaScript writes infinity in full, and every number without a type."""
    for column in frame.values():
        if column["dtype"] in ("int64", "float64"):
            column["values"] = [float(v) for v in column["values"]]
    return frame


def test_csv_files_become_the_same_tables_and_errors(tmp_path):
    results = run(*(("frame", packed(text)) for text in FILES.values()))
    path = tmp_path / "table.csv"
    for (name, text), result in zip(FILES.items(), results, strict=True):
        path.write_text(text, encoding="utf-8", newline="")
        try:
            expected: object = _python_frame(path)
        except WholestepError as error:
            ours = str(error).replace(str(path), "table.csv")
            assert result["error"].split(":")[0] == ours.split(":")[0], name
            if "header=" not in ours:  # advice that is Python code reads otherwise on a page
                assert result["error"] == ours, name
        else:
            assert _as_python(result["value"]) == expected, name


def test_rows_are_those_of_the_csv_module():
    alphabet = 'ab1",;\n\r \t'
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(list(alphabet), rng.integers(1, 30))) for _ in range(400)]
    results = run(*(("rows", text, ",") for text in texts))
    for text, result in zip(texts, results, strict=True):
        expected = [[n, row] for n, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1) if row]
        assert result["value"] == expected, repr(text)


def test_bytes_that_are_not_utf8_are_refused():
    (result,) = run(("frame", packed(b"a,b\n\xff\xfe,1\n")))
    assert "is not text in UTF-8" in result["error"]
    assert "Save it as UTF-8" in result["error"]


TABLE = """age,city,joined,note,answer,seen,label
31,Rome,2020-02-29,good quick brown fox,true,2024-03-31 10:20:30,yes
,Oslo,2021-07-01,the quick dog,false,2024-01-01 00:00,no
52.5,Rome,1999-12-31,good dog and brown dog,,2023-06-30 23:59:59.5,yes
47,,2010-01-01,,true,2022-02-02 02:02,no
18,Köln,,lazy fox naïve Ω3,false,2021-12-24 18:00,yes
64,Oslo,2001-09-09,quick Ω3,true,2020-10-10 12:30,no
"""
NEW = """city,age,note,joined,seen,answer,label
Paris,33,quick unknown NAÏVE,2030-05-05,1970-01-01 06:00,true,no
NA,,,NA,NA,NA,yes
Oslo,1e2,fox,1969-01-02,2000-02-29 00:00:01,false,yes
"""


def _encoding(tmp_path: Path, **options: object):
    path = tmp_path / "training.csv"
    path.write_text(TABLE)
    encoder = ws.data.Encoder(text=["note"], **options)
    return encoder.fit((read_frame(path), "label"), "classes")


@pytest.mark.parametrize("options", [{}, {"standardize": False}, {"categories": ["age", "answer"]}])
def test_tables_are_encoded_as_in_python(tmp_path, options):
    encoding = _encoding(tmp_path, **options)
    path = tmp_path / "new.csv"
    for text in (TABLE, NEW):
        path.write_text(text)
        frame = read_frame(path)
        result, target = run(
            ("encode", encoding.to_json(), packed(text)), ("target", encoding.to_json(), packed(text), "label")
        )
        expected = encoding.encode(frame)
        assert result["value"].keys() == expected.keys()
        for name, array in expected.items():
            ours = unpacked(result["value"][name])
            assert ours.dtype == array.dtype
            np.testing.assert_array_max_ulp(ours, array, 1) if name == "x" else np.testing.assert_array_equal(
                ours, array
            )
        np.testing.assert_array_equal(unpacked(target["value"]), encoding.target.encode(frame["label"]))


def test_dates_in_other_notations(tmp_path):
    text = "when,y\n31/03/2024,1\n01.04.2024,2\n5-6-1999,3\n"
    path = tmp_path / "t.csv"
    path.write_text(text)
    encoding = ws.data.Encoder(dates=["when"]).fit((read_frame(path), "y"))
    (result,) = run(("encode", encoding.to_json(), packed(text)))
    np.testing.assert_array_max_ulp(unpacked(result["value"]["x"]), encoding.encode(read_frame(path))["x"], 1)


WRONG = {
    "a column is missing": NEW.replace("age", "years"),
    "another type": NEW.replace("33", "old"),
    "infinity": NEW.replace("33", "inf"),
    "a date": NEW.replace("2030-05-05", "5th of May"),
    "an unknown label": NEW.replace("true,no", "true,maybe"),
    "a missing label": NEW.replace("true,no", "true,NA"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables_have_the_errors_of_python(tmp_path, name):
    encoding = _encoding(tmp_path)
    path = tmp_path / "table.csv"
    path.write_text(WRONG[name])
    encode, target = run(
        ("encode", encoding.to_json(), packed(WRONG[name])),
        ("target", encoding.to_json(), packed(WRONG[name]), "label"),
    )
    with pytest.raises(WholestepError) as error:
        encoding.table((read_frame(path), "label"))
    ours = encode.get("error") or target["error"]
    first = str(error.value).split(". ")[0].split("; replace")[0]
    assert ours.startswith(first), ours
    assert len(ours) > len(first) + 10, "the advice"


def test_npy_files_of_every_dtype():
    rng = np.random.default_rng(0)
    arrays = []
    for dtype in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", ">f4", ">i2"):
        plain = (rng.normal(size=(3, 4)) * 50).clip(0).astype(dtype)
        arrays += [plain, np.asfortranarray(plain), plain[:0], plain[0], np.array(plain[0, 0])]
    files = []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array)
        files.append(file.getvalue())
    again = run(*(("npy_again", packed(f)) for f in files))
    for array, result in zip(arrays, again, strict=True):
        back = np.load(io.BytesIO(base64.b64decode(result["value"])))
        assert back.shape == array.shape
        np.testing.assert_array_equal(back.astype(np.float64), array.astype(np.float64))


def test_damaged_npy_files_are_refused():
    file = io.BytesIO()
    np.save(file, np.arange(6.0))
    whole = file.getvalue()
    objects, several = io.BytesIO(), io.BytesIO()
    np.save(objects, np.array(["a", "b"]))
    np.savez(several, a=np.arange(3))
    cases = [whole[:-3], whole[:9], b"", b"hello world, hello", objects.getvalue(), several.getvalue()]
    for result in run(*(("npy", packed(c)) for c in cases)):
        assert "is not a" in result["error"]
        assert "make one with np.save" in result["error"]


def test_safetensors_there_and_back():
    rng = np.random.default_rng(1)
    arrays = {
        "0.weight": rng.normal(size=(3, 2)).astype(np.float32),
        "session/step": np.array(7, np.int64),
        "flags": np.array([True, False, True]),
        "nothing": np.zeros((0, 4)),
        "bytes": np.arange(5, dtype=np.uint8),
    }
    file = save(arrays, {"format": "pt", "note": 'naïve "text"'})
    (result,) = run(("safetensors", packed(file)))
    written = base64.b64decode(result["value"])
    back = load(written)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
    (once_more,) = run(("safetensors", packed(written)))
    assert once_more == result
    for result in run(*(("safetensors", packed(c)) for c in (file[:-1], file[:20], b"", b"\xff" * 40))):
        assert "is not a complete safetensors file" in result["error"]
        assert "Take another copy" in result["error"]


def test_held_out_rows_are_those_of_python():
    cases = [(n, f, s) for n in (2, 3, 10, 1797, 5000) for f in (0.2, 0.5) for s in (0, 1, 12345, 2**40 + 3)]
    for (n, fraction, seed), result in zip(cases, run(*(("holdout", *c) for c in cases)), strict=True):
        if "error" in result:
            with pytest.raises(ws.errors.OptionError, match="leaves one part empty"):
                ws.data.split(np.arange(n), fraction, seed)
            continue
        train, held = ws.data.split(np.arange(n), fraction, seed)
        assert result["value"] == [train.inputs["x"].tolist(), held.inputs["x"].tolist()]
    (order,) = run(("permutation", 2**130 + 5, 100))
    assert order["value"] == np.random.default_rng(int(float(2**130))).permutation(100).tolist()


def test_measures_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(2)
    y, p = rng.integers(0, 4, 200), rng.integers(0, 4, 200)
    a, b = rng.normal(size=50), rng.normal(size=50)
    counts, errors = run(("confusion", y.tolist(), p.tolist(), 4), ("errors", a.tolist(), b.tolist()))
    assert counts["value"] == metrics.confusion_matrix(y, p).tolist()
    expected = {f: getattr(metrics, g)(a, b) for f, g in
                (("mse", "mean_squared_error"), ("mae", "mean_absolute_error"), ("r2", "r2_score"))}  # fmt: skip
    assert errors["value"] == pytest.approx(expected)
