"""A page in headless Chromium: train, stop, continue, drop files, predict, download; then Python continues."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import wholestep as ws
from tests.support.browser import INSTALL, Tab, browser_path, opened
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
    return export_page(digits(*ws.datasets.digits()), tmp_path_factory.mktemp("page") / "digits.html", image="8x8")


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


def checkpoint(tab: Tab) -> Path:
    """The downloaded checkpoint."""
    for old in tab.downloads.glob("*.safetensors"):
        old.unlink()
    tab.click("#save")
    return tab.downloaded("digits.safetensors")


def history(file: Path) -> list[dict]:
    with safe_open(file, "np") as opened_file:
        return [e["logs"] for e in json.loads(opened_file.metadata()["wholestep.run"])["history"]["epochs"]]


def numbers(run: ws.TrainHistory) -> list[dict]:
    return [{name: e.logs[name] for name in ("loss", "accuracy", "val_loss", "val_accuracy")} for e in run.epochs]


def test_a_page_trains_to_the_bits_of_python_and_python_continues(tab: Tab, tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    assert "1,438 rows to train, 359 to validate" in tab.text("#data-status")
    train(tab, 2)
    assert history(checkpoint(tab)) == numbers(digits(x, y, 2).fit())

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

    np.save(tmp_path / "x.npy", x[:500])
    np.save(tmp_path / "y.npy", y[:500])
    tab.click("#reset")
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
