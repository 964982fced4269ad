"""Temporary folders for compilers; a later build removes the folders of processes that were killed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import cache

from wholestep import platforms

PREFIX = "wholestep-cc-"
MIN_AGE = 60.0  # seconds: a folder that was just created may not be locked yet


@contextlib.contextmanager
def build_folder() -> Iterator[str]:
    """A new folder, locked while it is in use: the system releases a lock when its process ends for any reason."""
    import tempfile

    _remove_abandoned_once()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder, contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # on file systems without locks no other process can lock it either
            held.callback(os.close, platforms.lock_folder(folder))
        yield folder


@cache
def _remove_abandoned_once() -> None:
    remove_abandoned()


def remove_abandoned() -> None:
    """Remove this user's folders that no process has locked."""
    import tempfile

    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with contextlib.suppress(OSError):
                    _remove_unless_locked(entry)


def _remove_unless_locked(entry: os.DirEntry[str]) -> None:
    import shutil

    status = entry.stat(follow_symlinks=False)
    if not platforms.is_own(status) or time.time() - status.st_mtime < MIN_AGE:
        return
    descriptor = platforms.lock_folder(entry.path)
    try:
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(descriptor)
