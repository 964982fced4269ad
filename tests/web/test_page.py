"""A page in headless Chromium: train, stop, continue, drop files, predict, download; then Python continues."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import wholestep as ws
from tests.support.browser import INSTALL, Tab, browser_path, opened
from tests.web.pages import (
    TRAINED,
    checkpoint,
    data_is,
    history,
    numbers,
    predictions,
    ready,
    refused,
    stop,
    train,
)
from wholestep.cli import app
from wholestep.web.export import export_page

pytestmark = pytest.mark.skipif(browser_path() is None, reason=INSTALL)


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
    with ready(page, tmp_path) as tab:
        yield tab


def assert_evaluates_as_the_page(tab: Tab, file: Path, run: ws.Experiment) -> None:
    """The weights of a checkpoint have the numbers that the page shows."""
    _, held = ws.data.split(run.data, run.validation, run.seed)
    run.model.load(file, strict=False)
    options = {"loss": run.loss, "metrics": run.metrics, "batch_size": run.batch_size, "device": run.device}
    ours = run.model.evaluate(held.inputs["x"], *held.targets.values(), **options)
    shown = {name: float(tab.text(f'[data-log="val_{name}"]')) for name in ours}
    assert shown == pytest.approx(ours, rel=1e-3)
    stored = {name: history(file)[-1][f"val_{name}"] for name in ours}
    assert stored == ours


def test_a_page_trains_to_the_bits_of_python(tab: Tab) -> None:
    assert "1,438 rows to train, 359 to validate" in tab.text("#data-status")
    train(tab, 2)
    file, run = checkpoint(tab), digits(*ws.datasets.digits(), 2)
    assert history(file) == numbers(run.fit())
    assert_evaluates_as_the_page(tab, file, digits(*ws.datasets.digits()))


@pytest.mark.long
def test_a_run_is_stopped_and_continued_here_and_in_python(tab: Tab) -> None:
    x, y = ws.datasets.digits()
    tab.fill("#epochs", 100_000)
    tab.click("#start")
    tab.wait("Number(document.querySelector('#progress').value) > 0")
    stop(tab)
    assert tab.text("#start") == "Continue"
    tab.click("#start")
    stop(tab)
    file = checkpoint(tab)
    done = ws.load_checkpoint(file).position.epoch
    resumed, whole = digits(x, y), digits(x, y)
    again = resumed.fit(resume=file, epochs=done + 1, exact=True)
    assert numbers(again) == numbers(whole.fit(epochs=done + 1))
    for name, array in whole.model.state_dict().items():
        np.testing.assert_array_equal(resumed.model.state_dict()[name], array)
    weights = digits(x, y).model
    assert not weights.load(file, strict=False).missing

    shown = tab.text("#tiles")
    tab.click("#reset")
    tab.wait(f"document.querySelector('#tiles').textContent !== {json.dumps(shown)}")
    tab.choose("#restore", file)
    tab.wait("document.querySelector('#keep-status').textContent.includes('is loaded')")
    assert tab.text("#tiles") == shown
    assert history(checkpoint(tab)) == history(file)
    tab.choose("#restore", Path(__file__))
    assert "test_page.py is not a complete safetensors file" in refused(tab, "keep")


@pytest.mark.long
def test_dropped_arrays_are_trained_on_and_predicted(tab: Tab, tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    np.save(tmp_path / "x.npy", x[:500])
    np.save(tmp_path / "y.npy", y[:500])
    tab.drop("h1", tmp_path / "x.npy", tmp_path / "y.npy")
    data_is(tab, "2 files")
    assert "400 rows to train, 100 to validate" in tab.text("#data-status")
    train(tab, 3)
    file, dropped = checkpoint(tab), digits(x[:500], y[:500], 3)
    assert history(file) == numbers(dropped.fit())
    shown = tab.text('[data-log="val_accuracy"]')
    assert float(shown) == pytest.approx(history(file)[-1]["val_accuracy"], abs=1e-4)
    cells = "[...document.querySelectorAll('.matrix tbody td')].map((e) => Number(e.textContent))"
    matrix = np.array(tab.evaluate(cells)).reshape(10, 10)
    assert (matrix.sum(), np.trace(matrix)) == (100, round(100 * history(file)[-1]["val_accuracy"]))

    tab.drop("#predict-card", tmp_path / "x.npy")
    tab.wait("document.querySelector('[data-prediction]')")
    assert list(map(int, predictions(tab))) == dropped.model.predict(x[:50]).argmax(axis=1).tolist()
    tab.click("#save-predictions")
    lines = tab.downloaded("predictions.csv").read_text().split()
    assert (lines[0], len(lines)) == ("prediction", 501)

    tab.fill("#rate", -1)
    tab.click("#start")
    assert "the learning rate is -1; expected a number above 0" in refused(tab, "train")
    tab.fill("#rate", 1e38)
    tab.click("#start")
    tab.wait("document.querySelector('#train-error').textContent.startsWith('the loss')")
    text = refused(tab, "train")
    assert "the loss is not finite" in text
    assert "Choose a smaller learning rate" in text
    weights = digits(x, y).model
    weights.load(checkpoint(tab), strict=False)  # of the start of the epoch
    np.testing.assert_array_equal(weights.state_dict()["0.weight"], dropped.model.state_dict()["0.weight"])


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
    tab.fill("#epochs", 100_000)
    tab.evaluate("document.querySelector('#start').focus()")
    tab.press("Enter")
    tab.wait("!document.querySelector('#stop').disabled")
    tab.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "stop"
    tab.press("Space")
    tab.wait(TRAINED.format("Stopped"))
    tab.resize(390, 800, dark=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.long
@pytest.mark.parametrize("schedule", [ws.schedules.cosine(), ws.schedules.cosine(warmup=9), None], ids=str)
def test_the_settings_of_a_page_are_runtime_scalars(tmp_path: Path, schedule: object) -> None:
    """Other epochs, another rate and other data give what Python gives for them, from the module that the page has."""
    x, y = ws.datasets.digits()
    settings = {"schedule": schedule, "optimizer": ws.SGD(lr=0.1, momentum=0.9), "accumulate": 2, "batch_size": 32}
    page = export_page(digits(x, y, 4).having(settings), tmp_path / "digits.html", image="8x8")
    few = x[:500], y[:500]
    for name, array in zip(("x", "y"), few):
        np.save(tmp_path / f"{name}.npy", array)
    with ready(page, tmp_path) as tab:
        assert float(tab.evaluate("document.querySelector('#rate').value")) == 0.1
        scalars = "[...document.querySelectorAll('[data-scalar]')].map((e) => e.dataset.scalar)"
        assert not [name for name in tab.evaluate(scalars) if name.endswith(("T_max", ".lr"))]
        tab.drop("h1", tmp_path / "x.npy", tmp_path / "y.npy")
        data_is(tab, "2 files")
        tab.fill("#rate", 0.05)
        tab.fill('[data-scalar="optimizer.momentum"]', 0.5)
        train(tab, 3)
        file = checkpoint(tab)
    run = digits(*few, 3).having({**settings, "optimizer": ws.SGD(lr=0.05, momentum=0.5)})
    assert history(file) == numbers(run.fit())


@pytest.mark.long
def test_the_browser_forbids_requests(page: Path, tmp_path: Path) -> None:
    with opened(page, tmp_path) as tab:
        tab.wait("document.documentElement.dataset.ready")
        for address in ("https://example.org/", "data.csv", "blob:null/1"):
            assert tab.evaluate(f"fetch({address!r}).then(() => 'sent', (error) => error.name)") == "TypeError"
        assert len(tab.problems) >= 3
        assert all("Content Security Policy" in text for text in tab.problems)


@pytest.mark.long
def test_files_wait_until_a_run_is_stopped(tab: Tab, tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    for name, array in (("x", x[:50]), ("y", y[:50])):
        np.save(tmp_path / f"{name}.npy", array)
    tab.fill("#epochs", 100_000)
    tab.click("#start")
    tab.wait("!document.querySelector('#stop').disabled")
    tab.wait("document.querySelector('#charts path').getAttribute('d').includes('L')")  # curves while it trains
    assert not tab.evaluate("document.querySelector('#stop').disabled")
    tab.drop("h1", tmp_path / "x.npy", tmp_path / "y.npy")
    assert "Stop it, then drop the files again" in refused(tab)
    tab.drop("#predict-card", tmp_path / "x.npy")  # while it trains
    tab.wait("document.querySelectorAll('[data-prediction]').length === 50")
    stop(tab)
    file = checkpoint(tab)
    assert history(file)[-1]["val_accuracy"] > 0.9
    tab.drop("h1", tmp_path / "x.npy", tmp_path / "y.npy")
    data_is(tab, "2 files")
    assert tab.evaluate("document.querySelector('#data-error').hidden")
