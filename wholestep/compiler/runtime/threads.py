"""The default number of threads: physical cores, limited by CPU affinity and cgroup quotas."""

from __future__ import annotations

from wholestep import platforms

MAX_THREADS = 64  # upper bound of the default on any machine


def default_threads() -> int:
    """The cores that this process may use."""
    return max(1, min(platforms.cores(), MAX_THREADS))
