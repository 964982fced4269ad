"""The progress bar: one redrawn line in a terminal, a permanent line per epoch, no work to determine its length."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.callbacks import progress
from wholestep.callbacks.run import Position, Run


class Screen(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


def a_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    shown = Screen()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return shown


def begun(epochs: int = 2, steps: int | None = 8) -> ws.Progress:
    session: Any = type("Held", (), {"peak_bytes": 2_500_000})()
    bar = ws.Progress()
    bar.run = Run(session, epochs, steps)
    bar.on_train_begin()
    bar.on_epoch_begin(0)
    return bar


def test_a_terminal_sees_a_bar_with_loss_speed_time_left_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_screen(monkeypatch)
    bar = begun()
    bar.on_slice(2, 0.25)
    drawn = screen.getvalue()
    for part in ("epoch 1/2", "━", "2/8", "steps/s", "left", "loss 0.2500", "2.5 MB"):
        assert part in drawn
    bar.on_train_end()


def test_a_bar_shows_metrics_rates_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_screen(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    bar = begun()
    assert bar.run is not None
    reads: list[int] = []

    def read() -> Any:
        reads.append(1)
        return {"accuracy": 0.75, "lr": 0.001, "confusion_matrix": [[1.0, 0.0], [0.0, 1.0]]}

    monkeypatch.setattr(progress, "SHARE", 1e12)  # reading may take all of the time
    bar.run.numbers, bar.run.position = read, Position(0, 2, 1.0, 64)
    bar.on_slice(2, 0.25)
    drawn = screen.getvalue()
    assert "loss 0.2500  accuracy 0.7500  lr 0.001" in drawn
    assert "samples/s" in drawn
    assert "confusion" not in drawn
    monkeypatch.setattr(progress, "SHARE", 1e-12)  # as if reading had taken very long
    bar.on_slice(1, 0.25)
    bar.on_slice(1, 0.25)
    assert len(reads) == 2
    bar.on_train_end()


def test_a_long_epoch_has_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    bar = begun()
    bar.seconds = 1e-9
    bar.on_slice(2, 0.25)
    bar.on_validation(0, 2, {"val_loss": 0.5})
    lines = shown.getvalue().splitlines()
    assert lines[0].startswith("epoch 1/2  2/8  ")
    assert "left  loss 0.2500  " in lines[0]
    assert lines[1] == "epoch 1/2  step 2  val_loss 0.5000"
    with pytest.raises(ws.errors.OptionError, match="Progress: seconds must be a number above 0, or None; received 0"):
        ws.Progress(seconds=0)


def test_fit_says_how_much_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((64, 2), np.float32)
    monkeypatch.setattr(progress, "LINES", 1e-9)
    settings: dict[str, Any] = {"loss": "mse", "metrics": ["mae"], "epochs": 2, "batch_size": 8, "device": "reference"}
    for asked, lines in ((False, 0), ("epochs", 2), ("bar", 2)):
        ws.fit(ws.nn.Linear(2, 1), (x, x[:, :1]), progress=asked, **settings)
        shown = [line for line in capsys.readouterr().err.split("\n") if "mae " in line and "samples/s)" in line]
        assert len(shown) == lines, asked
    with pytest.raises(ws.errors.OptionError, match="progress='no': expected True, False, 'bar', 'lines' or 'epochs'"):
        ws.fit(ws.nn.Linear(2, 1), (x, x[:, :1]), progress="no", **settings)


def test_an_epoch_leaves_a_line_whatever_its_names_look_like(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_screen(monkeypatch)
    bar = begun()
    bar.on_slice(8, 0.25)
    bar.on_epoch_end(0, {"loss": 0.5, "[red]": 1.0})
    assert "epoch 1/2  loss 0.5000  [red] 1.0000  (" in screen.getvalue()
    bar.on_train_end()


def test_data_without_a_length_has_no_bar_and_no_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_screen(monkeypatch)
    bar = begun(steps=None)
    bar.on_slice(3, 0.25)
    drawn = screen.getvalue()
    assert "epoch 1/2 3  " in drawn
    assert "━" not in drawn
    assert "left" not in drawn
    bar.on_train_end()


def test_elsewhere_there_are_lines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    bar = begun(epochs=1)
    bar.on_slice(8, 0.25)
    bar.on_epoch_end(0, {"loss": 0.5})
    bar.on_train_end()
    assert shown.getvalue().startswith("epoch 1/1  loss 0.5000  (")
    assert shown.getvalue().count("\n") == 1


def test_the_length_of_a_loader_needs_no_order() -> None:
    class Counting(ws.data.Shuffled):
        def rows(self, seed: int, epoch: int, count: int) -> Any:
            raise AssertionError("an order was made")

    loader = ws.DataLoader(np.zeros((10, 2), np.float32), np.zeros(10, np.int32), 4, sampler=Counting())
    assert len(loader) == 3
    loader.seek(3, 2)
    assert (loader.epoch, loader.position) == (3, 2)
