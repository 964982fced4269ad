"""Windows: kernel32 by ctypes, and the locks of the C library."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Linux's names of the features that targets need, with the numbers of IsProcessorFeaturePresent.  A processor with AVX2
# has FMA; the system has no number for the parts of AVX-512.
FEATURES = {"avx2": 40, "fma": 40, "asimd": 19}
NORMAL_LOCK = 2  # msvcrt.LK_NBLCK
BELOW_NORMAL = -1


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("physical", "available", "page_file", "free_page_file")),
        *((name, ctypes.c_uint64) for name in ("virtual", "free_virtual", "free_extended_virtual")),
    )


def cores() -> int:
    return os.cpu_count() or 1


def processor_features() -> frozenset[str]:
    return frozenset(name for name, number in FEATURES.items() if _kernel32().IsProcessorFeaturePresent(number))


def processor_name() -> str:
    return os.environ.get("PROCESSOR_IDENTIFIER") or platform.machine()


def physical_bytes() -> int:
    return int(_memory().physical)


def available_bytes() -> int:
    return int(_memory().available)


def memory_limit() -> None:
    """None: the limits of a job object are not read."""


def map_memory(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size)


def lock_file(descriptor: int) -> None:
    """The lock is on one byte far beyond the text, so that others can still read the text."""
    _lock(descriptor, NORMAL_LOCK)


def unlock_file(descriptor: int) -> None:
    _lock(descriptor, 0)


def lock_folder(path: str) -> int:
    """A folder cannot be opened: a file in it is locked."""
    descriptor = os.open(Path(path, ".lock"), os.O_RDWR | os.O_CREAT)
    try:
        lock_file(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_own(status: os.stat_result) -> bool:
    """Folders for temporary files are the user's own."""
    return True


def is_open_to_others(status: os.stat_result) -> bool:
    """The mode of a file has the same bits for everyone; who may write is in its access control list, which a folder
    inherits from the user's own.
    """
    return False


def sync_folder(path: Path) -> None:
    """A folder cannot be opened; its entries are in the journal of the file system."""


def ending_signals() -> tuple[signal.Signals, ...]:
    """SIGBREAK: Ctrl-Break, or the console was closed."""
    return signal.SIGINT, signal.SIGTERM, signal.SIGBREAK  # type: ignore[attr-defined]


def lower_priority() -> None:
    _kernel32().SetThreadPriority(_kernel32().GetCurrentThread(), BELOW_NORMAL)


def after_fork(function: Callable[[], None]) -> None:
    """Processes do not fork."""


def load_code(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(os.fspath(path))


def _lock(descriptor: int, mode: int) -> None:
    import msvcrt

    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, 1 << 30, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, mode, 1)  # type: ignore[attr-defined]
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


def _memory() -> MemoryStatus:
    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    _kernel32().GlobalMemoryStatusEx(ctypes.byref(status))
    return status


def _kernel32() -> Any:
    return ctypes.windll.kernel32  # type: ignore[attr-defined]
