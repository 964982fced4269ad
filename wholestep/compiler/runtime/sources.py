"""A digest of the compiler's sources: a cached plan depends on it besides its graph, options and target.

It is a digest of content: of Python files the syntax tree without docstrings and comments, of C files the text.  So a
cache survives a clone, a branch switch and an edited docstring, and an edited compiler never loads its former plans.
Parsing every file takes half a second, so each digest is cached under the file's size, times and inode number; a start
with a warm cache only reads these from the file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wholestep.compiler.runtime.cache.content_store import ContentStore, key_of
from wholestep.errors import CacheError
from wholestep.options import CompileOptions

if TYPE_CHECKING:
    import ast

COMPILER = Path(__file__).parents[1]
# A plan depends on the frontend through the traced graph alone, which its key contains, except for these two modules,
# which planning and programs import.
FRONTEND_MODULES = ("initializers.py", "update_counters.py")
GPU_FAMILIES = frozenset({"cuda"})  # families whose plans depend on backends/gpu, which other families never load
SUFFIX = ".sources"


_versions: dict[str, str] = {}  # family -> version; the sources of a process do not change


def compiler_version(family: str, options: CompileOptions) -> str:
    """A version that changes with every source that determines the plans or the code of a target's family."""
    if family not in _versions:
        _versions[family] = content_version(family, ContentStore(options.cache_folder) if options.cache else None)
    return _versions[family]


def content_version(family: str, store: ContentStore | None, compiler: Path = COMPILER) -> str:
    """A digest of NumPy's version and of the sources that plan and compile for a family."""
    stamps = source_stamps(family, compiler)
    if store is None:
        digests = {name: content_digest(compiler / name) for name in stamps}
    else:
        digests = content_digests(compiler, stamps, store)
    return key_of(np.__version__, *(f"{name} {digest}" for name, digest in sorted(digests.items())))


def source_stamps(family: str, compiler: Path = COMPILER) -> dict[str, str]:
    """The source files that plan and compile for a family, by path below the compiler: size, times and inode number.

    An unknown family, of a backend registered by a user, may build on every backend of ours.
    """
    families = {entry.name for entry in os.scandir(compiler / "backends") if entry.is_dir()}
    shared = {"common"} | ({"gpu"} if family in GPU_FAMILIES else set())
    others = families - shared - {family} if family in families else set()
    skipped = {"frontend/", *(f"backends/{name}/" for name in others)}
    frontend = {f"frontend/{name}": _stamp((compiler / "frontend" / name).stat()) for name in FRONTEND_MODULES}
    return {**frontend, **dict(_stamps(str(compiler), "", skipped))}


def _stamps(folder: str, prefix: str, skipped: set[str]) -> Iterator[tuple[str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".c", ".h")):
                yield prefix + entry.name, _stamp(entry.stat())
            elif entry.name != "__pycache__" and entry.is_dir():
                inner = f"{prefix}{entry.name}/"
                if inner not in skipped:
                    yield from _stamps(entry.path, inner, skipped)


def _stamp(status: os.stat_result) -> str:
    """A stamp that changes with every write of a file: unlike the modification time, its change time cannot be set."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def content_digests(compiler: Path, stamps: Mapping[str, str], store: ContentStore) -> dict[str, str]:
    """File -> digest of its content: from the store if the file's stamp matches, else computed and stored."""
    key = key_of("sources", os.fspath(compiler), sys.implementation.cache_tag or sys.version)
    stored = _stored_digests(store, key)
    missing = [name for name, stamp in stamps.items() if stored.get(name, ("", ""))[0] != stamp]
    if missing:
        stored = {**stored, **{name: (stamps[name], content_digest(compiler / name)) for name in missing}}
        with contextlib.suppress(OSError, CacheError):  # a full folder is reported when the plan itself is stored
            store.discard(key)
            store.put(key, json.dumps(stored).encode(), SUFFIX)
    return {name: stored[name][1] for name in stamps}


def _stored_digests(store: ContentStore, key: str) -> dict[str, tuple[str, str]]:
    """File -> (stamp, digest)."""
    path = store.get(key, SUFFIX)
    if path is None:
        return {}
    try:
        return {name: (stamp, digest) for name, (stamp, digest) in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:  # another process has just replaced the file
        return {}


def content_digest(path: Path) -> str:
    """The digest of a file: of the syntax tree without docstrings if it is Python, else of the bytes."""
    data = path.read_bytes()
    if path.suffix == ".py":
        import ast  # imported here: a start with a warm cache parses nothing

        tree = ast.parse(data)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                _drop_docstring(node)
        data = ast.dump(tree).encode()
    return hashlib.sha256(data).hexdigest()


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Remove the docstring.  A body that consists of a docstring alone becomes empty, which no parsed body is."""
    import ast

    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        del node.body[0]
