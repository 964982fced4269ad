"""A digest of the compiler's sources: a cached plan depends on it besides its graph, options and target.

It is a digest of the files' bytes, which takes 4 ms.  So a cache survives a clone, a branch switch and changed
modification times, and an edited compiler never loads its former plans.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from wholestep.compiler.runtime.cache.content_store import key_of

COMPILER = Path(__file__).parents[1]
# A plan depends on the frontend through the traced graph alone, which its key contains, except for these two modules,
# which planning and programs import.
FRONTEND_MODULES = ("initializers.py", "update_counters.py")
GPU_FAMILIES = frozenset({"cuda"})  # families whose plans depend on backends/gpu, which other families never load

_versions: dict[str, str] = {}  # family -> version; the sources of a process do not change


def compiler_version(family: str) -> str:
    """A version that changes with every source that determines the plans or the code of a target's family."""
    if family not in _versions:
        _versions[family] = content_version(family)
    return _versions[family]


def content_version(family: str, compiler: Path = COMPILER) -> str:
    """A digest of NumPy's version and of the sources that plan and compile for a family."""
    names = sorted(source_files(family, compiler))
    digests = (hashlib.sha256((compiler / name).read_bytes()).hexdigest() for name in names)
    return key_of(np.__version__, *(f"{name} {digest}" for name, digest in zip(names, digests, strict=True)))


def source_files(family: str, compiler: Path = COMPILER) -> set[str]:
    """The source files that plan and compile for a family, as paths below the compiler.

    An unknown family, of a backend registered by a user, may build on every backend of ours.
    """
    families = {entry.name for entry in os.scandir(compiler / "backends") if entry.is_dir()}
    shared = {"common"} | ({"gpu"} if family in GPU_FAMILIES else set())
    others = families - shared - {family} if family in families else set()
    skipped = {"frontend/", *(f"backends/{name}/" for name in others)}
    return {f"frontend/{name}" for name in FRONTEND_MODULES} | set(_files(str(compiler), "", skipped))


def _files(folder: str, prefix: str, skipped: set[str]) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".c", ".h")):
                yield prefix + entry.name
            elif entry.name != "__pycache__" and entry.is_dir():
                inner = f"{prefix}{entry.name}/"
                if inner not in skipped:
                    yield from _files(entry.path, inner, skipped)
