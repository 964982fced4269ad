"""Finds the line of user code that changes a value, reads a clock, or fails."""

from __future__ import annotations

import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch

from wholestep.compiler.ir.graph import SourceLine

_LIBRARIES = (
    *(str(Path(str(m.__file__)).parent) + "/" for m in (torch, np, sympy)),
    str(Path(__file__).parents[2]) + "/",
)
_STANDARD = str(Path(random.__file__).parent) + "/"
_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")


def is_user_file(name: str) -> bool:
    """Is a file user code, that is, not part of torch, its dependencies, Python or this library?"""
    standard = name.startswith(_STANDARD) and "site-packages" not in name
    return not (name.startswith((*_LIBRARIES, "<")) or standard)


def failing_line(error: BaseException) -> SourceLine | None:
    """The innermost line of user code that an error passed through."""
    line, step = None, error.__traceback__
    while step is not None:
        if is_user_file(step.tb_frame.f_code.co_filename):
            line = SourceLine(step.tb_frame.f_code.co_filename, step.tb_lineno)
        step = step.tb_next
    return line


def calling_line() -> SourceLine | None:
    """The innermost line of user code that is being executed."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno)


@contextmanager
def watched_clocks() -> Iterator[dict[str, SourceLine]]:
    """The functions of `time` that user code calls, and `np.random.default_rng`, each with the line."""
    seen: dict[str, SourceLine] = {}
    places = [(time, name) for name in _CLOCKS] + [(np.random, "default_rng")]
    originals = [getattr(holder, name) for holder, name in places]

    def record_calls(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            frame = sys._getframe(1)
            if is_user_file(frame.f_code.co_filename):
                seen.setdefault(name, SourceLine(frame.f_code.co_filename, frame.f_lineno))
            return function(*args, **named)

        return call

    for (holder, name), function in zip(places, originals):
        setattr(holder, name, record_calls(f"{holder.__name__.replace('numpy', 'np')}.{name}()", function))
    try:
        yield seen
    finally:
        for (holder, name), function in zip(places, originals):
            setattr(holder, name, function)


@contextmanager
def watched_lines(read: Callable[[], dict[Any, object]]) -> Iterator[dict[Any, SourceLine]]:
    """The user's line that changed each of the values that `read` returns."""
    lines: dict[Any, SourceLine] = {}
    values, last = read(), SourceLine("", 0)

    def look(frame: types.FrameType, event: str, _: object) -> Any:
        nonlocal values, last
        if not is_user_file(frame.f_code.co_filename):
            return None
        now = read()
        for key in now:
            if now[key] != values.get(key):
                lines[key] = last
        values, last = now, SourceLine(frame.f_code.co_filename, frame.f_lineno)
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield lines
    finally:
        sys.settrace(before)
        for key, value in read().items():
            if value != values.get(key):
                lines[key] = last
