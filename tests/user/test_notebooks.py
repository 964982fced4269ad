"""Results in notebooks: small HTML in which every text is escaped, and a chart that is redrawn while a run goes on."""

from __future__ import annotations

import ast
import json
import sys
import types
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.callbacks.progress import LiveChart, Progress
from wholestep.callbacks.run import EpochStats
from wholestep.train.experiment import _progress

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"
ALLOWED = {
    "details", "summary", "pre", "table", "caption", "thead", "tbody", "tr", "th", "td", "p", "div",
    "svg", "g", "rect", "path", "text", "polyline", "polygon",
}  # fmt: skip


class Reader(HTMLParser):
    """The elements of a text, and whether each that was opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        assert not [name for name, _ in attrs if name.startswith("on")]
        self.names.append(tag)
        if tag not in ("rect", "path", "polyline", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("rect", "path", "polyline", "polygon"):
            return
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(value: Any, most: int = 60_000) -> Reader:
    """The HTML of a value, checked."""
    html = value._repr_html_()
    assert len(html) < most
    reader = Reader(html)
    assert reader.open == []
    return reader


@pytest.fixture
def session() -> ws.Session:
    specs = {"inputs": {"x": ws.Spec(("batch", 8))}, "targets": ws.Spec(("batch",), "int32")}
    return ws.build_session(ws.nn.Linear(8, 3), **specs, loss="cross_entropy", optimizer=ws.SGD(), batch_size=16)


def test_results_of_a_session(session: ws.Session) -> None:
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(16, 8)).astype(np.float32), "labels": rng.integers(0, 3, 16).astype(np.int32)}
    profile = session.profile(batch)
    for value in (session.report(), profile, session.explain("weight.grad"), session.optimization()):
        text = shown(value).text
        assert str(value).splitlines()[0] in text
    by_layer = profile.by_layer()
    assert all(row.layer in shown(by_layer).text for row in by_layer)


def test_results_of_a_model() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(64, 12), ws.nn.ReLU(), ws.nn.Linear(12, 10))
    summary = model.summary(ws.Spec(("batch", 64)))
    reader = shown(summary)
    assert f"{summary.parameters:,}" in reader.text
    assert reader.names.count("tr") == len(summary.rows) + 2
    specs = {"inputs": {"x": ws.Spec(("batch", 64))}, "targets": ws.Spec(("batch",), "int32")}
    estimate = ws.estimate(model, **specs, loss="cross_entropy", batch_size=32)
    assert f"{estimate.peak_bytes:,}" in shown(estimate).text


def test_names_of_others_are_text() -> None:
    epochs = [EpochStats(i, 0.5 / (1 + i), 1, {HOSTILE: 1.0 * i, "loss": 0.5 / (1 + i)}) for i in range(10_000)]
    reader = shown(ws.TrainHistory(epochs))
    assert HOSTILE in reader.text
    assert reader.names.count("polyline") == 2
    shown(ws.TrainHistory())
    shown(ws.TrainHistory([EpochStats(0, float("nan"), 1, {"loss": float("nan")})]))


class Handle:
    """What `display(..., display_id=True)` returns."""

    def __init__(self) -> None:
        self.drawings: list[Any] = []

    def update(self, drawing: Any) -> None:
        self.drawings.append(drawing)


class Kernel:
    """IPython as far as we ask it, with or without the kernel of a notebook."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kernel: bool) -> None:
        self.handles: list[Handle] = []
        ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        shell = types.SimpleNamespace(kernel=object()) if kernel else types.SimpleNamespace()
        ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
        display.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, drawing: Any, display_id: bool = False) -> Handle:
        assert display_id
        self.handles.append(Handle())
        self.handles[-1].update(drawing)
        return self.handles[-1]


def test_a_kernel_draws_the_curves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = Kernel(monkeypatch, kernel=True)
    monkeypatch.setattr("wholestep.callbacks.progress.CHART_REFRESH", 0.0)
    x, y = ws.datasets.digits()
    history = ws.fit(
        ws.nn.Linear(64, 10), (x[:200], y[:200]), validation=0.2, loss="cross_entropy", epochs=4, device="reference"
    )
    (handle,) = kernel.handles
    assert len(handle.drawings) >= 5  # during epochs, after each, at the end
    for drawing in handle.drawings:
        shown(drawing)
    last = handle.drawings[-1]
    assert f"{history['val_loss'][-1]:.4f}" in repr(last)
    assert shown(last).names.count("polyline") == len(history.names)
    assert "epoch" not in capsys.readouterr().err  # no lines in addition to the chart


def test_elsewhere_progress_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(_progress(True)) is Progress
    Kernel(monkeypatch, kernel=False)  # the shell of a terminal
    assert type(_progress(True)) is Progress
    Kernel(monkeypatch, kernel=True)
    assert type(_progress(True)) is LiveChart
    assert type(_progress("lines")) is Progress


def test_a_chart_that_cannot_be_drawn_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, kernel=True)
    monkeypatch.setattr("wholestep.callbacks.progress.CHART_REFRESH", 0.0)
    monkeypatch.setattr(Handle, "update", lambda handle, drawing: 1 / 0)
    x, y = ws.datasets.digits()
    history = ws.fit(ws.nn.Linear(64, 10), (x[:64], y[:64]), loss="cross_entropy", epochs=2, device="reference")
    assert len(history) == 2
    assert kernel.handles


NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


def cells(notebook: Path) -> list[str]:
    """The code of a notebook, which is stored without results."""
    stored = json.loads(notebook.read_text(encoding="utf-8"))
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]
    return ["".join(cell["source"]) for cell in code]


@pytest.mark.long
@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of nbclient where it is installed; else cell by cell, with the value of the last line displayed."""
    try:
        import nbclient
        import nbformat
    except ImportError:
        Kernel(monkeypatch, kernel=True)
        names: dict[str, Any] = {}
        for cell in cells(notebook):
            tree = ast.parse(cell)
            if isinstance(last := tree.body[-1], ast.Expr):
                tree.body[-1] = ast.Assign([ast.Name("_", ast.Store())], last.value)
            exec(compile(ast.fix_missing_locations(tree), notebook.name, "exec"), names)
            if hasattr(names.get("_"), "_repr_html_"):
                shown(names["_"])
        return
    nbclient.NotebookClient(nbformat.read(notebook, 4), timeout=600).execute()
