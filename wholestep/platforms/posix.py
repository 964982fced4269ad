"""What Linux and macOS share."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctypes import CDLL


def physical_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


def map_memory(size: int) -> mmap.mmap:
    """The mapping is private, so that a forked child does not write into its parent's parameters."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def lock_file(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock_file(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_folder(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        lock_file(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


def is_open_to_others(status: os.stat_result) -> bool:
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def ending_signals() -> tuple[signal.Signals, ...]:
    """SIGHUP: the terminal was closed."""
    return signal.SIGINT, signal.SIGTERM, signal.SIGHUP


def after_fork(function: Callable[[], None]) -> None:
    os.register_at_fork(after_in_child=function)


def load_code(path: Path) -> CDLL:
    from ctypes import CDLL

    return CDLL(os.fspath(path))
