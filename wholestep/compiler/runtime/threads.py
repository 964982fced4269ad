"""The default number of threads: physical cores, limited by CPU affinity and cgroup quotas."""

from __future__ import annotations

import os
from pathlib import Path

MAX_THREADS = 64  # upper bound of the default on any machine


def default_threads(root: Path = Path("/")) -> int:
    """Physical cores this process may run on, no more than its cgroups' CPU quota."""
    cores = _cores(root)
    quota = _quota(root)
    if quota is not None:
        cores = min(cores, max(1, int(quota)))
    return max(1, min(cores, MAX_THREADS))


def _cores(root: Path) -> int:
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    # Two hardware threads of one core share its FMA units, so a second one gains nothing.
    return len({_core_of(root, cpu) for cpu in cpus})


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
