"""One writer per checkpoint folder: a kernel lock on `<folder>/.lock`, which ends when its process ends.

The file contains the name of the process that holds the lock, for the error of others.  Its text locks nothing: after a
crash it is harmless.  Readers take no lock.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import socket
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from wholestep import platforms
from wholestep.errors import CheckpointError, TrainingWarning
from wholestep.options import read_launch

LOCK = ".lock"
REFUSED = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)  # another process holds the lock
RESTART_SECONDS = 10.0  # how long a restarted job waits for the end of the process that it replaces
POLL_SECONDS = 0.05
READS = 5  # attempts to read the holder's name, which is written just after the lock is acquired


class Owner:
    """Identifies a run for a lock without callbacks."""


@dataclass
class _Lock:
    descriptor: int
    owner: weakref.ref[object]
    users: int = 1


_locks: dict[Path, _Lock] = {}  # the locks that this process holds
_guard = RLock()  # reentrant: a finalizer may run in the thread that holds it
_warned: set[Path] = set()


class FolderLock:
    """A lock on a checkpoint folder until `release`; CheckpointError if another run holds it.

    Args:
        folder: the folder of the run, which exists.
        owner: callbacks with the same owner share the lock.  It is released when the owner is collected, too.
    """

    def __init__(self, folder: Path, owner: object) -> None:
        self.folder, self._released = folder.resolve(), False
        with _guard:
            if (lock := _locks.get(self.folder)) is not None and lock.owner() is not owner:
                gc.collect()  # the previous owner may be a loop that was left without callbacks.on_train_end()
            lock = _locks.get(self.folder)
            if lock is None:
                lock = _locks[self.folder] = _Lock(_acquire(folder), weakref.ref(owner))
                weakref.finalize(owner, _unlock, self.folder, lock).atexit = False
            elif lock.owner() is owner:
                lock.users += 1
            else:
                raise CheckpointError(
                    f"another run of this process is writing checkpoints to {folder}. {_advice(folder)} A training "
                    "loop of your own ends its run with callbacks.on_train_end()."
                )

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        with _guard:
            lock = None if self._released else _locks.get(self.folder)
            self._released = True
            if lock is not None:
                lock.users -= 1
                if not lock.users:
                    _unlock(self.folder, lock)


@contextmanager
def brief_lock(folder: Path) -> Iterator[None]:
    """The lock for one manual checkpoint; a run of the same process may hold it already."""
    if folder.resolve() in _locks:
        yield
        return
    owner = Owner()
    lock = FolderLock(folder, owner)
    try:
        yield
    finally:
        lock.release()


def need_free(folder: Path) -> None:
    """Raise CheckpointError if another run has locked a folder, which need not exist."""
    if (folder / LOCK).is_file():
        owner = Owner()
        FolderLock(folder, owner).release()


# -- the lock of the kernel ----------------------------------------------------------------------------------------


def _acquire(folder: Path) -> int:
    """A descriptor of the lock file, locked; it is closed on exec, and in forked children."""
    descriptor = _open(folder / LOCK)
    launch = read_launch()
    deadline = time.monotonic() + (RESTART_SECONDS if launch is not None and launch.attempt else 0.0)
    while True:
        try:
            platforms.lock_file(descriptor)
        except OSError as error:
            if error.errno not in REFUSED:
                _warn_unprotected(folder, error)
                return descriptor
            if time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                continue
            holder = _read_holder(descriptor)
            os.close(descriptor)
            raise CheckpointError(
                f"{holder} is writing checkpoints to {folder}: two runs would remove each other's. {_advice(folder)}"
            ) from None
        _write_holder(descriptor)
        return descriptor


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # a file of another user in a shared folder can be locked without write permission
        return os.open(path, os.O_RDONLY)


def _unlock(folder: Path, lock: _Lock) -> None:
    with _guard:
        if _locks.get(folder) is lock:
            del _locks[folder]
            with suppress(OSError):  # a child that is being forked would keep the lock if the file were only closed
                platforms.unlock_file(lock.descriptor)
            os.close(lock.descriptor)


def _forget() -> None:
    """In a forked child: close the locks, which belong to the parent and must not outlive it."""
    global _guard
    _guard = RLock()
    for lock in _locks.values():
        with suppress(OSError):
            os.close(lock.descriptor)
    _locks.clear()


platforms.after_fork(_forget)


def _write_holder(descriptor: int) -> None:
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join(sys.argv)[:200],
    }
    with suppress(OSError):  # on a full disk the lock works without a name
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps(holder).encode())


def _read_holder(descriptor: int) -> str:
    """`process 4711 on host node7 (train.py), since 2026-01-31 12:00:00,`"""
    for _ in range(READS):
        try:
            os.lseek(descriptor, 0, os.SEEK_SET)
            holder = json.loads(os.read(descriptor, 4096))
            command = f" ({holder['command']})" if holder["command"] else ""
            return f"process {holder['pid']} on host {holder['host']}{command}, since {holder['since']},"
        except (OSError, ValueError, KeyError, TypeError):
            time.sleep(POLL_SECONDS)
    return "another process"


def _advice(folder: Path) -> str:
    return (
        f"Wait until it has ended, or give this run a folder of its own. Reading {folder} is allowed: "
        f"ws.load_checkpoint({str(folder)!r})."
    )


def _warn_unprotected(folder: Path, error: OSError) -> None:
    if folder.resolve() not in _warned:
        _warned.add(folder.resolve())
        warnings.warn(
            f"{folder} cannot be locked ({error.strerror}): its file system has no locks. Make sure that no other run "
            "writes checkpoints there; they would remove each other's.",
            TrainingWarning,
            stacklevel=2,
        )
