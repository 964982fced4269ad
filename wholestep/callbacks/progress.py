"""Progress: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from wholestep.callbacks.base import Callback
from wholestep.callbacks.run import Logs

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

REFRESH = 0.25  # seconds: a drawing takes half a millisecond, and nothing is trained meanwhile
WIDTH = 30  # of the bar, in characters


def numbers(logs: Logs) -> str:
    """`loss 0.1234  accuracy 0.9876`; what is no single number is in the history."""
    return "  ".join(f"{name} {short(name, value)}" for name, value in logs.items() if not isinstance(value, list))


def short(name: str, value: float) -> str:
    """`0.1234`; learning rates, which are small, with three digits that count."""
    return f"{value:.3g}" if name == "lr" else f"{value:.4f}"


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

    tolerant = True

    def __init__(self, bar: bool | None = None) -> None:
        self.bar = sys.stderr.isatty() if bar is None else bar
        self._live: Live | None = None
        self._began = self._shown = 0.0
        self._epoch = self._steps = 0
        self._memory = ""

    def on_train_begin(self) -> None:
        session = self.run.session if self.run is not None else None
        if self.run is not None and self.run.schedules:
            sys.stderr.write(self.run.schedules + "\n")
        if self.bar and session is not None:
            self._memory = f"{session.peak_bytes / 1e6:,.1f} MB"
            self._live = _make_live()
            self._live.start()

    def on_epoch_begin(self, epoch: int) -> None:
        self._began, self._epoch, self._steps = time.monotonic(), epoch, 0

    def on_slice(self, steps: int, loss: float) -> None:
        self._steps += steps
        now = time.monotonic()
        if self._live is None or now - self._shown < REFRESH:
            return
        self._live.update(self._line(now - self._began, loss), refresh=True)
        self._shown = now

    def _line(self, spent: float, loss: float) -> Text:
        """One piece of text: a table of rich columns takes seven times as long, more than a small network's step."""
        from rich.text import Text

        total = self.run.steps_per_epoch if self.run is not None else None
        line = Text(self._name(self._epoch), no_wrap=True, overflow="ellipsis")
        if total:
            filled = WIDTH * self._steps // total
            line.append(" ").append("━" * filled, "cyan").append("━" * (WIDTH - filled), "bright_black")
        line.append(f" {self._steps}/{total}" if total else f" {self._steps}")
        line.append(f"  {self._steps / max(spent, 1e-9):,.0f} steps/s  ")
        if total:
            line.append(f"{duration(spent * (total - self._steps) / max(self._steps, 1))} left  ", "cyan")
        return line.append(f"loss {loss:.4f}  {self._memory}")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        spent = time.monotonic() - self._began
        line = f"{self._name(epoch)}  {numbers(logs)}  ({duration(spent)}{self._rate(spent)})"
        if self._live is not None:
            self._shown = time.monotonic()  # short epochs have their lines and no bar
            self._live.console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def _name(self, epoch: int) -> str:
        return f"epoch {epoch + 1}" + (f"/{self.run.epochs}" if self.run is not None and self.run.epochs else "")

    def _rate(self, spent: float) -> str:
        return f", {self._steps / spent:,.0f} steps/s" if self._steps and spent > 0 else ""

    def on_train_end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self.run is not None and self.run.stopped_by:
            sys.stderr.write(f"stopped: {self.run.stopped_by}\n")


def _make_live() -> Live:
    """A line that is redrawn when it is told to: a thread that does so would take a core from the step."""
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(file=sys.stderr), auto_refresh=False, transient=True)
