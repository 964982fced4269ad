"""A page in headless Chromium: train, stop, continue, drop files, predict, download; then Python continues."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from typer.testing import CliRunner

import wholestep as ws
from tests.support.browser import INSTALL, Tab, browser_path, opened
from wholestep.cli import app
from wholestep.web.export import export_page

pytestmark = pytest.mark.skipif(browser_path() is None, reason=INSTALL)
TRAINED = "document.querySelector('#train-status').textContent.startsWith('{}')"


def digits(x: np.ndarray, y: np.ndarray, epochs: int = 2) -> ws.Experiment:
    model = ws.nn.Sequential(ws.nn.Linear(64, 10))
    return ws.Experiment(
        model=model, data=(x, y), validation=0.2, loss="cross_entropy", metrics=["accuracy"], optimizer=ws.SGD(lr=0.1),
        epochs=epochs, batch_size=64, seed=3, device="cpu/portable", progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    lines = (
        "import wholestep as ws",
        "from tests.web.test_page import digits",
        "def build(): return digits(*ws.datasets.digits())",
    )
    (folder / "script.py").write_text("\n".join(lines))
    done = CliRunner().invoke(app, ["export", str(folder / "script.py"), str(folder / "digits.html"), "--image", "8x8"])
    assert done.exit_code == 0, done.output
    assert "bytes; open it in a browser" in done.output
    return folder / "digits.html"


@pytest.fixture
def tab(page: Path, tmp_path: Path):
    with opened(page, tmp_path) as tab:
        tab.wait("document.documentElement.dataset.ready")
        yield tab
        assert tab.problems == []
        assert [url for url in tab.requests if not url.startswith(("file:", "blob:"))] == []


def train(tab: Tab, epochs: int) -> None:
    tab.fill("#epochs", epochs)
    tab.click("#start")
    tab.wait(TRAINED.format("Finished"))


def checkpoint(tab: Tab, name: str = "digits") -> Path:
    """The downloaded checkpoint."""
    for old in tab.downloads.glob("*.safetensors"):
        old.unlink()
    tab.click("#save")
    return tab.downloaded(f"{name}.safetensors")


def history(file: Path) -> list[dict]:
    with safe_open(file, "np") as opened_file:
        return [e["logs"] for e in json.loads(opened_file.metadata()["wholestep.run"])["history"]["epochs"]]


def numbers(run: ws.TrainHistory) -> list[dict]:
    return [{name: e.logs[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")} for e in run.epochs]


def test_a_page_trains_to_the_bits_of_python(tab: Tab) -> None:
    assert "1,438 rows to train, 359 to validate" in tab.text("#data-status")
    train(tab, 2)
    assert history(checkpoint(tab)) == numbers(digits(*ws.datasets.digits(), 2).fit())


@pytest.mark.long
def test_a_run_is_stopped_and_continued_here_and_in_python(tab: Tab) -> None:
    x, y = ws.datasets.digits()
    tab.fill("#epochs", 100_000)
    tab.click("#start")
    tab.wait("Number(document.querySelector('#progress').value) > 0")
    tab.click("#stop")
    tab.wait(TRAINED.format("Stopped"))
    assert tab.text("#start") == "Continue"
    tab.click("#start")
    tab.wait("!document.querySelector('#stop').disabled")
    tab.click("#stop")
    tab.wait(TRAINED.format("Stopped"))
    file = checkpoint(tab)
    done = ws.load_checkpoint(file).position.epoch
    resumed, whole = digits(x, y), digits(x, y)
    again = resumed.fit(resume=file, epochs=done + 1, exact=True)
    assert numbers(again) == numbers(whole.fit(epochs=done + 1))
    for name, array in whole.model.state_dict().items():
        np.testing.assert_array_equal(resumed.model.state_dict()[name], array)
    weights = digits(x, y).model
    assert not weights.load(file, strict=False).missing

    tab.click("#reset")
    tab.choose("#restore", file)
    tab.wait("document.querySelector('#keep-status').textContent.includes('is loaded')")
    assert history(checkpoint(tab)) == history(file)
    tab.choose("#restore", Path(__file__))
    tab.wait("!document.querySelector('#keep-error').hidden")
    assert "test_page.py is not a complete safetensors file" in tab.text("#keep-error")


@pytest.mark.long
def test_dropped_arrays_are_trained_on_and_predicted(tab: Tab, tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    np.save(tmp_path / "x.npy", x[:500])
    np.save(tmp_path / "y.npy", y[:500])
    tab.choose("#files", tmp_path / "x.npy", tmp_path / "y.npy")
    tab.wait("document.querySelector('#data-status').textContent.startsWith('2 files')")
    assert "400 rows to train, 100 to validate" in tab.text("#data-status")
    train(tab, 3)
    file, dropped = checkpoint(tab), digits(x[:500], y[:500], 3)
    assert history(file) == numbers(dropped.fit())
    shown = tab.text('[data-log="val_accuracy"]')
    assert float(shown) == pytest.approx(history(file)[-1]["val_accuracy"], abs=1e-4)
    cells = "[...document.querySelectorAll('.matrix tbody td')].map((e) => Number(e.textContent))"
    matrix = np.array(tab.evaluate(cells)).reshape(10, 10)
    assert (matrix.sum(), np.trace(matrix)) == (100, round(100 * history(file)[-1]["val_accuracy"]))

    tab.choose("#predict-files", tmp_path / "x.npy")
    tab.wait("document.querySelector('[data-prediction]')")
    predicted = tab.evaluate("[...document.querySelectorAll('[data-prediction]')].map((e) => Number(e.textContent))")
    assert predicted == dropped.model.predict(x[:50]).argmax(axis=1).tolist()

    np.save(tmp_path / "wide.npy", np.zeros((2, 65)))
    tab.choose("#files", tmp_path / "wide.npy")
    tab.wait("!document.querySelector('#data-error').hidden")
    assert "wide has shape (2, 65); expected x (batch, 64), labels (batch,). Reshape" in tab.text("#data-error")
    tab.fill("#rate", 1e30)
    tab.click("#start")
    tab.wait("!document.querySelector('#train-error').hidden")
    assert "the loss is not finite" in tab.text("#train-error")
    assert "Choose a smaller learning rate" in tab.text("#train-error")


@pytest.mark.long
def test_a_page_is_used_by_keyboard(tab: Tab) -> None:
    order = []
    for _ in range(12):
        tab.press("Tab")
        order.append(tab.evaluate("document.activeElement.id || document.activeElement.tagName"))
    expected = ["files", "SUMMARY", "epochs", "rate", "rate-slider", "start"]
    assert [name for name in order if name in expected][:6] == expected
    unlabelled = (
        "[...document.querySelectorAll('input, select')].filter((e) => !e.labels?.length && !e.ariaLabel).length"
    )
    assert tab.evaluate(unlabelled) == 0
    tab.evaluate("document.querySelector('#start').focus()")
    tab.press("Enter")
    tab.wait(TRAINED.format("Finished"))
    tab.resize(390, 800, dark=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


# -- a table, and images -------------------------------------------------------------------------------------------


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
    with opened(page, tmp_path) as tab:
        tab.wait("document.documentElement.dataset.ready")
        tab.choose("#files", tmp_path / "second.csv")
        tab.wait("document.querySelector('#data-status').textContent.startsWith('second.csv')")
        train(tab, 3)
        ours = history(checkpoint(tab, "houses"))
        expected = dropped.fit()
        assert [e["loss"] for e in ours] == pytest.approx([e.logs["loss"] for e in expected.epochs], rel=1e-4)
        assert [e["val_loss"] for e in ours] == pytest.approx([e.logs["val_loss"] for e in expected.epochs], rel=1e-4)
        assert tab.evaluate("document.querySelectorAll('#picture svg .point').length") == 2 * 60
        tab.fill("input[name=area]", 100)
        tab.fill("select[name=city]", "Rome")
        tab.click("#row button")
        tab.wait("document.querySelector('#answer')")
        row = {"area": [100.0], "city": ["Rome"], "built": [np.datetime64(_built(first))], "garden": [_garden(first)]}
        answer = float(begun.model.predict(row)[0])
        assert float(tab.text("#answer")) == pytest.approx(answer, rel=1e-3)
        (tmp_path / "wrong.csv").write_text(houses(20, 2).replace("city", "town", 1))
        tab.choose("#files", tmp_path / "wrong.csv")
        tab.wait("!document.querySelector('#data-error').hidden")
        with pytest.raises(ws.errors.UnknownNameError) as error:
            begun.model.predict(ws.data.read_frame(tmp_path / "wrong.csv").without("price"))
        assert tab.text("#data-error") == str(error.value).split("\n")[0]
        assert (tab.problems, {url.split(":")[0] for url in tab.requests}) == ([], {"file", "blob"})


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
    files = [tmp_path / f"{label}_{i}.png" for i, label in enumerate(y[:60])]
    for file, image in zip(files, images):
        file.write_bytes(png((image[0] * 255).round().astype(np.uint8)))
    with opened(page, tmp_path) as tab:
        tab.wait("document.documentElement.dataset.ready")
        assert "the first 200 of 1,438 rows" in tab.text("#data-status")
        tab.choose("#files", *files)
        tab.wait("document.querySelector('#data-status').textContent.startsWith('60 files')")
        assert "48 rows to train, 12 to validate" in tab.text("#data-status")
        train(tab, 2)
        tab.choose("#predict-files", *files[:5])
        tab.wait("document.querySelectorAll('[data-prediction]').length === 5")
        tab.drag("#pad", (0.5, 0.2), (0.5, 0.8))
        tab.wait("document.querySelector('#pad-answer .answer')")
        assert tab.evaluate("document.querySelectorAll('#pad-answer .bar').length") == 10
        with safe_open(checkpoint(tab, "images"), "np") as file:
            assert json.loads(file.metadata()["wholestep.identity"])["data"] == {}
        assert (tab.problems, {url.split(":")[0] for url in tab.requests}) == ([], {"file", "blob"})
