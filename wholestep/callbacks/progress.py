"""Progress: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from wholestep.callbacks.base import Callback, Logs

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

REFRESH = 0.1  # seconds


def numbers(logs: Logs) -> str:
    """`loss 0.1234  accuracy 0.9876`"""
    return "  ".join(f"{name} {value:.4f}" for name, value in logs.items())


def duration(seconds: float) -> str:
    """`12 s`, `3:05 min` or `2:10 h`"""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


class Progress(Callback):
    """Shows how training goes: steps a second, time left, the loss, memory; one line per epoch stays.

    In a terminal a bar moves; elsewhere each epoch prints one line.  Example: `ws.Progress()`; `ws.fit` brings one.
    """

    def __init__(self, bar: bool | None = None) -> None:
        self.bar = sys.stderr.isatty() if bar is None else bar
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._began = self._shown = 0.0
        self._steps = self._pending = 0

    def on_train_begin(self) -> None:
        if self.bar and self.run is not None:
            self._bar = _make_bar()
            self._bar.start()

    def on_epoch_begin(self, epoch: int) -> None:
        self._began, self._steps, self._pending = time.monotonic(), 0, 0
        if self._bar is not None and self.run is not None:
            label = f"epoch {epoch + 1}/{self.run.epochs}"
            self._task = self._bar.add_task(label, total=self.run.steps_per_epoch, speed="", loss="")

    def on_slice(self, steps: int, loss: float) -> None:
        self._steps += steps
        self._pending += steps
        now = time.monotonic()
        if self._bar is None or self._task is None or now - self._shown < REFRESH:
            return
        speed = f"{self._steps / max(now - self._began, 1e-9):,.0f} steps/s"
        self._bar.update(self._task, advance=self._pending, speed=speed, loss=f"loss {loss:.4f}")
        self._shown, self._pending = now, 0

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        spent = time.monotonic() - self._began
        of = f"/{self.run.epochs}" if self.run is not None else ""
        line = f"epoch {epoch + 1}{of}  {numbers(logs)}  ({duration(spent)}{self._rate(spent)})"
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
            self._bar.console.print(line, highlight=False)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def _rate(self, spent: float) -> str:
        return f", {self._steps / spent:,.0f} steps/s" if self._steps and spent > 0 else ""

    def on_train_end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self.run is not None and self.run.stopped_by:
            sys.stderr.write(f"stopped: {self.run.stopped_by}\n")


def _make_bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
        console=Console(file=sys.stderr),
        transient=True,
        refresh_per_second=10,
    )
