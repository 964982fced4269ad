"""A line at the terminal while a build takes long: what is being done, and for how long already."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TextIO

from wholestep.compiler.spans import Spans

PATIENCE = 2.0  # seconds before anything is shown
EVERY = 0.5
# span -> what a user calls it; any other is part of planning
WORDS = {"gcc": "compiling", "nvrtc": "compiling", "self_check": "checking the numbers", "device_init": "making room"}


@contextmanager
def show_build_progress(spans: Spans) -> Iterator[None]:
    """Around a build; standard error that is no terminal is left alone."""
    if not sys.stderr.isatty():
        yield
        return
    done = Event()
    line = Thread(target=_draw, args=(spans, done, sys.stderr), daemon=True)
    line.start()
    try:
        yield
    finally:
        done.set()
        line.join()


def _draw(spans: Spans, done: Event, terminal: TextIO) -> None:
    began = time.perf_counter()
    if done.wait(PATIENCE):
        return
    while not done.is_set():
        doing = WORDS.get(spans.all[-1].name, "planning") if spans.all else "planning"
        terminal.write(f"\rbuilding the step: {doing}, {time.perf_counter() - began:.0f} s\x1b[K")
        terminal.flush()
        done.wait(EVERY)
    terminal.write("\r\x1b[K")
    terminal.flush()
