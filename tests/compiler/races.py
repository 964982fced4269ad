"""A plan, the runtime library and a small main() as one program under ThreadSanitizer."""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.compiler.targets import HERE
from wholestep.compiler.backends.cpu.render.language import STORED
from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE, find_compiler, flags_of
from wholestep.compiler.plan.model.kernel import Buffer, Plan

BARRIER = re.compile(r"call->api->barrier\(\);")
FLAGS = ("-std=gnu11", "-O1", "-g", "-fsanitize=thread", "-fopenmp-simd", "-ffp-contract=off")
REPORT = "WARNING: ThreadSanitizer: data race"


class NoThreadSanitizerError(Exception):
    """Why races cannot be looked for on this machine."""


def without_barriers(source: str) -> str:
    """The same step with nothing between its regions."""
    text, removed = BARRIER.subn("", source)
    assert removed, "the step has one region only"
    return text


def driver(plan: Plan, rows: Sequence[int], threads: int) -> str:
    """main(): a step for each number of rows, on small numbers that are valid class indices too."""
    pointers = plan.pointer_buffers()
    names = ", ".join(f"p{b.id}" for b in pointers)
    sizes = "\n".join(
        f"  dims[0] = {n}; call.step = {i}; ws_refresh(&call);\n"
        f"  if (ws_step(&(ws_step_call){{ws_prologue, ws_entry, &call, 0, 0, {threads}}})) return 2;"
        for i, n in enumerate(rows)
    )
    return f"""#include "runtime.h"
#include <stdlib.h>
void ws_prologue(const ws_call *); void ws_refresh(const ws_call *); void ws_entry(const ws_call *, int, int);
static void *filled(long bytes) {{ return aligned_alloc(64, (bytes + 127) / 64 * 64); }}
int main(void) {{
  {chr(10).join(filled_buffer(b) for b in pointers)}
  void *buffers[] = {{{names}}};
  long dims[] = {{1}};
  double scalars[] = {{{", ".join(repr(s.default) for s in plan.scalars) or "0"}}}, derived[{max(1, plan.slots)}];
  ws_call call = {{&ws_api_table, dims, buffers, filled({plan.arena_bytes}), filled({threads * plan.work_bytes}),
    {plan.work_bytes}, scalars, derived, 0, 0}};
{sizes}
  return 0;
}}
"""


def filled_buffer(b: Buffer) -> str:
    type, count = STORED[b.type.dtype], b.bytes // b.type.dtype.size
    value = f"({type})(i % 7) / 8" if b.type.dtype.is_float else f"({type})(i % 3)"
    return f"{type} *p{b.id} = filled({b.bytes}); for (long i = 0; i < {count}; i++) p{b.id}[i] = {value};"


def build(source: str, main: str, folder: Path) -> Path:
    (folder / "plan.c").write_text(source)
    (folder / "main.c").write_text(main)
    program = folder / "step"
    compile_in(folder, "plan.c", "main.c", *runtime_objects(), "-o", str(program), "-lm", "-pthread")
    return program


@cache
def runtime_objects() -> tuple[str, ...]:
    """The library, compiled once for all programs: it is most of their source."""
    folder = Path(tempfile.mkdtemp(prefix="wholestep-races-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    compile_in(folder, "-c", *map(str, sorted(NATIVE.glob("*.c"))))
    return tuple(map(str, sorted(folder.glob("*.o"))))


def compile_in(folder: Path, *arguments: str) -> None:
    command = [*find_compiler().command, *FLAGS, *flags_of(HERE.name), f"-iquote{NATIVE}", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def races(program: Path, limit_s: float = 300) -> int:
    """How many races were reported."""
    # TSan's shadow memory does not fit under every layout of the address space.
    command = [*(["setarch", "-R"] if shutil.which("setarch") else []), str(program)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=limit_s, env={"TSAN_OPTIONS": "exitcode=66"}
    )
    found = done.stderr.count(REPORT)
    assert done.returncode == (66 if found else 0), done.stderr[-2000:]
    return found


def need_thread_sanitizer(folder: Path) -> None:
    """Raise NoThreadSanitizerError unless a program with one thread can be built and run."""
    (folder / "probe.c").write_text("int main(void) { return 0; }\n")
    command = [*find_compiler().command, "-fsanitize=thread", str(folder / "probe.c"), "-o", str(folder / "probe")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise NoThreadSanitizerError(f"{command[0]} cannot link -fsanitize=thread: {built.stderr.strip()[-200:]}")
    try:
        races(folder / "probe")
    except AssertionError as error:
        raise NoThreadSanitizerError(f"its programs do not run here: {error}") from None
