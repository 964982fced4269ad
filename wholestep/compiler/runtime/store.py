"""Which cache a build uses."""

from __future__ import annotations

import atexit
from functools import cache

from wholestep.compiler.runtime.cache import Cache
from wholestep.options import CompileOptions


def cache_of(options: CompileOptions) -> Cache:
    """The cache these options name; without caching, one that ends with this process."""
    return Cache(options.cache_folder) if options.cache else _private_cache()


@cache
def _private_cache() -> Cache:
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="wholestep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Cache(folder)
