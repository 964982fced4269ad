"""Progress: a bar in a terminal, curves in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.run import Logs, is_detail
from wholestep.errors import OptionError

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

REFRESH = 0.25  # seconds between two redraws; a redraw takes half a millisecond, during which no step runs
SHARE = 0.005  # the fraction of time that reading metrics may take
LINES = 30.0  # seconds between two progress lines of an epoch if the output is not a terminal
WIDTH = 30  # width of the bar, in characters


def numbers(logs: Logs) -> str:
    """The logs as text, `loss 0.1234  accuracy 0.9876`, without arrays and numbers of single parameters."""
    shown = {n: v for n, v in logs.items() if not isinstance(v, list) and not is_detail(n)}
    return "  ".join(f"{name} {short(name, value)}" for name, value in shown.items())


def short(name: str, value: float) -> str:
    """A number as short text, `0.1234`; learning rates have three significant digits."""
    return f"{value:.3g}" if name == "lr" else f"{value:.4f}"


def duration(seconds: float) -> str:
    """A duration as text: `12 s`, `3:05 min` or `2:10 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


class Progress(Callback):
    """Shows the progress of training: time left, loss, metrics and learning rate, steps and samples a second, memory.

    In a terminal it draws a bar and keeps one line per epoch; elsewhere it prints one line per epoch, and in a long
    epoch one every `seconds`.

    Args:
        bar: draw a bar; None does in a terminal.
        seconds: between two lines inside an epoch where there is no bar; None: one line per epoch and no other.

    Example: `ws.Progress()`; `ws.fit` brings one.
    """

    tolerant = True

    def __init__(self, bar: bool | None = None, seconds: float | None = LINES) -> None:
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise OptionError(f"Progress: seconds must be a number above 0, or None; received {seconds!r}.")
        self.bar, self.seconds = sys.stderr.isatty() if bar is None else bar, seconds
        self._live: Live | None = None
        self._began = self._shown = 0.0
        self._epoch = self._steps = self._rows = self._samples = 0
        self._memory = self._numbers = ""
        self._next_numbers = 0.0  # time at which metrics are read again

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
        self._rows, self._samples, self._numbers, self._next_numbers = self._rows_done, 0, "", 0.0
        if self._live is None:
            self._shown = self._began

    @property
    def _rows_done(self) -> int:
        """The number of rows of this epoch so far, including those before a resume."""
        at = self.run.position if self.run is not None else None
        return at.rows if at is not None and at.epoch == self._epoch else 0

    def on_slice(self, steps: int, loss: float) -> None:
        self._steps += steps
        self._samples = self._rows_done - self._rows
        now = time.monotonic()
        pause = self.seconds if self._live is None else REFRESH
        if pause is None or now - self._shown < pause:
            return
        if self._live is None:
            sys.stderr.write(
                f"{self._name(self._epoch)}  {self._finished_line()}  {self._running_line(now - self._began, loss)}\n"
            )
            sys.stderr.flush()
        else:
            self._live.update(self._line(now - self._began, loss), refresh=True)
        self._shown = now

    def _line(self, spent: float, loss: float) -> Text:
        """The line as one `Text`: a rich table would take seven times as long, more than a step of a small network."""
        from rich.text import Text

        line = Text(self._name(self._epoch), no_wrap=True, overflow="ellipsis")
        if total := self._total:
            filled = WIDTH * self._steps // total
            line.append(" ").append("━" * filled, "cyan").append("━" * (WIDTH - filled), "bright_black")
        return line.append(f" {self._finished_line()}  {self._running_line(spent, loss)}")

    @property
    def _total(self) -> int | None:
        return self.run.steps_per_epoch if self.run is not None else None

    def _finished_line(self) -> str:
        return f"{self._steps}/{self._total}" if self._total else f"{self._steps}"

    def _running_line(self, spent: float, loss: float) -> str:
        """The text during an epoch; the most important parts are first, since lines may be truncated."""
        total = self._total
        left = f"{duration(spent * (total - self._steps) / max(self._steps, 1))} left" if total else ""
        parts = (left, f"loss {loss:.4f}", self._metrics_text(), *self._speeds(spent), self._memory)
        return "  ".join(part for part in parts if part)

    def _metrics_text(self) -> str:
        """Metrics and learning rates, read so rarely that reading takes at most a fraction `SHARE` of the time."""
        read, now = self.run.numbers if self.run is not None else None, time.monotonic()
        if read is not None and now >= self._next_numbers:
            self._numbers = numbers(read())
            ended = time.monotonic()
            self._next_numbers = ended + (ended - now) / SHARE
        return self._numbers

    def _speeds(self, spent: float) -> list[str]:
        """The speed as text: `2,100 steps/s`, and if the number of rows is known, `67,000 samples/s`."""
        counts = {"steps": self._steps, "samples": self._samples}
        return [f"{count / spent:,.0f} {what}/s" for what, count in counts.items() if count > 0 and spent > 0]

    def on_validation(self, epoch: int, step: int, logs: Logs) -> None:
        self._keep(f"{self._name(epoch)}  step {step}  {numbers(logs)}")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        spent = time.monotonic() - self._began
        self._keep(f"{self._name(epoch)}  {numbers(logs)}  ({', '.join([duration(spent), *self._speeds(spent)])})")

    def _keep(self, line: str) -> None:
        """Print a permanent line."""
        if self._live is not None:
            self._shown = time.monotonic()  # short epochs print a line and draw no bar
            self._live.console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def _name(self, epoch: int) -> str:
        return f"epoch {epoch + 1}" + (f"/{self.run.epochs}" if self.run is not None and self.run.epochs else "")

    def on_train_end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self.run is not None and self.run.stopped_by:
            sys.stderr.write(f"stopped: {self.run.stopped_by}\n")


def _make_live() -> Live:
    """A live line without automatic refresh, whose thread would compete with the step for a core."""
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(file=sys.stderr), auto_refresh=False, transient=True)


# -- notebooks -------------------------------------------------------------------------------------------------------
CHART_REFRESH = 0.5  # seconds between two drawings; a drawing of a hundred epochs takes some milliseconds


class Drawing:
    """What a notebook shows: HTML, and text for front ends without it."""

    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return self._text


class LiveChart(Progress):
    """Draws the curves of a run while it goes on; `ws.fit` uses it in a notebook instead of a bar.

    Args:
        display: IPython's `display`.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        super().__init__(bar=False)
        self._display, self._status = display, ""
        self._handle: Any = None  # IPython's handle of the chart, which each update replaces

    def on_slice(self, steps: int, loss: float) -> None:
        self._steps += steps
        self._samples = self._rows_done - self._rows
        now = time.monotonic()
        if now - self._shown >= CHART_REFRESH:
            running = self._running_line(now - self._began, loss)
            self._draw(f"{self._name(self._epoch)}  {self._finished_line()}  {running}")

    def on_epoch_begin(self, epoch: int) -> None:
        shown = self._shown
        super().on_epoch_begin(epoch)
        self._shown = shown  # short epochs do not postpone the next drawing

    def _keep(self, line: str) -> None:
        self._status = line
        if time.monotonic() - self._shown >= CHART_REFRESH:
            self._draw(line)

    def on_train_end(self) -> None:
        stopped = f"; stopped: {self.run.stopped_by}" if self.run is not None and self.run.stopped_by else ""
        self._draw(f"{self._status}{stopped}")

    def _draw(self, status: str) -> None:
        history = self.run.history if self.run is not None else None
        curves = history._repr_html_() if history is not None and history.epochs else ""
        drawing = Drawing(f"<p>{escape(status)}</p>{curves}", status)
        if self._handle is None:
            self._handle = self._display(drawing, display_id=True)
        else:
            self._handle.update(drawing)
        self._shown = time.monotonic()
