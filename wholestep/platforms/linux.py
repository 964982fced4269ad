"""Linux: affinity, /proc, /sys and cgroups."""

from __future__ import annotations

import mmap
import os
import platform
from contextlib import suppress
from pathlib import Path
from threading import get_native_id

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

# Nice value of background work: about half of the CPU share of normal threads.  A smaller share would delay callers
# that wait for the result on a busy machine.
PATIENCE = 3


def cores(root: Path = Path("/")) -> int:
    """Physical cores of the affinity mask, limited by the CPU quota of the process's cgroups.

    Two hardware threads of one core share its multipliers, so a second one gains nothing.
    """
    count = len({_core_of(root, cpu) for cpu in os.sched_getaffinity(0)})
    quota = _quota(root)
    return count if quota is None else min(count, max(1, int(quota)))


def processor_features() -> frozenset[str]:
    """ARM64 always has NEON ("asimd"); an emulator of ARM64 may show the processor that it runs on."""
    if platform.machine() == "aarch64":
        return frozenset({"asimd", *_cpuinfo("Features").split()})
    return frozenset(_cpuinfo("flags").split())


def processor_name() -> str:
    """`platform.processor` would start a process."""
    return _cpuinfo("model name") or platform.machine()


def available_bytes() -> int:
    """Available memory, as the kernel estimates it."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, LookupError, ValueError):
        return os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE


def memory_limit(root: Path = Path("/")) -> int | None:
    """The tightest limit of the process's cgroups (version 2, else version 1); None without one."""
    groups = root / "sys/fs/cgroup"
    files = [folder / "memory.max" for folder in _own_groups(root, groups)]
    limits = [limit for path in (*files, groups / "memory/memory.limit_in_bytes") if (limit := _number(path))]
    return min(limits, default=None)


def _number(path: Path) -> int | None:
    """The number of a file; None without one, or if it is the word "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def lower_priority() -> None:
    """Linux has priorities per thread."""
    thread = get_native_id()
    with suppress(OSError):  # a container may refuse it
        os.setpriority(os.PRIO_PROCESS, thread, max(PATIENCE, os.getpriority(os.PRIO_PROCESS, thread)))


def _cpuinfo(name: str) -> str:
    """A field of the first processor in /proc/cpuinfo; empty without one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _core_of(root: Path, cpu: int) -> str:
    try:
        return (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(root: Path) -> float | None:
    """CPUs granted by the tightest cgroup above us (version 2, else version 1); None without a limit."""
    groups = root / "sys/fs/cgroup"
    limits = [limit for folder in _own_groups(root, groups) if (limit := _read_v2(folder)) is not None]
    if not limits and (limit := _read_v1(groups / "cpu")) is not None:
        limits.append(limit)
    return min(limits, default=None)


def _own_groups(root: Path, groups: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    group = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    folder = groups / group
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(groups))]


def _read_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _read_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota <= 0 else quota / period
