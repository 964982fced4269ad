"""`pytest --quick`: the tests that need no C compiler, for `make quick`.

A test that is about to plan for the CPU of this machine, or to compile emulated GPU kernels, is skipped before any work
is done, so that no list says which tests these are.  The compiler is also out of reach: `gcc` and its kin are scripts
that note the call and fail, and the cache is empty.  A test that reaches one of them in another process counts as
skipped as well; one that passes has proven what it says without compiled code.

So that nothing leaves `make quick` unnoticed, the number of tests that run is compared with `durations.json`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import durations

REASON = "needs a C compiler"
MESSAGE = f"make quick: {REASON}"
COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++")
NOTE = "WHOLESTEP_TESTS_COMPILER_NOTE"  # names the file that a compiler's stand-in appends to
FEWER = 0.98  # of the recorded number of tests: a run with fewer fails
# Folders whose tests start processes or compile nearly everywhere: collecting them takes longer than what is left.
ELSEWHERE = (
    "tests/benchmarks", "tests/end_to_end", "tests/estimators", "tests/fuzz", "tests/interop/aten", "tests/ports",
    "tests/distributed",
)  # fmt: skip
# Tests of what the library does rather than of the CPU: the reference device stands in for it.
ON_THE_REFERENCE = (
    "tests/data/", "tests/metrics/", "tests/schedules/", "tests/steps/", "tests/user/test_tour.py",
    "tests/callbacks/test_callbacks.py", "tests/train/checkpoint/test_checkpoint.py", "tests/train/test_controls.py",
)  # fmt: skip
SECONDS = 0.3  # of CPU time on record, from which a test is left to `make test`
ALWAYS = ("tests/package/test_vocabulary.py",)  # what a change is most likely to break


def install() -> None:
    """Before workers of xdist start: they inherit the environment."""
    if NOTE in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="wholestep-quick-"))
    for name in COMPILERS:
        stand_in = folder / name
        stand_in.write_text(f'#!/bin/sh\necho "$0 $@" >> "${NOTE}"\necho "{MESSAGE}" >&2\nexit 1\n')
        stand_in.chmod(0o700)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    os.environ["CC"] = str(folder / "gcc")
    os.environ["WHOLESTEP_CACHE_DIR"] = str(folder / "cache")
    os.environ[NOTE] = str(folder / "calls")


def remove() -> None:
    """At the end of the process that has installed it."""
    shutil.rmtree(Path(os.environ.pop(NOTE)).parent, ignore_errors=True)


class Quick:
    """Of a process that runs tests."""

    def __init__(self) -> None:
        self.note = Path(f"{os.environ[NOTE]}-{os.getpid()}")
        os.environ[NOTE] = str(self.note)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.note.unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            if item.nodeid.startswith(ON_THE_REFERENCE):
                take_the_reference(patch)
            skip_native_code(patch)
            return (yield)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("native") is not None:
            pytest.skip(REASON)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        reached = call.excinfo is not None and (self.note.exists() or _is_of_compiler(call.excinfo.value))
        if reached and report.outcome == "failed":
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {REASON}")
        return report


def _is_of_compiler(error: BaseException) -> bool:
    """Was it raised because a compiler failed?  A fixture that tests share raises for each what it raised first."""
    if isinstance(error, subprocess.CalledProcessError):
        return Path(error.cmd[0]).name in COMPILERS
    return MESSAGE in str(error)


def take_the_reference(patch: pytest.MonkeyPatch) -> None:
    """Sessions on the CPU run on the reference device, which computes in NumPy."""
    from wholestep.session.building import arguments

    named = arguments.device_named
    patch.setattr(arguments, "device_named", lambda name, *more: named("reference" if name == "cpu" else name, *more))


def skip_native_code(patch: pytest.MonkeyPatch) -> None:
    """Skip the test where it would plan for the CPU, load the runtime library or compile kernels."""
    from tests.compiler.backends.cuda.emulation import emulated
    from wholestep.compiler.backends.cpu.runtime import compiler, library
    from wholestep.compiler.backends.cpu.runtime.device import CpuDevice
    from wholestep.session.building.plans import Plans

    def skip(*_: object, **__: object) -> None:
        pytest.skip(REASON)

    plan = Plans.plan_with_report

    def plan_elsewhere(self: Plans, entry: str) -> object:
        if self.where is not None and isinstance(self.where.device, CpuDevice):
            skip()
        return plan(self, entry)

    patch.setattr(Plans, "plan_with_report", plan_elsewhere)
    patch.setattr(CpuDevice, "prepare", lambda *_: None)
    patch.setattr(CpuDevice, "load", skip)
    patch.setattr(library, "load_library", skip)
    patch.setattr(compiler, "run_compiler", skip)
    patch.setattr(library, "run_compiler", skip)
    patch.setattr(emulated, "header", skip)


def is_elsewhere(path: str, update: bool) -> bool:
    """Is a file or folder, by its path in the repository, left to `make test`?  An update tries files again."""
    return path in ELSEWHERE or (not update and path in recorded_quick().get("without", ()))


@cache
def recorded_quick() -> dict[str, Any]:
    """What is on record of quick runs: how many `tests` ran, and the files `without` one that did."""
    return dict(durations.recorded().get("quick", {}))


def keep_short(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests that took little time when they were recorded."""
    slow = {test for test, seconds in durations.recorded().get("slow", {}).items() if seconds >= SECONDS}
    return [item for item in items if item.nodeid not in slow or item.nodeid.startswith(ALWAYS)]


class Count:
    """Of the process that reports: did as many tests run as on record?"""

    def __init__(self, is_whole: bool, update: bool) -> None:
        self.is_whole, self.update = is_whole, update
        self.ran: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.ran[file] += report.when == "call" and report.outcome != "skipped"

    @property
    def is_short(self) -> bool:
        return self.is_whole and not self.update and self.ran.total() < FEWER * recorded_quick().get("tests", 0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.is_short:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        count, known = self.ran.total(), recorded_quick().get("tests", 0)
        terminalreporter.write_line(f"{count} tests ran without a C compiler; {known} on record")
        if self.is_short:
            terminalreporter.write_line(
                f"fewer than {FEWER:.0%} of them: tests that were quick need a compiler now, or are gone. Give them "
                'device="reference", or write the new number: pytest --quick --update-durations.',
                red=True,
            )
        if self.update and self.is_whole:
            without = sorted(file for file, tests in self.ran.items() if not tests)
            durations.write({"quick": {"tests": count, "without": without}})
