"""Progress in a notebook: the curves of the run so far, redrawn in place, with the numbers of the current epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import Any

from wholestep.callbacks.progress import Progress

REFRESH = 0.5  # seconds between two drawings; a drawing of a hundred epochs takes some milliseconds


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
        self._handle: Any = None  # of the drawing that is replaced

    def on_slice(self, steps: int, loss: float) -> None:
        self._steps += steps
        self._samples = self._rows_done - self._rows
        now = time.monotonic()
        if now - self._shown >= REFRESH:
            running = self._running_line(now - self._began, loss)
            self._draw(f"{self._name(self._epoch)}  {self._finished_line()}  {running}")

    def on_epoch_begin(self, epoch: int) -> None:
        shown = self._shown
        super().on_epoch_begin(epoch)
        self._shown = shown  # short epochs do not postpone the next drawing

    def _keep(self, line: str) -> None:
        self._status = line
        if time.monotonic() - self._shown >= REFRESH:
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
