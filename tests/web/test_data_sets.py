"""Files that a user drops on a page as the inputs of a program: what is accepted, and what each error says."""

from __future__ import annotations

import io

import numpy as np

from tests.web.node import needs_node, packed, run, unpacked

pytestmark = needs_node


def description(x: list, labels: list, dtype: str = "int32", **more: object) -> dict:
    """What a page knows about a model of `x` and `labels`."""
    inputs = [
        {"name": "x", "dtype": "float32", "shape": ["batch", *x], "below": None},
        {"name": "labels", "dtype": dtype, "shape": ["batch", *labels], "below": more.get("below")},
    ]
    programs = {"train": {"inputs": ["x", "labels"]}, "predict": {"inputs": ["x"]}}
    return {"task": "classes", "classes": None, "encoding": None, "target": None, "image": None, **more} | {
        "manifest": {"inputs": inputs, "programs": programs}
    }


def npy(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return packed(file.getvalue())


FLOWERS = description([2], [], classes=["rose", "tulip"])
NUMBERS = description([2], [], "float32", task="numbers")
PIXELS = {"shape": [1, 2, 2], "low": 0.0, "high": 1.0}
IMAGES = description([4], [], classes=[0, 1, 2], image=PIXELS)
ANSWERS = description([2], [], "float32", task="answers", classes=["no", "yes"])


def test_a_table_of_numbers_and_a_column_of_labels():
    text = "a,b,kind\n1,2,tulip\n3,4,rose\n"
    (words, integers, numbers, alone) = run(
        ("dataset_of_csv", FLOWERS, packed(text)),
        ("dataset_of_csv", FLOWERS, packed("a,b,kind\n1,2,1\n3,4,0\n")),
        ("dataset_of_csv", NUMBERS, packed("a,b,y\n1,2,0.5\n3,4,7\n")),
        ("dataset_of_csv", FLOWERS, packed("a,b\n1,2\n")),
    )
    for result in (words, integers):
        assert unpacked(result["value"]["inputs"]["x"]).tolist() == [[1, 2], [3, 4]]
        assert unpacked(result["value"]["inputs"]["labels"]).tolist() == [1, 0]
        assert result["value"]["hasTargets"]
    assert unpacked(numbers["value"]["inputs"]["labels"]).dtype == np.float32
    assert not alone["value"]["hasTargets"]


def test_arrays_are_matched_by_name_or_shape():
    x, y = np.arange(6.0).reshape(3, 2), np.array([1, 0, 1], np.int64)
    cases = [{"x": npy(x), "labels": npy(y)}, {"features": npy(x), "classes": npy(y)}, {"b": npy(y), "a": npy(x)}]
    for result in run(*(("dataset_of_npy", FLOWERS, files) for files in cases)):
        inputs = result["value"]["inputs"]
        assert unpacked(inputs["x"]).tolist() == x.tolist()
        assert unpacked(inputs["labels"]).tolist() == y.tolist()
        assert unpacked(inputs["labels"]).dtype == np.int32


def test_bytes_are_scaled_as_pixels():
    pixels = np.array([[[0, 255], [51, 0]]], np.uint8)
    (result,) = run(("dataset_of_npy", IMAGES, {"x": npy(pixels), "labels": npy(np.array([2]))}))
    assert unpacked(result["value"]["inputs"]["x"]).tolist() == [[0, 1, np.float32(0.2), 0]]


def test_images_are_labelled_by_folder_or_name():
    black = [0, 0, 0, 0]
    named, alone = run(
        ("dataset_of_images", IMAGES, {"some/2/a.png": black, "1_x.png": black, "0-5.png": black}),
        ("dataset_of_images", IMAGES, {"cat.png": black}),
    )
    assert unpacked(named["value"]["inputs"]["labels"]).tolist() == [2, 1, 0]
    assert not alone["value"]["hasTargets"]


def _arrays(**files: np.ndarray) -> dict[str, str]:
    return {name: npy(array) for name, array in files.items()}


X = np.zeros((2, 2))
CSV, NPY, IMAGE = "dataset_of_csv", "dataset_of_npy", "dataset_of_images"
REFUSED = [  # reader, model, files, what the error says, its advice
    (CSV, FLOWERS, packed("a,b,c\nred,2,1\n"), "the column 'a' of the table holds text", "leave the column"),
    (CSV, FLOWERS, packed("a,b,c\n1,,1\n"), "the column 'b' of the table has no value in row 0", "replace"),
    (CSV, FLOWERS, packed("a,b,c,d\n1,2,3,4\n"), "has shape (batch, 2); received (1, 4)", "Reshape"),
    (CSV, FLOWERS, packed("a,b,c\n1,2,lily\n"), "the label 'lily' in row 0 is not among", "Correct it"),
    (CSV, FLOWERS, packed("a,b,c\n1,2,\n"), "the target has no value in 1 rows", "Leave them out"),
    (CSV, FLOWERS, packed("a,b,c\n1,2,2\n"), "go up to 2, which needs 3 classes", "Number the"),
    (CSV, FLOWERS, packed("a,b,c\n1,2,-1\n"), "the labels go down to -1", "numbered from 0"),
    (CSV, FLOWERS, packed("a,b,c\n1,2,0.5\n"), "the labels are floats", "Save them as integers"),
    (CSV, NUMBERS, packed("a,b,c\n1,2,x\n"), "the labels are text, e.g. 'x'", "a column of numbers"),
    (CSV, ANSWERS, packed("a,b,c\n1,2,-1\n"), "takes targets from 0 (no) to 1 (yes); received -1", "(y + 1)"),
    (CSV, NUMBERS, packed("a,b,c\n1,inf,3\n"), "'x' holds inf at [0, 1]", "Drop the row"),
    (NPY, FLOWERS, _arrays(x=np.full((2, 2), np.nan)), "'x' holds nan at [0, 0]", "Drop the row"),
    (NPY, FLOWERS, _arrays(x=X, labels=np.zeros(3, int)), "one row per example", "Cut them"),
    (NPY, FLOWERS, _arrays(a=np.zeros((2, 5))), "a has shape (2, 5); expected x (batch, 2)", "Reshape"),
    (NPY, FLOWERS, _arrays(labels=np.zeros(3, int)), "the input 'x' is missing", "Drop all files"),
    (NPY, FLOWERS, _arrays(x=X[:0]), "it has 0 rows", "at least one example"),
    (IMAGE, IMAGES, {"2/a.png": [0] * 4, "b.png": [0] * 4}, "the image 'b.png' has no label", "Rename it"),
]  # fmt: skip


def test_what_does_not_fit_is_refused_with_advice():
    results = run(*(case[:3] for case in REFUSED))
    for (*_, says, advice), result in zip(REFUSED, results, strict=True):
        assert says in result.get("error", ""), (says, result)
        assert advice in result["error"]
