"""Traces for Chrome (chrome://tracing) and Perfetto (ui.perfetto.dev): spans of builds and epochs, and every kernel."""

from __future__ import annotations

import json
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from wholestep.compiler.spans import Span
from wholestep.session.inspect.profile import BARRIER, Profile

PYTHON, NATIVE = 1, 2  # process numbers: rows of the trace are grouped by them


def chrome_trace(spans: Iterable[Span], origin: float, profile: Profile | None = None) -> dict[str, Any]:
    """The trace as a JSON value; times are microseconds since `origin`, which is on `time.perf_counter`'s clock."""
    events = [
        _metadata_event("process_name", "Wholestep", PYTHON, 0),
        _metadata_event("thread_name", "Python", PYTHON, 0),
    ]
    events += [_span(s) for s in spans]
    if profile is not None:
        events.append(_metadata_event("process_name", "kernels", NATIVE, 0))
        events += [_metadata_event("thread_name", name, NATIVE, number) for number, name in profile.rows.items()]
        events += _kernels(profile, origin)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_trace(
    path: str | PathLike[str], spans: Iterable[Span], origin: float, profile: Profile | None = None
) -> None:
    """Write the trace as a file that Chrome and Perfetto open."""
    Path(path).write_text(json.dumps(chrome_trace(spans, origin, profile)), encoding="utf-8")


def _metadata_event(what: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _span(span: Span) -> dict[str, Any]:
    nodes = {"nodes_before": span.nodes_before, "nodes_after": span.nodes_after}
    known = {k: v for k, v in nodes.items() if v is not None}
    return _complete(span.name, "span", 1e6 * span.start, 1e6 * span.seconds, PYTHON, 0, known)


def _kernels(profile: Profile, origin: float) -> list[dict[str, Any]]:
    found = []
    work = {(k.program, k.kernel): {"flops": k.flops, "bytes": k.bytes} for k in profile.kernels}
    for program, e in profile.timeline:
        waits = e.kernel == BARRIER
        name = "barrier" if waits else profile.names[program, e.kernel]
        about = {} if waits else {"kernel": e.kernel, "program": program, **work[program, e.kernel]}
        start, length = 1e6 * (e.begin - origin), 1e6 * e.seconds
        found.append(_complete(name, "wait" if waits else "kernel", start, length, NATIVE, e.thread, about))
    return found


def _complete(
    name: str, category: str, start: float, length: float, process: int, thread: int, about: dict[str, Any]
) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "cat": category, "ts": start, "dur": length, "pid": process, "tid": thread}
    return {**event, "args": about} if about else event
