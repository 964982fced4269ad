"""A size limit for the cache folder: the entries that were used longest ago are removed first.

An entry is the folder of a key.  Its time is the latest access or change of its files.  Entries of the last hour stay,
since a process may be about to load them, and so do records of started runs, which no build could restore.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wholestep.compiler.runtime.cache.content_store import ContentStore

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
    """The entries of a cache, the one that was used longest ago first."""
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
    """Remove entries until the others have at most `limit` bytes; those that were removed."""
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
