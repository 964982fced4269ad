"""How tests run: their environment, options of pytest, samples of long catalogues, CPU seconds."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
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

from tests.support import compilers, durations, quick, sampling
from wholestep.options import CompileOptions

_HERE = Path(__file__).parent

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
AS_SHIPPED = (
    "losses/", "benchmarks/", "ops/test_ops.py", "ops/test_attention.py", "models/test_networks.py",
    "session/test_same_bits.py", "compiler/backends/cpu/",
)  # fmt: skip

# The e-graph rewrites the steps of other folders, and of all of them under --complete; a test that is about it, in one
# of these, is marked `egraph`.
WITHOUT_EGRAPH = ("data", "estimators", "metrics", "nn", "optim", "schedules", "steps", "train", "callbacks")
SAMPLED, SEED = pytest.StashKey[dict[str, int]](), pytest.StashKey[int]()


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
        if not _has_egraph(item):
            patch.setattr(CompileOptions.__init__, "__defaults__", _DEFAULTS_WITHOUT_EGRAPH)
        return (yield)


@pytest.fixture(autouse=True)
def _new_process_for_networks() -> None:
    """The first network of a test is the first of its process: its weights do not depend on the tests before."""
    networks = sys.modules.get("wholestep.steps.states")
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
    return path.relative_to(_HERE).as_posix().startswith(AS_SHIPPED)


def _has_egraph(item: pytest.Item) -> bool:
    """Does the e-graph rewrite the steps of a test that says nothing about it?"""
    folder = item.path.relative_to(_HERE).parts[0]
    complete = item.config.getoption("complete")
    return complete or folder not in WITHOUT_EGRAPH or item.get_closest_marker("egraph") is not None


_DEFAULTS_WITHOUT_EGRAPH = tuple(
    False if each.name == "egraph" else each.default for each in dataclasses.fields(CompileOptions)
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="sessions of device='cuda' run on this machine's GPU")
    parser.addoption("--kills", type=int, default=50, help="how often a run on the GPU is killed and resumed")
    parser.addoption("--update-golden", action="store_true", help="rewrite the files of tests/golden from what is made")
    parser.addoption(
        "--update-durations", action="store_true", help="write tests/support/durations.json from what is measured"
    )
    parser.addoption("--complete", action="store_true", help="long catalogues are not sampled")
    parser.addoption("--sample-seed", type=int, help="of the samples of long catalogues; the date by default")
    parser.addoption("--quick", action="store_true", help="only tests that need no C compiler")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup: runs that tests start inherit it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    plugins = config.pluginmanager
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    reports = not hasattr(config, "workerinput")
    is_quick = config.getoption("quick")
    if is_quick:
        quick.install()
        # A test that is skipped in the middle leaves files and processes open, which others are not to blame for.
        config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")
    if runs_tests:
        plugins.register(durations.Timing())
        if is_quick:
            compilers.QUICK = os.environ["CC"]
            plugins.register(quick.Quick())
    if reports:
        whole = config.args == config.getini("testpaths") and not config.option.keyword
        update = config.getoption("update_durations")
        _choose_catalogues(config, whole)
        plugins.register(quick.Count(whole, update) if is_quick else durations.Summary(whole, update))
        if is_quick:
            config.add_cleanup(quick.remove)


def _choose_catalogues(config: pytest.Config, whole: bool) -> None:
    """Once, in the process that reports: the day may change before the others start, and the tree too."""
    complete = any(config.getoption(name) for name in ("complete", "quick", "update_durations")) or not whole
    config.stash[SAMPLED] = {} if complete else sampling.sampled_catalogues(sampling.changed_files())
    seed = config.getoption("sample_seed")
    config.stash[SEED] = sampling.default_seed() if seed is None else seed


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """What a process of xdist is told before it collects."""
    node.workerinput["sampled"], node.workerinput["seed"] = node.config.stash[SAMPLED], node.config.stash[SEED]


def pytest_report_header(config: pytest.Config) -> str | None:
    return _describe_samples(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (line := _describe_samples(config)) is not None:
        terminalreporter.write_line(line)


def _describe_samples(config: pytest.Config) -> str | None:
    sampled = config.stash.get(SAMPLED, {})
    return sampling.describe(sampled, config.stash[SEED]) if sampled else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A quick run leaves out the folders whose tests nearly all need a compiler."""
    below = collection_path.relative_to(_HERE.parent).as_posix() if collection_path.is_relative_to(_HERE) else ""
    is_left_out = config.getoption("quick") and quick.is_elsewhere(below, config.getoption("update_durations"))
    return True if is_left_out else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("quick"):
        items[:] = quick.keep_short(items)
    worker = getattr(config, "workerinput", None)
    sampled = config.stash.get(SAMPLED, {}) if worker is None else worker["sampled"]
    if sampled:
        items[:] = sampling.draw(items, sampled, config.stash[SEED] if worker is None else worker["seed"])
    durations.long_files_first(items, 1 if worker is None else worker["workercount"])
