"""Reads the event log of a profiled build: which kernel ran on which thread, from when to when."""

from __future__ import annotations

import ctypes
from ctypes import c_int64
from dataclasses import dataclass
from pathlib import Path

from wholestep import platforms
from wholestep.compiler.runtime.threads import MAX_THREADS

ROOM = 1 << 16  # events per thread between two calls of `take`


class NativeEvent(ctypes.Structure):
    _fields_ = (("kernel", c_int64), ("begin", c_int64), ("end", c_int64))


class NativeLog(ctypes.Structure):
    """`ws_event_log` of native/profile.h, which is aligned, hence padded, to 64 bytes."""

    _fields_ = (
        ("events", ctypes.POINTER(NativeEvent)),
        ("room", c_int64),
        ("count", c_int64),
        ("padding", ctypes.c_char * 40),
    )


@dataclass(frozen=True)
class KernelEvent:
    """A kernel, or the wait at a barrier (kernel -1), on one thread or GPU; seconds of `time.perf_counter`'s clock."""

    kernel: int
    thread: int
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class KernelLog:
    """The event logs of a profiled shared object."""

    row = "thread"  # events are listed per thread

    def __init__(self, path: Path, threads: int) -> None:
        self._logs = (NativeLog * MAX_THREADS).in_dll(platforms.load_code(path), "ws_events")
        self._rooms = [(NativeEvent * ROOM)() for _ in range(threads)]

    def clear(self) -> None:
        """Discard all events and start recording."""
        for log, room in zip(self._logs, self._rooms, strict=False):
            log.events, log.room, log.count = room, ROOM, 0

    def take(self) -> list[KernelEvent]:
        """The events since `clear`; stops recording."""
        events = []
        for thread, (log, room) in enumerate(zip(self._logs, self._rooms, strict=False)):
            events += [KernelEvent(e.kernel, thread, 1e-9 * e.begin, 1e-9 * e.end) for e in room[: log.count]]
            log.room = log.count = 0
        return events
