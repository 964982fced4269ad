"""`wholestep report`: one page with curves, differences and checkpoints of runs, in headless Chromium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

import wholestep as ws
from tests.support.browser import INSTALL, Tab, browser_path
from tests.web.pages import ready
from tests.web.test_screenshots import CUT, IMAGES, SIZES, keep
from wholestep.cli import app
from wholestep.train.checkpoint.format import MANIFEST, manifest_bytes, read_manifest
from wholestep.web.report import write_report

in_browser = pytest.mark.skipif(browser_path() is None, reason=INSTALL)
HOSTILE = "<script>document.title = 'taken'<"


def trained(folder: Path, optimizer: ws.optim.Optimizer, epochs: int = 3) -> ws.TrainHistory:
    """A run of the digits with checkpoints in a folder."""
    x, y = ws.datasets.digits()
    return ws.fit(
        ws.nn.Sequential(ws.nn.Linear(64, 10)), (x[:400], y[:400]), validation=0.2, loss="cross_entropy",
        metrics=["accuracy", "confusion_matrix"], optimizer=optimizer, epochs=epochs, checkpoint=folder, seed=0,
        schedule=ws.schedules.cosine(), device="reference", progress=False,
    )  # fmt: skip


def report(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return done.exit_code, " ".join(done.output.split())


def lines(tab: Tab, title: str) -> list[str]:
    """The outlines of the curves of a chart."""
    figures = "[...document.querySelectorAll('#charts figure')]"
    chosen = f"{figures}.find((f) => f.querySelector('strong').textContent === {title!r})"
    return tab.evaluate(f"[...{chosen}.querySelectorAll('path.run')].map((path) => path.getAttribute('d'))")


def table(tab: Tab, place: str) -> dict[str, list[str]]:
    """The cells of a table by the names of its rows."""
    rows = f"[...document.querySelectorAll('#{place} tbody tr')]"
    cells = tab.evaluate(f"{rows}.map((row) => [...row.children].map((cell) => cell.textContent))")
    return {name.removeprefix("≠ "): values for name, *values in cells}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[ws.TrainHistory]]:
    folder = tmp_path_factory.mktemp("runs")
    folders = [folder / "plain", folder / HOSTILE]
    optimizers = [ws.SGD(lr=0.1), ws.SGD(lr=0.4)]
    return folders, [trained(f, o) for f, o in zip(folders, optimizers, strict=True)]


@in_browser
def test_two_runs_are_compared(runs: Any, tmp_path: Path) -> None:
    folders, histories = runs
    code, text = report(*folders, "-o", tmp_path / "report.html")
    assert code == 0, text
    assert "bytes; open it in a browser" in text
    with ready(tmp_path / "report.html", tmp_path) as tab:
        assert tab.evaluate("document.title") == "2 runs · Wholestep"
        assert tab.evaluate("document.querySelectorAll('script').length") == 2
        names = tab.evaluate("[...document.querySelectorAll('#runs label')].map((e) => e.textContent)")
        assert names == [folder.name for folder in folders]
        for name in ("loss", "val_loss", "val_accuracy", "lr"):
            cells = [float(cell.split()[0]) for cell in table(tab, "summary")[name]]
            assert cells == pytest.approx([history[name][-1] for history in histories], rel=1e-3)
        for history, cell in zip(histories, table(tab, "summary")["val_accuracy"], strict=True):
            best = max(history["val_accuracy"])
            epoch = history["val_accuracy"].index(best) + 1
            assert cell.endswith("(best)" if history["val_accuracy"][-1] == best else f"in epoch {epoch})")
        assert table(tab, "settings") == {"optimizer.lr": ["0.1", "0.4"]}
        tab.click("#differences")
        assert table(tab, "settings")["batch_size"] == ["32", "32"]
        assert table(tab, "environment")["wholestep"] == [ws.__version__] * 2
        assert tab.text("#checkpoints").count("step-000000") == sum(len(list(f.glob("step-*"))) for f in folders)
        matrices = tab.evaluate("[...document.querySelectorAll('#matrix caption')].map((e) => e.textContent)")
        assert f"{HOSTILE}: Validation confusion matrix" in matrices
        assert_curves_follow_the_controls(tab)


def assert_curves_follow_the_controls(tab: Tab) -> None:
    plain = lines(tab, "Loss")
    assert [path.count("L") for path in plain] == [2] * 4  # training and validation of both
    assert [path.count("L") for path in lines(tab, "Learning rate")] == [2] * 2
    tab.fill("#smoothing", 0.9)
    assert tab.text("#smoothed") == "0.90"
    assert not set(plain) & set(lines(tab, "Loss"))
    tab.fill("#smoothing", 0)
    tab.click("#log")
    assert not set(plain) & set(lines(tab, "Loss"))
    tab.click("#log")
    assert lines(tab, "Loss") == plain
    tab.fill("#from", 2)
    assert [path.count("L") for path in lines(tab, "Loss")] == [1] * 4
    tab.fill("#to", 2)
    assert [path.count("L") for path in lines(tab, "Loss")] == [1] * 4  # at least two epochs
    tab.fill("#from", 0)
    assert [path.count("L") for path in lines(tab, "Loss")] == [1] * 4  # epochs 1 and 2
    tab.fill("#to", "")
    assert lines(tab, "Loss") == plain
    tab.evaluate("document.querySelector('#runs input').focus()")
    tab.press("Space")
    assert len(lines(tab, "Loss")) == 2
    assert table(tab, "summary")["epochs"] == ["3"]
    tab.press("Space")
    assert lines(tab, "Loss") == plain


def rewrite(checkpoint: Path, **changes: object) -> None:
    """Change a manifest, with a checksum that fits."""
    (checkpoint / MANIFEST).write_bytes(manifest_bytes({**read_manifest(checkpoint), **changes}))


@in_browser
def test_what_runs_have_written_changes_nothing(tmp_path: Path) -> None:
    """Names with markup, huge and missing numbers, deep settings, damaged checkpoints."""
    trained(tmp_path / "run", ws.SGD(lr=0.1))
    newest = max((tmp_path / "run").glob("step-*"))
    logs = {HOSTILE: 1e308, "__proto__": 1.0, "constructor": -1e308, "val_loss": float("nan"), "huge": 10**30}
    epochs = [{"epoch": i, "avg_loss": 0.5 * i, "steps": 1, "logs": logs, "partial": False} for i in range(5000)]
    deep: Any = HOSTILE
    for _ in range(80):
        deep = {"deeper": deep}
    config = {"<b>": deep, "modes": {HOSTILE: "min"}, "long": "a" * 10_000}
    rewrite(newest, history={"stopped_by": HOSTILE, "epochs": epochs}, config=config)
    broken = tmp_path / "run" / "step-00009999"
    broken.mkdir()
    (broken / MANIFEST).write_text('{"format": "wholestep checkpoint", "ver')
    page = write_report([tmp_path / "run"], tmp_path / "report.html")
    with ready(page, tmp_path) as tab:
        assert tab.evaluate("document.title") == "run · Wholestep"
        assert table(tab, "summary")["epochs"] == ["5,000"]
        assert table(tab, "summary")["stopped by"] == [HOSTILE]
        assert "is damaged: manifest.json cannot be read" in tab.text("#checkpoints")
        assert 500 < lines(tab, "Loss")[0].count("L") <= 2000  # a part of the points, the greatest among them
        assert tab.evaluate("document.querySelector('#settings b') === null")
        assert len(table(tab, "settings")["long"][0]) < 400


def test_a_report_says_what_it_cannot_read(tmp_path: Path) -> None:
    code, text = report(tmp_path, "-o", tmp_path / "report.html")
    assert code == 1
    assert f"there is no checkpoint in {tmp_path}; expected the folder of a run, like runs/digits" in text
    for number in (1, 2):
        (tmp_path / f"step-0000000{number}").mkdir()
    code, text = report(tmp_path)
    assert code == 1
    assert "is intact: " in text
    assert text.count("is not a checkpoint: there is no manifest.json in it") == 2
    assert not list(tmp_path.glob("*.html"))


def test_a_checkpoint_in_one_file_is_a_run(tmp_path: Path) -> None:
    history = {"stopped_by": "", "epochs": [{"epoch": 0, "avg_loss": 1.5, "steps": 2, "logs": {}, "partial": False}]}
    run = {"position": {"epoch": 1, "step": 0, "loss_sum": 0.0, "rows": 0}, "history": history}
    arrays = {"session/step": np.array(2), "session/epoch": np.array(1)}
    save_file(arrays, tmp_path / "page.safetensors", {"wholestep.run": json.dumps(run)})
    page = write_report([tmp_path / "page.safetensors"], tmp_path / "report.html")
    assert '"series": {"loss": [[1], [1.5]]}' in page.read_text(encoding="utf-8")
    with pytest.raises(ws.errors.CheckpointError, match=r"could not be written to .*name a folder"):
        write_report([tmp_path / "page.safetensors"], tmp_path / "page.safetensors" / "report.html")


@in_browser
@pytest.mark.long
def test_a_report_fits_its_window(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    for name, optimizer in (("sgd", ws.SGD(lr=0.1)), ("adam", ws.Adam(lr=0.01)), ("lion", ws.Lion(lr=0.001))):
        trained(tmp_path / name, optimizer, epochs=25)
    page = write_report([tmp_path / name for name in ("sgd", "adam", "lion")], tmp_path / "report.html")
    with ready(page, tmp_path) as tab:
        for size, (width, height) in SIZES.items():
            for dark in (False, True):
                tab.resize(width, height, dark)
                name = f"report-{size}-{'dark' if dark else 'light'}.png"
                tab.screenshot(tmp_path / f"whole-{name}")
                tab.screenshot(tmp_path / name, whole=False)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                assert tab.evaluate(CUT) == []
                if pytestconfig.getoption("update_golden") and (IMAGES / f"page-{name}").exists():
                    keep(tmp_path / name, IMAGES / f"page-{name}")
