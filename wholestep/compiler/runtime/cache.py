"""A content-addressed store in the user's own cache folder.

An entry is the file `<folder>/<key>/<sha256 of the data><suffix>`: the checksum is in the name, so one atomic rename
publishes both, and a damaged entry is recognised whatever happened to it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

LOCK_SECONDS = 2.0


class CacheWarning(UserWarning):
    """The cache was not used as intended: damaged, foreign or unwritable.  Results are not affected."""


def key_of(*parts: str | bytes) -> str:
    """The key of an entry made from `parts`: equal parts, equal key."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class Cache:
    """Files by key: `put` publishes atomically, `get` returns only what is whole and the user's own."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self._wanted = Path(folder) if folder is not None else _user_folder()
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        """Where entries live: the folder asked for, or a private temporary one (after one warning) if that fails."""
        if self._folder is None:
            self._folder = _usable(self._wanted)
        return self._folder

    def get(self, key: str, suffix: str) -> Path | None:
        """The entry's file, verified against its checksum; None on a miss."""
        return next((path for path in self._entries(key, suffix) if _is_sound(path)), None)

    def put(self, key: str, data: bytes, suffix: str) -> Path:
        """Store `data` and return its file.  A reader sees the whole entry or none."""
        path = self.folder / key / (hashlib.sha256(data).hexdigest() + suffix)
        import tempfile  # a start that finds everything writes nothing

        path.parent.mkdir(mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        return path

    def discard(self, key: str) -> None:
        """Remove the entries stored under a key, and nothing else: the folder and its lock stay."""
        assert key, "an empty key names the whole cache"
        for path in self._entries(key, ""):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Let one process at a time make the entry of `key`.

        After two seconds we go on without the lock: then the work is done twice, which costs time and nothing else.
        """
        import filelock

        entry = self.folder / key
        entry.mkdir(mode=0o700, exist_ok=True)
        lock = filelock.FileLock(entry / ".lock")
        try:
            lock.acquire(timeout=LOCK_SECONDS)
        except filelock.Timeout:
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _entries(self, key: str, suffix: str) -> list[Path]:
        try:
            with os.scandir(self.folder / key) as files:
                names = [file.name for file in files if file.name.endswith(suffix) and not file.name.startswith(".")]
        except FileNotFoundError:
            return []
        return [self.folder / key / name for name in sorted(names)]


def _user_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("wholestep"))


@functools.cache  # a folder is examined, and complained about, once per process
def _usable(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _owned(folder):
            raise PermissionError(f"it belongs to user {folder.stat().st_uid}")
        if stat.S_IMODE(folder.stat().st_mode) != 0o700:
            folder.chmod(0o700)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError("it cannot be written to")
        return folder
    except OSError as error:
        import shutil
        import tempfile

        private = Path(tempfile.mkdtemp(prefix="wholestep-"))
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        warnings.warn(
            f"the cache folder {folder} cannot be used ({error}); this process keeps its compiled code in {private} "
            "and the next one will compile again. Make the folder writable or pass another one.",
            CacheWarning,
            stacklevel=3,
        )
        return private


def _owned(path: Path) -> bool:
    return not hasattr(os, "geteuid") or path.stat().st_uid == os.geteuid()


def _is_sound(path: Path) -> bool:
    try:
        if not _owned(path):
            return _complain(path, "belongs to another user and is not loaded")
        expected = path.name.partition(".")[0]
        if hashlib.sha256(path.read_bytes()).hexdigest() == expected:
            return True
        path.unlink()
    except FileNotFoundError:
        return False  # removed by another process that found it damaged
    return _complain(path, "is damaged; it was removed and will be made again")


def _complain(path: Path, what: str) -> bool:
    warnings.warn(f"cache entry {path} {what}", CacheWarning, stacklevel=5)
    return False
