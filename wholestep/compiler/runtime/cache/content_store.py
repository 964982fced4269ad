"""A content-addressed store in the user's own cache folder.

An entry is the file `<folder>/<key>/<sha256 of the data><suffix>`: the checksum is in the name, so one atomic rename
publishes both, and a damaged entry is recognised whatever happened to it.

Machine code is loaded from here, so nobody else may write here.  A folder that is not there is made for this user
alone; one that is there is never changed.  Where others can write to it, entries lie in a folder of this user's in it;
where it is someone else's, cannot be written or is full, in a temporary folder of this process, after one warning.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import stat
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from wholestep.errors import CacheError
from wholestep.options import CompileOptions

LOCK_SECONDS = 2.0
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
FULL = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
)  # a folder that takes nothing more


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


class ContentStore:
    """Files by key: `put` publishes atomically, `get` returns only what is whole and the user's own."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self._wanted = Path(folder) if folder is not None else _user_folder()

    @property
    def folder(self) -> Path:
        """Where entries live: the folder asked for, one of the user's in it, or a temporary one of this process."""
        return _usable(self._wanted)

    def get(self, key: str, suffix: str) -> Path | None:
        """The entry's file, verified against its checksum; None on a miss."""
        return next((path for path in self._entries(key, suffix) if _is_sound(path)), None)

    def put(self, key: str, data: bytes, suffix: str) -> Path:
        """Store `data` and return its file.  A reader sees the whole entry or none.

        Where the disk is full, this process goes on in a temporary folder; where that is full too, CacheError.
        """
        try:
            return _write(self._entry(key), data, suffix)
        except OSError as error:
            if error.errno not in FULL:
                raise
            problem = error
        try:
            _go_private(self._wanted, problem)
            return _write(self._entry(key), data, suffix)
        except OSError as error:
            raise CacheError(
                f"{len(data):,} bytes could be written neither to {self._wanted} ({problem}) nor to a temporary folder "
                f"({error}). Free some space, or name a folder on another disk: cache_dir= or WHOLESTEP_CACHE_DIR."
            ) from error

    def _entry(self, key: str) -> Path:
        """The folder of a key, made where it is not there; the cache's own may have been removed meanwhile."""
        entry = self.folder / key
        try:
            entry.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            _FOLDERS.pop(self._wanted, None)
            entry = self.folder / key
            entry.mkdir(mode=0o700, exist_ok=True)
        return entry

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

        try:
            lock = filelock.FileLock(self._entry(key) / ".lock")
            lock.acquire(timeout=LOCK_SECONDS)
        except (filelock.Timeout, OSError):  # `put` says what is wrong with the folder
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


def cache_of(options: CompileOptions) -> ContentStore:
    """The cache these options name; without caching, one that ends with this process."""
    return ContentStore(options.cache_folder) if options.cache else _private_cache()


@cache
def _private_cache() -> ContentStore:
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="wholestep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return ContentStore(folder)


def _user_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("wholestep"))


_FOLDERS: dict[Path, Path] = {}  # a folder is examined, and complained about, once per process


def _usable(wanted: Path) -> Path:
    """The folder to use in the place of the one that was asked for."""
    if wanted not in _FOLDERS:
        try:
            _FOLDERS[wanted] = _own_folder(wanted)
        except OSError as error:
            _go_private(wanted, error)
    return _FOLDERS[wanted]


def _own_folder(wanted: Path) -> Path:
    """The folder, made if need be, or this user's own in it; OSError where neither can be had."""
    if not wanted.exists():
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = wanted.stat()
    sticky_of_root = status.st_uid == 0 and bool(status.st_mode & stat.S_ISVTX)  # the shared temporary folder
    if not _is_own(status) and not sticky_of_root:
        raise PermissionError(f"it belongs to user {status.st_uid}")
    own = wanted
    if not _is_own(status) or status.st_mode & OTHERS_WRITE:
        own = wanted / f"wholestep-{_user()}"
        own.mkdir(mode=0o700, exist_ok=True)
        within = own.lstat()  # a link would lead to where someone else says
        if not stat.S_ISDIR(within.st_mode) or not _is_own(within) or within.st_mode & OTHERS_WRITE:
            raise PermissionError(f"others can write to it, and {own} is not a folder of yours alone")
    if not own.is_dir():
        raise NotADirectoryError(f"{own} is no folder")
    if not os.access(own, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError("it cannot be written to")
    return own


def _go_private(wanted: Path, error: OSError) -> None:
    """Use a temporary folder of this process from now on, and say so."""
    import shutil
    import tempfile

    private = Path(tempfile.mkdtemp(prefix="wholestep-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    _FOLDERS[wanted] = private
    warnings.warn(
        f"the cache folder {wanted} cannot be used ({error}); this process keeps its compiled code in {private} "
        "and the next one will compile again. Make room in the folder, make it writable or pass another one.",
        CacheWarning,
        stacklevel=4,
    )


def _write(entry: Path, data: bytes, suffix: str) -> Path:
    """Publish an entry by one rename."""
    import tempfile  # a start that finds everything writes nothing

    path = entry / (hashlib.sha256(data).hexdigest() + suffix)
    handle, temporary = tempfile.mkstemp(dir=entry, prefix=".new-")
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


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _is_sound(path: Path) -> bool:
    try:
        status = path.lstat()
        if not _is_own(status):
            return _complain(path, "belongs to another user and is not loaded")
        if not stat.S_ISREG(status.st_mode):
            return _complain(path, "is a link or no file, and is not loaded")
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
