"""Tables, files and transforms."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

import wholestep as ws
from wholestep.data import Crop, DataLoader, Flip, Noise, Normalize, Scale, as_table, split
from wholestep.data.table import check_finite
from wholestep.data.transforms import TransformDraw

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 1, 4, 5)).astype(np.uint8)
ROWS = np.arange(6)


def idx(array: np.ndarray, code: int = 8) -> bytes:
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("compress", [gzip.compress, bytes])
def test_idx_files(tmp_path: Path, compress) -> None:
    file = tmp_path / "images"
    file.write_bytes(compress(idx(IMAGES)))
    np.testing.assert_array_equal(ws.data.read_idx(file), IMAGES)
    for other, size in ((idx(IMAGES)[:-1], 139), (idx(IMAGES) + b"0", 141)):
        file.write_bytes(compress(other))
        with pytest.raises(ws.errors.InputError, match=rf"is damaged: shape \(6, 1, 4, 5\) needs 140 bytes; .* {size}"):
            ws.data.read_idx(file)
    file.write_bytes(b"PNG")
    with pytest.raises(ws.errors.InputError, match="is not an idx file"):
        ws.data.read_idx(file)


def test_mnist_from_a_folder(tmp_path: Path) -> None:
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(IMAGES[:, 0]))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(6, dtype=np.uint8))))
    (x, y), _ = ws.data.mnist(tmp_path)
    assert (x.shape, x.dtype.name, y.dtype.name, float(x.max()) <= 1.0) == ((6, 1, 4, 5), "float32", "int32", True)
    with pytest.raises(ws.errors.InputError, match="there is no train-images-idx3-ubyte"):
        ws.data.mnist(tmp_path / "none")


def test_mapped_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(6, 2))
    mapped = ws.data.open_npy(tmp_path / "x.npy")
    assert isinstance(mapped, np.memmap)
    batch = DataLoader(mapped, batch_size=2, shuffle=False).next_batch()
    assert batch is not None
    np.testing.assert_array_equal(batch.inputs, [[0, 1], [2, 3]])
    (tmp_path / "bad.npy").write_bytes(b"no")
    with pytest.raises(ws.errors.InputError, match=r"is not a complete \.npy file"):
        ws.data.open_npy(tmp_path / "bad.npy")


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "flowers.csv"
    file.write_text("length,width,kind\n1.5,2,rose\n\n3,4,aster\n")
    x, y = ws.data.read_csv(file, target="kind")
    np.testing.assert_array_equal(x, np.array([[1.5, 2], [3, 4]], np.float32))
    np.testing.assert_array_equal(y, [1, 0])
    file.write_text("1,0.5\n2,1.5\n")
    x, y = ws.data.read_csv(file, target=-1, header=False)
    assert (x.shape, y.dtype.name) == ((2, 1), "float32")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("a,b\n1,2\n3\n", None, "line 3: 1 values; expected 2"),
        ("a,b\n1,two\n", None, "line 2, column 'b': 'two' is not a number"),
        ("a,b\n1,2\n", "c", "has no column 'c'; it has: a, b"),
        ("a,b\n", None, "has no rows of data"),
    ],
)
def test_csv_errors_name_the_line(tmp_path: Path, text: str, target: str | None, message: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(ws.errors.InputError, match=message):
        ws.data.read_csv(file, target=target)


def test_splits_are_shuffled_by_the_seed_and_whole() -> None:
    x = np.arange(100)
    train, held = split((x, x), 0.2, seed=1)
    assert (len(train), len(held)) == (80, 20)
    assert sorted([*train.inputs["x"], *held.inputs["x"]]) == list(range(100))
    assert held.inputs["x"].tolist() == split((x, x), 0.2, seed=1)[1].inputs["x"].tolist()
    assert held.inputs["x"].tolist() != split((x, x), 0.2, seed=2)[1].inputs["x"].tolist()
    for fraction in (0.0, 1.0, 0.001):
        with pytest.raises(ws.errors.OptionError, match="split"):
            split((x, x), fraction)


def test_nan_is_named() -> None:
    x = np.ones((3, 2))
    x[1, 0] = np.nan
    with pytest.raises(ws.errors.InputError, match=r"'x' holds nan at \[1, 0\]"):
        check_finite(as_table(x))


def test_transforms_are_functions_of_seed_epoch_and_row() -> None:
    for transform in (Flip(), Crop(1), Noise(0.1)):
        whole = transform(IMAGES, TransformDraw(3, 1, ROWS, 0))
        part = transform(IMAGES[4:], TransformDraw(3, 1, ROWS[4:], 0))
        np.testing.assert_array_equal(whole[4:], part)
        assert (whole != transform(IMAGES, TransformDraw(3, 2, ROWS, 0))).any()


def test_what_transforms_do() -> None:
    draw = TransformDraw(0, 0, ROWS, 0)
    flipped = Flip(1.0)(IMAGES, draw)
    np.testing.assert_array_equal(flipped, IMAGES[..., ::-1])
    np.testing.assert_allclose(Scale(1 / 255)(IMAGES, draw), IMAGES / 255, rtol=1e-6)
    np.testing.assert_allclose(Normalize([100.0], [50.0])(IMAGES, draw), (IMAGES - 100.0) / 50.0, rtol=1e-6)
    cropped = Crop(2)(IMAGES, draw)
    assert cropped.shape == IMAGES.shape
    padded = np.pad(IMAGES[0, 0], 2)
    windows = [padded[i : i + 4, j : j + 5].tolist() for i in range(5) for j in range(5)]
    assert cropped[0, 0].tolist() in windows
    many = Noise(2.0)(np.zeros((500, 20)), TransformDraw(0, 0, np.arange(500), 0))
    assert abs(many.std() - 2.0) < 0.05
    assert abs(many.mean()) < 0.06


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Flip(1.5), "p must be a probability"),
        (lambda: Crop(0), "padding must be an integer"),
        (lambda: Normalize(0.0, 0.0), "std must be above 0"),
        (lambda: Crop(1)(np.ones((2, 3)), TransformDraw(0, 0, ROWS[:2], 0)), "needs images"),
    ],
)
def test_errors_teach(make, text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        make()
