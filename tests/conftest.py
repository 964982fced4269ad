"""Helper modules shared between test folders: `import oracles`, `from random_graphs import graphs`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Before NumPy and torch are loaded.  Threads of theirs wait for each other, and where two processes of pytest share two
# cores, for a core: products of a few milliseconds took a hundred, and the tests twice their time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from tests import compilers

_HERE = Path(__file__).parent

for _folder in (_HERE, _HERE / "compiler", _HERE / "compiler" / "ir"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))

# A compile or a busy machine is no reason to fail: time limits belong to benchmarks.  The examples are the same on all
# machines and every time, so that a change is judged by what it changes; new ones are what `make fuzz` looks for.
settings.register_profile(
    "wholestep",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("wholestep")

# gcc is most of the time of the tests: how everybody's sessions are compiled is left to those where another framework
# judges the code itself.
AS_SHIPPED = ("losses", "benchmarks", "test_ops.py", "test_attention.py", "test_networks.py", "test_same_bits.py")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Thousands of tests, torch and scikit-learn stay to the end: the collector of cycles need not look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(5000, 10, 10)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, _threads_kept():
        patch.setattr(os, "fsync", os.fstat)  # ten thousand entries and checkpoints need not outlive a power cut
        if "CC" not in os.environ and not _is_as_shipped(item.path):
            patch.setenv("CC", compilers.QUICK)
        return (yield)


@pytest.fixture(autouse=True)
def _new_process_for_networks() -> None:
    """The first network of a test is the first of its process: its weights do not depend on the tests before."""
    networks = sys.modules.get("wholestep.steps.networks")
    if networks is not None:
        networks.manual_seed(0)


@pytest.fixture
def equal_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All networks that are given no seed start alike, for tests that train the same network in two ways."""
    from wholestep.steps import states

    monkeypatch.setattr(states, "network_of", lambda state: 0)


@contextmanager
def _threads_kept() -> Iterator[None]:
    """A test that gives torch other threads gives them to itself alone."""
    torch: Any = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 0
    yield
    if torch is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)


def _is_as_shipped(path: Path) -> bool:
    return path.relative_to(_HERE).parts[0] in AS_SHIPPED or "backends/cpu" in path.as_posix()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="sessions of device='cuda' run on this machine's GPU")
    parser.addoption("--kills", type=int, default=50, help="how often a run on the GPU is killed and resumed")
    parser.addoption("--update-golden", action="store_true", help="rewrite the files of tests/golden from what is made")
