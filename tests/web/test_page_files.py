"""Files dropped on a page by a real drag: tables, folders of images, and what does not fit, in headless Chromium."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

import wholestep as ws
from tests.support.browser import INSTALL, browser_path
from tests.web.pages import checkpoint, data_is, header, history, numbers, ready, refused, train
from wholestep.web.export import export_page

pytestmark = pytest.mark.skipif(browser_path() is None, reason=INSTALL)


def houses(count: int, seed: int) -> str:
    """A table as CSV: numbers with gaps, words, dates, and a price."""
    rng = np.random.default_rng(seed)
    area, city = rng.normal(90, 25, count).round(1), rng.choice(["Oslo", "Rome", "Köln"], count)
    years, garden = rng.integers(1950, 2020, count), rng.choice(["true", "false"], count)
    price = (area * 30 + (city == "Oslo") * 2000 + rng.normal(0, 300, count)).round()
    gaps = rng.random(count) < 0.1
    rows = zip(np.where(gaps, "NA", area.astype(str)), city, years, garden, price)
    return "area,city,built,garden,price\n" + "".join(f"{a},{c},{b}-06-01,{g},{p}\n" for a, c, b, g, p in rows)


def table(data: object, model: ws.nn.Module | None = None) -> ws.Experiment:
    model = model or ws.models.Tabular(hidden=(8,))
    return ws.Experiment(
        model=model, data=(data, "price"), validation=0.2, loss="mse", optimizer=ws.Adam(lr=0.01), epochs=3, seed=1,
        device="cpu/portable", progress=False,
    )  # fmt: skip


@pytest.mark.long
def test_a_table_is_dropped_trained_on_and_predicted(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("second", 1)):
        (tmp_path / f"{name}.csv").write_text(houses(300, seed))
    first, second = (ws.data.read_frame(tmp_path / f"{name}.csv") for name in ("first", "second"))
    page = export_page(table(first), tmp_path / "houses.html", script="houses.py")
    begun = table(first)
    begun.trainer()  # fits the encoder
    dropped = table(second, begun.model)
    with ready(page, tmp_path) as tab:
        tab.drop("#drop", tmp_path / "second.csv")
        data_is(tab, "second.csv")
        train(tab, 3)
        ours = history(checkpoint(tab, "houses"))
        expected = dropped.fit()
        assert [e["loss"] for e in ours] == pytest.approx([e.logs["loss"] for e in expected.epochs], rel=1e-4)
        assert [e["val_loss"] for e in ours] == pytest.approx([e.logs["val_loss"] for e in expected.epochs], rel=1e-4)
        assert tab.evaluate("document.querySelectorAll('#picture svg .point').length") == 2 * 60
        assert tab.text("[data-log=r2]")  # of the validation rows, after training too
        assert tab.text("[data-log=mae]")
        tab.fill("input[name=area]", 100)
        tab.fill("select[name=city]", "Rome")
        tab.click("#row button")
        tab.wait("document.querySelector('#answer')")
        row = {"area": [100.0], "city": ["Rome"], "built": [np.datetime64(_built(first))], "garden": [_garden(first)]}
        answer = float(begun.model.predict(row)[0])
        assert float(tab.text("#answer").replace(",", "")) == pytest.approx(answer, rel=1e-3)
        tab.drop("#predict-card", tmp_path / "first.csv")
        tab.wait("document.querySelector('#save-predictions')")
        tab.click("#save-predictions")
        written = np.loadtxt(tab.downloaded("predictions.csv"), skiprows=1)
        np.testing.assert_allclose(written, begun.model.predict(first.without("price")), rtol=1e-4)
        (tmp_path / "wrong.csv").write_text(houses(20, 2).replace("city", "town", 1))
        tab.drop("#drop", tmp_path / "wrong.csv")
        with pytest.raises(ws.errors.UnknownNameError) as error:
            begun.model.predict(ws.data.read_frame(tmp_path / "wrong.csv").without("price"))
        assert refused(tab) == str(error.value).split("\n")[0]


def _built(frame: ws.data.Frame) -> str:
    return str(frame["built"].values[0])


def _garden(frame: ws.data.Frame) -> bool:
    return bool(frame["garden"].values[0])


def png(pixels: np.ndarray) -> bytes:
    """A grey image."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    chunks = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.long
def test_images_are_dropped_trained_on_and_drawn(tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    images = x.reshape(-1, 1, 8, 8)
    model = ws.nn.Sequential(ws.nn.Conv2d(1, 4, 3), ws.nn.ReLU(), ws.nn.Flatten(), ws.nn.Linear(144, 10))
    experiment = ws.Experiment(model=model, data=(images, y), validation=0.2, loss="cross_entropy", epochs=1, seed=0)
    page = export_page(experiment, tmp_path / "images.html", rows=200)
    files = [tmp_path / "all" / str(label) / f"{i}.png" for i, label in enumerate(y[:60])]
    for file, image in zip(files, images):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png((image[0] * 255).round().astype(np.uint8)))
    with ready(page, tmp_path) as tab:
        assert "the first 200 of 1,438 rows" in tab.text("#data-status")
        tab.drop("#drop", tmp_path / "all")  # a folder of folders, which are the labels
        data_is(tab, "60 files")
        assert "48 rows to train, 12 to validate" in tab.text("#data-status")
        train(tab, 2)
        order = sorted(range(60), key=lambda i: (str(y[i]), f"{i}.png"))
        pixels = (images[order] * 255).round().astype(np.float32) / np.float32(255)
        settings = {"data": (pixels, y[order]), "device": "cpu/portable", "progress": False}
        expected = experiment.having(settings).fit(epochs=2)
        assert history(checkpoint(tab, "images")) == numbers(expected, "loss", "val_loss")
        tab.choose("#predict-files", *files[:5])
        tab.wait("document.querySelectorAll('[data-prediction]').length === 5")
        tab.drag("#pad", (0.5, 0.2), (0.5, 0.8))
        tab.wait("document.querySelector('#pad-answer .answer')")
        assert tab.evaluate("document.querySelectorAll('#pad-answer .bar').length") == 10
        assert header(checkpoint(tab, "images"), "identity")["data"] == {}


BAD = [  # a file, its content, what the page says, its advice
    ("book.xlsx", b"PK", "book.xlsx cannot be read here; expected a .csv file or an .npy array or images", "Save the"),
    ("empty.csv", b"", "empty.csv has no rows of data", "."),
    ("latin.csv", b"a,b\n\xe9,1\n", "latin.csv is not text in UTF-8", "Save it as UTF-8"),
    ("ragged.csv", b"a,b\n1,2\n3\n", "ragged.csv, line 3: 1 values; expected 2 as in the first line", "."),
    ("cut.npy", b"\x93NUMPY\x01\x00", "cut.npy is not a", "make one with np.save"),
    ("broken.png", b"\x89PNG", "broken.png is not an image that this browser reads", "Save it as PNG or JPEG"),
    ("other.safetensors", b"{}", "other.safetensors is not a complete safetensors file", "Take another copy"),
]


@pytest.mark.long
def test_bad_files_get_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    experiment = ws.Experiment(model=ws.nn.Linear(64, 10), data=(x, y), loss="cross_entropy", epochs=1)
    page = export_page(experiment, tmp_path / "bad.html", image="8x8", rows=50)
    for name, content, *_ in BAD:
        (tmp_path / name).write_bytes(content)
    with ready(page, tmp_path) as tab:
        before = tab.text("#data-status")
        for name, _, says, advice in BAD:
            place = "keep" if name.endswith(".safetensors") else "data"
            tab.evaluate(f"document.querySelector('#{place}-error').hidden = true")
            tab.drop("h1", tmp_path / name)
            text = refused(tab, place)
            assert says in text
            assert advice in text[len(says) :]
        tab.drop("h1", tmp_path / "empty.csv", tmp_path / "cut.npy")
        tab.wait("document.querySelector('#data-error').textContent.startsWith('received files of several kinds')")
        assert "Drop them one after the other" in tab.text("#data-error")
        assert tab.text("#data-status") == before  # the example is still there to train on
        tab.evaluate("delete DataTransferItem.prototype.getAsFileSystemHandle")  # as in a browser without it
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "a.csv").write_text("a,b\n1,2\n")
        tab.drop("h1", tmp_path / "folder")
        tab.wait("document.querySelector('#data-error').textContent.includes('cannot read a dropped folder')")
        assert "select its files and drop these" in tab.text("#data-error")
        train(tab, 1)
