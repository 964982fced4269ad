"""Steps on Windows, under Wine: the bits of Linux, for any number of threads; and the libraries that Python loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.backends.cpu.compiler_suite import EXAMPLES
from tests.compiler.backends.cpu.emulation.emulated import WINDOWS, Emulated, call
from tests.compiler.backends.cpu.emulation.test_neon import assert_same_bits
from tests.compiler.backends.cpu.emulation.test_other_machines import plan_text
from tests.compiler.backends.cpu.test_targets import STEPS, numbers, run_on
from tests.compiler.step_graphs import example
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.runtime.compiler import compile_c
from wholestep.compiler.backends.cpu.runtime.library import FUNCTIONS, build_library
from wholestep.compiler.backends.cpu.target import AVX2, available_targets
from wholestep.compiler.runtime.cache.content_store import ContentStore

pytestmark = [WINDOWS.needed, pytest.mark.long]

# Loads a library and looks for the functions that Python takes from it.
HOST = """
#include <stdio.h>
#include <windows.h>
int main(int count, char **names) {
  const HMODULE library = LoadLibraryA(names[1]);
  if (!library) return printf("not loaded: error %lu", GetLastError());
  for (int i = 2; i < count; i++) if (!GetProcAddress(library, names[i])) printf("%s is missing", names[i]);
}
"""
RUNTIME = ("ws_api_table", "ws_step", "ws_run_loop", "ws_run_micro_batches", "ws_pool_run", "ws_uniforms", "ws_normals")
PARTS = {"": RUNTIME, **{part: [f"ws_{name}" for name in names] for part, names in FUNCTIONS.items()}}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_the_bits_of_linux(name: str) -> None:
    if AVX2 not in available_targets():
        pytest.skip(f"needs a processor that is {AVX2}")
    make, inputs = STEPS[name]
    expected = run_on(AVX2, make(), inputs)
    plan = make_plan(make(), {"batch": 21}, target=AVX2)
    step = Emulated(plan, WINDOWS)
    for threads in (1, 3):
        ran = step.run(example(21, inputs, 10), numbers(plan), {"batch": 21}, step=3, threads=threads)
        assert_same_bits(expected, ran)
    assert not np.array_equal(expected.state["w0"], numbers(plan)["w0"])  # it trained


def test_libraries_are_linked_and_loaded(tmp_path: Path) -> None:
    """As `find_compiler` calls zig there; a library is loaded under its name in the cache."""
    assert WINDOWS.compiler is not None
    (tmp_path / "host.c").write_text(HOST)
    call([*WINDOWS.compiler.command, str(tmp_path / "host.c"), "-o", str(tmp_path / "host.exe")])
    cache, compiler = ContentStore(tmp_path), WINDOWS.compiler
    for part, names in PARTS.items():
        library = build_library(cache, compiler, "cpu/avx2", part)
        assert WINDOWS.run(tmp_path / "host.exe", library, *names) == ""
    plan = compile_c(plan_text(EXAMPLES["lenet"]), cache=cache, compiler=compiler, target="cpu/avx2")
    assert WINDOWS.run(tmp_path / "host.exe", plan, "ws_entry", "ws_prologue", "ws_refresh") == ""
    assert "no_such_name is missing" in WINDOWS.run(tmp_path / "host.exe", plan, "no_such_name")
