"""A page of LeNet and MNIST in headless Chromium: 60,000 images are dropped, an epoch is trained with a stop in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import wholestep as ws
from tests.support.browser import INSTALL, browser_path
from tests.support.mnist import digits_as_mnist, real_mnist
from tests.web.pages import checkpoint, data_is, history, numbers, predictions, ready, stop, train
from wholestep.cli import app
from wholestep.data.files import read_idx

pytestmark = [pytest.mark.long, pytest.mark.skipif(browser_path() is None, reason=INSTALL)]
SCRIPT = "from tests.web.test_page_mnist import lenet\ndef build(): return lenet({!r})\n"
WAIT = 900.0  # seconds, of a busy machine


def lenet(folder: str) -> ws.Experiment:
    """LeNet-5 on the test images of a folder; the page receives the training images."""
    _, test = ws.data.mnist(folder)
    return ws.Experiment(
        model=ws.models.LeNet5(), data=test, validation=0.1, loss="cross_entropy", metrics=["accuracy"],
        optimizer=ws.Adam(lr=2e-3), epochs=1, batch_size=64, seed=4, device="cpu/portable", progress=False,
    )  # fmt: skip


@pytest.mark.parametrize("real", [False, True], ids=["digits", "mnist"])
def test_lenet_is_trained_on_dropped_images(tmp_path: Path, real: bool) -> None:
    folder = real_mnist() if real else tmp_path
    if not real:
        digits_as_mnist(folder, train=800)
    (tmp_path / "lenet.py").write_text(SCRIPT.format(str(folder)))
    done = CliRunner().invoke(app, ["export", str(tmp_path / "lenet.py"), str(tmp_path / "run.html"), "--rows", "300"])
    assert done.exit_code == 0, done.output
    files = tmp_path / "images.npy", tmp_path / "labels.npy"
    for file, kind in zip(files, ("images-idx3", "labels-idx1"), strict=True):
        np.save(file, read_idx(folder / f"train-{kind}-ubyte.gz"))  # bytes, without an axis of channels
    run = lenet(str(folder)).having({"data": ws.data.mnist(folder)[0]})
    rows = len(run.data[0])
    with ready(tmp_path / "run.html", tmp_path) as tab:
        tab.drop("#drop", *files)
        data_is(tab, "2 files; pixels from 0 to 255 were scaled to 0 to 1")
        assert f"{rows * 9 // 10:,} rows to train, {rows // 10:,} to validate" in tab.text("#data-status")
        tab.fill("#epochs", 1)
        tab.click("#start")
        tab.wait("Number(document.querySelector('#progress').value) > 0.05", WAIT)
        stop(tab)
        assert 0 < tab.evaluate("Number(document.querySelector('#progress').value)") < 1
        train(tab, 1, WAIT)
        file = checkpoint(tab, "run")
        shown = {name: float(tab.text(f'[data-log="val_{name}"]')) for name in ("loss", "accuracy")}
        cells = "[...document.querySelectorAll('.matrix tbody td')].map((e) => Number(e.textContent.replace(',', '')))"
        matrix = np.array(tab.evaluate(cells)).reshape(10, 10)
        np.save(tmp_path / "new.npy", read_idx(folder / "t10k-images-idx3-ubyte.gz")[:40])
        tab.drop("#predict-card", tmp_path / "new.npy")
        tab.wait("document.querySelectorAll('[data-prediction]').length === 40")
        predicted = predictions(tab)
    assert history(file) == numbers(run.fit())
    model = lenet(str(folder)).model
    model.load(file, strict=False)
    _, held = ws.data.split(run.data, 0.1, 4)
    x, y = held.inputs["x"], next(iter(held.targets.values()))
    ours = model.evaluate(x, y, loss="cross_entropy", metrics=["accuracy"], batch_size=64, device="cpu/portable")
    assert {name: history(file)[-1][f"val_{name}"] for name in ours} == ours
    assert shown == pytest.approx(ours, rel=1e-3)
    assert np.trace(matrix) == round(ours["accuracy"] * len(y))
    new = ws.data.mnist(folder)[1][0][:40]
    assert list(map(int, predicted)) == model.predict(new, device="cpu/portable").argmax(axis=1).tolist()
