"""Calls on several threads: every call is executed, and errors are raised where results are requested."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from tests.compiler.targets import HERE
from wholestep.compiler.backends.cpu.runtime import device as cpu
from wholestep.compiler.runtime.background import Background, run_all
from wholestep.errors import CompilerError
from wholestep.options import CompileOptions
from wholestep.platforms.linux import PATIENCE


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_call_is_made_once(threads: int) -> None:
    made: list[int] = []
    run_all([lambda i=i: made.append(i) for i in range(20)], threads)  # type: ignore[misc]
    assert sorted(made) == list(range(20))
    run_all([], threads)


def test_calls_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=60)  # passed only where two threads are at it
    run_all([both.wait, both.wait], 2)


def test_an_error_is_raised_and_ends_the_work() -> None:
    made: list[int] = []

    def fail() -> None:
        raise ValueError("third")

    calls = [lambda: made.append(0), lambda: made.append(1), fail, lambda: made.append(3)]
    with pytest.raises(ValueError, match="third"):
        run_all(calls, 1)
    assert made == [0, 1]


def test_a_call_in_the_background_gives_its_value_or_its_error() -> None:
    def fail() -> int:
        raise KeyError("gone")

    assert Background(lambda: 42).result() == 42
    with pytest.raises(KeyError, match="gone"):
        Background(fail).result()


def test_a_call_in_the_background_sees_the_context_it_was_begun_in() -> None:
    where: ContextVar[str] = ContextVar("where", default="nowhere")
    where.set("here")
    assert Background(where.get).result() == "here"


@pytest.mark.native
def test_a_library_that_could_not_be_prepared_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build with a compiler that does not exist must not spoil the next one."""
    tried: list[str | None] = []

    def load(target: str, options: CompileOptions) -> str:
        tried.append(options.compiler)
        if options.compiler == "none":
            raise CompilerError("there is no such compiler")
        return "the library"

    monkeypatch.setattr(cpu, "load_library", load)
    monkeypatch.setattr(cpu.native, "is_loaded", lambda target: False)
    device = cpu.CpuDevice(HERE)
    device.prepare(CompileOptions(compiler="none"))
    device.prepare(CompileOptions(compiler="none"))  # one attempt at a time
    assert device.library(CompileOptions()) == "the library"
    assert tried == ["none", None]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere priorities are those of processes")
def test_a_patient_call_and_what_it_starts_leave_time_to_others() -> None:
    def priorities() -> list[int]:
        found = [os.getpriority(os.PRIO_PROCESS, threading.get_native_id())]
        run_all([lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))] * 2, 2)
        told = subprocess.run([sys.executable, "-c", "import os; print(os.nice(0))"], capture_output=True, check=True)
        return [*found, int(told.stdout)]

    here = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert Background(priorities, patient=True).result() == [max(PATIENCE, here)] * 4
    assert Background(priorities).result() == [here] * 4
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == here
