"""macOS: sysctl by name."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

from wholestep.platforms.posix import (
    after_fork,
    ending_signals,
    is_open_to_others,
    is_own,
    load_code,
    lock_file,
    lock_folder,
    map_memory,
    physical_bytes,
    sync_folder,
    unlock_file,
)

__all__ = [
    "after_fork",
    "available_bytes",
    "cores",
    "ending_signals",
    "is_open_to_others",
    "is_own",
    "load_code",
    "lock_file",
    "lock_folder",
    "lower_priority",
    "map_memory",
    "memory_limit",
    "physical_bytes",
    "processor_features",
    "processor_name",
    "sync_folder",
    "unlock_file",
]

# Linux's names of the features that targets need, with sysctl's names.
FEATURES = {
    "asimd": "hw.optional.AdvSIMD",
    "bf16": "hw.optional.arm.FEAT_BF16",
    "avx2": "hw.optional.avx2_0",
    "fma": "hw.optional.fma",
    "avx512f": "hw.optional.avx512f",
    "avx512dq": "hw.optional.avx512dq",
    "avx512bw": "hw.optional.avx512bw",
}


def cores() -> int:
    """The number of performance cores: an efficiency core would delay the others at every barrier."""
    return _number("hw.perflevel0.physicalcpu") or _number("hw.physicalcpu") or os.cpu_count() or 1


def processor_features() -> frozenset[str]:
    return frozenset(name for name, key in FEATURES.items() if _number(key))


def processor_name() -> str:
    return _sysctl("machdep.cpu.brand_string", 256).rstrip(b"\0").decode(errors="replace") or platform.machine()


def available_bytes() -> int:
    """Free and purgeable pages are not worth two calls of Mach here: half of the memory counts as free."""
    return physical_bytes() // 2


def memory_limit() -> None:
    """There are no containers."""


def lower_priority() -> None:
    """The priority of a thread is its class of service, which Python's threads do not set."""


@cache
def _sysctl(name: str, size: int) -> bytes:
    value, length = ctypes.create_string_buffer(size), ctypes.c_size_t(size)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), value, ctypes.byref(length), None, ctypes.c_size_t(0))
    return b"" if failed else value.raw[: length.value]


def _number(name: str) -> int:
    return int.from_bytes(_sysctl(name, 8), "little")
