"""The pool: any number of threads, barriers that hold, forks, and no race that ThreadSanitizer can see."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.targets import compile_c, load_library
from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE, find_compiler
from wholestep.compiler.backends.cpu.runtime.library import Body, Library
from wholestep.compiler.runtime.cache.content_store import ContentStore

# Every thread writes the phase, waits, and checks what the others wrote: a leaky barrier shows as a wrong value.
DRIVER = """
typedef struct { void (*barrier)(void); int phases; int seen[64]; int wrong[64]; } job;
__attribute__((visibility("default"))) void check_barrier(void *argument, int id, int threads) {
  job *j = argument;
  for (int phase = 1; phase <= j->phases; phase++) {
    j->seen[id] = phase;
    j->barrier();
    for (int other = 0; other < threads; other++) j->wrong[id] += j->seen[other] != phase;
    j->barrier();
  }
}
__attribute__((visibility("default"))) void halve_smallest(void *argument, int id, int threads) {
  volatile float x = 0x1p-126f;
  (void)threads;
  ((float *)argument)[id] = x * 0.5f;
}
"""


class Job(ctypes.Structure):
    _fields_ = [
        ("barrier", ctypes.c_void_p),
        ("phases", ctypes.c_int),
        ("seen", ctypes.c_int * 64),
        ("wrong", ctypes.c_int * 64),
    ]


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return ctypes.CDLL(str(compile_c(DRIVER, cache=ContentStore(tmp_path_factory.mktemp("driver")))))


def who_ran(library: Library, threads: int) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []
    library.pool_run(Body(lambda _, identity, count: calls.append((identity, count))), None, threads)
    return sorted(calls)


@pytest.mark.parametrize("threads", [1, 7, 2, 64, 3])
def test_every_thread_runs_once_and_knows_its_number(library: Library, threads: int) -> None:
    assert who_ran(library, threads) == [(i, threads) for i in range(threads)]


def test_sleeping_workers_are_woken(library: Library) -> None:
    for threads in (3, 2, 3):
        assert len(who_ran(library, threads)) == threads
        time.sleep(0.02)  # far beyond the 40 us for which they stay awake


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_nobody_passes_a_barrier_early(library: Library, driver: ctypes.CDLL, threads: int) -> None:
    job = Job(barrier=ctypes.cast(library.barrier, ctypes.c_void_p).value, phases=500)
    library.pool_run(driver.check_barrier, ctypes.addressof(job), threads)
    assert list(job.seen)[:threads] == [500] * threads
    assert sum(job.wrong) == 0


BUSY = "import time; print(flush=True); end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Two processes that want a core all the time."""
    command = [sys.executable, "-S", "-c", BUSY]
    with ExitStack() as stack:
        for _ in range(2):
            other = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(other.kill)
            assert other.stdout is not None
            assert other.stdout.readline() == "\n"
        yield


@pytest.mark.parametrize("threads", [2, 16])
@pytest.mark.usefixtures("busy_machine")
def test_barriers_hold_where_others_want_the_cores(library: Library, driver: ctypes.CDLL, threads: int) -> None:
    job = Job(barrier=ctypes.cast(library.barrier, ctypes.c_void_p).value, phases=1500)
    library.pool_run(driver.check_barrier, ctypes.addressof(job), threads)
    assert list(job.seen)[:threads] == [1500] * threads
    assert sum(job.wrong) == 0


def test_callers_take_turns(library: Library, driver: ctypes.CDLL) -> None:
    jobs = [Job(barrier=ctypes.cast(library.barrier, ctypes.c_void_p).value, phases=3) for _ in range(3)]

    def call(job: Job, threads: int) -> None:
        for _ in range(50):
            library.pool_run(driver.check_barrier, ctypes.addressof(job), threads)

    callers = [threading.Thread(target=call, args=(job, i + 1)) for i, job in enumerate(jobs)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [sum(job.wrong) for job in jobs] == [0, 0, 0]


@pytest.mark.parametrize("threads", [0, -1, 65])
def test_impossible_numbers_of_threads_are_refused(library: Library, threads: int) -> None:
    with pytest.raises(ValueError, match=f"threads={threads}: expected 1 to 64"):
        library.pool_run(Body(lambda *_: None), None, threads)


def test_a_run_inside_a_run_is_refused(library: Library) -> None:
    errors: list[str] = []

    def body(*_: int) -> None:
        try:
            library.pool_run(Body(lambda *_: None), None, 2)
        except RuntimeError as error:
            errors.append(str(error))

    library.pool_run(Body(body), None, 2)
    assert len(errors) == 2
    assert "from inside a step" in errors[0]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the mode is set on x86 only")
def test_subnormals_are_flushed_inside_a_run_and_kept_outside(library: Library, driver: ctypes.CDLL) -> None:
    halves = np.ones(3, np.float32)
    library.pool_run(driver.halve_smallest, halves.ctypes.data, 3)
    assert halves.tolist() == [0.0, 0.0, 0.0]
    driver.halve_smallest(ctypes.c_void_p(halves.ctypes.data), 0, 1)
    assert halves[0] == 2.0**-127


FORK = """
import ctypes, os, sys
from tests.compiler.targets import load_library
from wholestep.compiler.backends.cpu.runtime.library import Body

library = load_library()

def count(threads):
    calls = []
    library.pool_run(Body(lambda *arguments: calls.append(arguments)), None, threads)
    return len(calls)

assert count(3) == 3
for _ in range(3):
    child = os.fork()
    if child == 0:
        good = count(3) == 3 and count(5) == 5
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if count(2) == 2 else 1)
        os._exit(0 if good and os.waitpid(grandchild, 0)[1] == 0 and count(4) == 4 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert count(4) == 4
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_the_pool_works_on_both_sides_of_a_fork() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


TSAN = """
#include "runtime.h"
#include <stdio.h>
static int seen[64], wrong[64], total;
static void body(void *argument, int id, int threads) {
  (void)argument;
  for (int phase = 1; phase <= 50; phase++) {
    seen[id] = phase;
    ws_barrier();
    for (int other = 0; other < threads; other++) wrong[id] += seen[other] != phase;
    ws_barrier();
    if (id == 0) total++;
  }
}
int main(void) {
  int counts[] = {1, 2, 7, 3, 2, 5};
  for (int round = 0; round < 20; round++)
    for (int i = 0; i < 6; i++) ws_pool_run(body, 0, counts[i]);
  int bad = total != 20 * 6 * 50;
  for (int i = 0; i < 64; i++) bad += wrong[i];
  puts(bad ? "wrong" : "right");
  return bad;
}
"""


def test_thread_sanitizer_sees_no_race(tmp_path: Path) -> None:
    program = tmp_path / "driver"
    (tmp_path / "driver.c").write_text(TSAN)
    sanitize = [*find_compiler().command, "-std=gnu11", "-O1", "-g", "-fsanitize=thread", f"-iquote{NATIVE}"]
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    probe = subprocess.run([*sanitize, str(empty), "-o", str(program)], capture_output=True, check=False)
    if probe.returncode != 0 or subprocess.run([str(program)], capture_output=True, check=False).returncode != 0:
        pytest.skip("this compiler or machine has no ThreadSanitizer")
    sources = [str(tmp_path / "driver.c"), *(str(NATIVE / f"{name}.c") for name in ("pool", "gemm"))]
    subprocess.run([*sanitize, *sources, "-o", str(program), "-pthread"], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert "ThreadSanitizer" not in done.stderr, done.stderr
    assert done.stdout == "right\n"
