"""What `wholestep doctor` says about the machine itself: system, memory, cores, and where compiled code is kept."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from pathlib import Path

from wholestep import platforms

LEAST_BYTES = 512 << 20  # free memory; with less, compilers fail


def describe_platform() -> str:
    library = " ".join(platform.libc_ver())
    return f"{platform.system()} {platform.release()} on {platform.machine()}" + (
        f", {library}" if library.strip() else ""
    )


def describe_python() -> str:
    without_lock = not getattr(sys, "_is_gil_enabled", lambda: True)()
    return f"{platform.python_version()} at {sys.executable}" + (", free-threaded" if without_lock else "")


def describe_cores() -> str:
    """Cores by the affinity of this process, and the threads that its container's quota leaves."""
    from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads
    from wholestep.options import thread_count

    threads = thread_count(None, default_threads(), MAX_THREADS)
    return f"{platforms.cores()} of {os.cpu_count()} may be used; {threads} threads by default"


def usable_bytes() -> int:
    """The memory of this machine, or what limits of the process and of its container leave."""
    limits = platforms.physical_bytes(), _address_space(), platforms.memory_limit()
    return min(limit for limit in limits if limit is not None)


def describe_memory() -> str:
    return f"{usable_bytes() / (1 << 30):.1f} GiB may be used"


def _address_space() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def cache_folder() -> tuple[Path, str]:
    """The folder of compiled code, and the reason if it is a temporary folder instead of the requested one, else ""."""
    from wholestep.compiler.runtime.cache.content_store import CacheWarning, open_cache
    from wholestep.options import CompileOptions, user_cache_folder

    options = CompileOptions()
    requested = Path(options.cache_folder or user_cache_folder())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        folder = open_cache(options).folder
    return folder, "" if folder.is_relative_to(requested) else f"{requested} cannot be written"
