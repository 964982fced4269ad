"""A content-addressed store in the user's own cache folder.

An entry is the file `<folder>/<key>/<sha256 of the data><suffix>`: the checksum is in the name, so one atomic rename
publishes both, and any damage to an entry is detected.

Security: machine code is loaded from here, so only this user may write here.  A missing folder is created with mode
0700; an existing one is never changed.  If others can write to it, entries are stored in a private subfolder; if it
belongs to someone else, is not writable or is full, in a temporary folder of this process, after one warning.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from wholestep import platforms
from wholestep.errors import CacheError
from wholestep.options import CompileOptions, user_cache_folder
from wholestep.records import dataclass

LOCK_SECONDS = 2.0  # longest wait for another process that computes the same entry
FULL = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
)  # errno values of a folder that accepts no more data


class CacheWarning(UserWarning):
    """The cache was not used as intended: damaged, foreign or unwritable.  Results are not affected."""


def key_of(*parts: str | bytes) -> str:
    """The key of an entry that depends on `parts`: a digest of each part with its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class ContentStore:
    """Files by key: `put` publishes atomically, `get` returns only undamaged files that belong to the user."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self._requested = Path(folder) if folder is not None else user_cache_folder()

    @property
    def folder(self) -> Path:
        """The folder of the entries: the requested one, a private subfolder, or a temporary one of this process."""
        return _usable(self._requested)

    def get(self, key: str, suffix: str) -> Path | None:
        """The entry's file, verified against its checksum; None on a miss."""
        return next((path for path in self._entries(key, suffix) if _is_sound(path)), None)

    def put(self, key: str, data: bytes, suffix: str) -> Path:
        """Store `data` and return its file.  A reader sees the complete entry or none.

        If the disk is full, this process continues in a temporary folder; CacheError if that is full too.
        """
        try:
            return _write(self._entry(key), data, suffix)
        except OSError as error:
            if error.errno not in FULL:
                raise
            problem = error
        try:
            _use_temporary_folder(self._requested, problem)
            return _write(self._entry(key), data, suffix)
        except OSError as error:
            raise CacheError(
                f"{len(data):,} bytes could be written neither to {self._requested} ({problem}) nor to a temporary "
                f"folder ({error}). Free some space, or name a folder on another disk: cache_dir= or "
                "WHOLESTEP_CACHE_DIR."
            ) from error

    def get_or_compute(self, key: str, suffix: str, compute: Callable[[], bytes]) -> Path:
        """The entry's file; on a miss one process computes and stores it, while other processes that need it wait."""
        stored = self.get(key, suffix)
        if stored is not None:
            return stored
        with self.lock(key):
            return self.get(key, suffix) or self.put(key, compute(), suffix)

    def _entry(self, key: str) -> Path:
        """The folder of a key, created if missing, even if the whole cache folder was removed in the meantime."""
        entry = self.folder / key
        try:
            entry.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            _FOLDERS.pop(self._requested, None)
            entry = self.folder / key
            entry.mkdir(mode=0o700, exist_ok=True)
        return entry

    def discard(self, key: str) -> None:
        """Remove the entries stored under a key; its folder and lock stay."""
        assert key, "an empty key would name the whole cache"
        for path in self._entries(key, ""):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Let one process at a time compute the entry of `key`.

        After two seconds the caller continues without the lock: duplicate work costs time, but not correctness.
        """
        import filelock

        try:
            lock = filelock.FileLock(self._entry(key) / ".lock")
            lock.acquire(timeout=LOCK_SECONDS)
        except (filelock.Timeout, OSError):  # `put` reports problems of the folder
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


def open_cache(options: CompileOptions) -> ContentStore:
    """The cache that the options select; without caching, a temporary one of this process."""
    return ContentStore(options.cache_folder) if options.cache else _private_cache()


@cache
def _private_cache() -> ContentStore:
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="wholestep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return ContentStore(folder)


_FOLDERS: dict[Path, Path] = {}  # requested folder -> usable one; checked, and warned about, once per process


def _usable(requested: Path) -> Path:
    """The folder to use instead of the requested one."""
    if requested not in _FOLDERS:
        try:
            _FOLDERS[requested] = _own_folder(requested)
        except OSError as error:
            _use_temporary_folder(requested, error)
    return _FOLDERS[requested]


def _own_folder(requested: Path) -> Path:
    """The folder, created if missing, or this user's private subfolder; OSError if neither is usable."""
    if not requested.exists():
        requested.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = requested.stat()
    sticky_of_root = status.st_uid == 0 and bool(status.st_mode & stat.S_ISVTX)  # the shared temporary folder
    if not platforms.is_own(status) and not sticky_of_root:
        raise PermissionError(f"it belongs to user {status.st_uid}")
    folder = requested
    if not platforms.is_own(status) or platforms.is_open_to_others(status):
        folder = requested / f"wholestep-{_user()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        subfolder = folder.lstat()  # lstat: a symbolic link could lead to another user's folder
        if (
            not stat.S_ISDIR(subfolder.st_mode)
            or not platforms.is_own(subfolder)
            or platforms.is_open_to_others(subfolder)
        ):
            raise PermissionError(f"others can write to it, and {folder} is not a folder of yours alone")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError("it cannot be written to")
    return folder


def _use_temporary_folder(requested: Path, error: OSError) -> None:
    """Switch to a temporary folder of this process, with a warning."""
    import shutil
    import tempfile

    private = Path(tempfile.mkdtemp(prefix="wholestep-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    _FOLDERS[requested] = private
    warnings.warn(
        f"the cache folder {requested} cannot be used ({error}); this process stores its compiled code in {private} "
        "and the next one will compile again. Free space in the folder, make it writable or pass another one.",
        CacheWarning,
        stacklevel=4,
    )


def _write(entry: Path, data: bytes, suffix: str) -> Path:
    """Publish an entry by one atomic rename."""
    import tempfile  # imported here: a start with a warm cache writes nothing

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


def _is_sound(path: Path) -> bool:
    try:
        status = path.lstat()
        if not platforms.is_own(status):
            return _warn(path, "belongs to another user and is not loaded")
        if not stat.S_ISREG(status.st_mode):
            return _warn(path, "is not a regular file and is not loaded")
        expected = path.name.partition(".")[0]
        if hashlib.sha256(path.read_bytes()).hexdigest() == expected:
            return True
        path.unlink()
    except FileNotFoundError:
        return False  # removed by another process that found it damaged
    return _warn(path, "is damaged; it was removed and will be computed again")


def _warn(path: Path, problem: str) -> bool:
    warnings.warn(f"cache entry {path} {problem}", CacheWarning, stacklevel=5)
    return False


# -- a size limit: the entries that were used longest ago are removed first ----------------------------------------
# An entry is the folder of a key.  Its time is the latest access or change of its files.  Entries of the last hour
# stay, since a process may be about to load them, and so do records of started runs, which no build could restore.
RECENT = 3600.0  # seconds in which an entry is not removed after its last use
KEPT_SUFFIX = ".run"  # a record of a started run, see `wholestep.cli.trust`


@dataclass(frozen=True)
class CacheEntry:
    """The files of one key."""

    path: Path
    bytes: int
    used: float  # seconds since 1970
    suffixes: tuple[str, ...]


def cache_entries(store: ContentStore) -> list[CacheEntry]:
    """The entries of a cache, the least recently used entry first."""
    return sorted(_entries(store.folder), key=lambda entry: entry.used)


def _entries(folder: Path) -> Iterator[CacheEntry]:
    for path in folder.iterdir():
        if path.is_symlink() or not path.is_dir() or len(path.name) != 64:  # the digits of a SHA-256
            continue
        files = [file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")]
        times = [file.lstat() for file in files]
        used = max((max(status.st_atime, status.st_mtime) for status in times), default=path.lstat().st_mtime)
        suffixes = tuple(sorted({"".join(file.suffixes) for file in files}))
        yield CacheEntry(path, sum(status.st_size for status in times), used, suffixes)


def evict(store: ContentStore, limit: int) -> list[CacheEntry]:
    """Remove entries until the remaining entries have at most `limit` bytes; returns the removed entries."""
    import shutil  # imported here because a start from the cache removes nothing

    entries, removed = cache_entries(store), list[CacheEntry]()
    total = sum(entry.bytes for entry in entries)
    for entry in entries:
        if total <= limit:
            break
        if entry.used > time.time() - RECENT or KEPT_SUFFIX in entry.suffixes:
            continue
        shutil.rmtree(entry.path, ignore_errors=True)
        total -= entry.bytes
        removed.append(entry)
    return removed
