"""Run plans of `cpu/neon` under qemu: a program of the plan's C, the runtime and main.c, for a Linux on ARM64.

It takes what `tests.compiler.native.Loaded` takes, and gives what that gives.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.native import FENCE, Ran, assert_fences_stand, memory_of, results_of, scalars_of
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE, PARTS, SHARED, CCompiler
from wholestep.compiler.backends.cpu.target import NEON, PORTABLE
from wholestep.compiler.plan.model.kernel import Plan, Space

QEMU = ("qemu-aarch64-static", "qemu-aarch64")
LIBRARY = ("gemm.c", "pool.c", "loop.c", "group.c", PARTS["double"], PARTS["half"], *SHARED.values())
INSTALL = "apt-get install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
TARGETS = (NEON.name, PORTABLE.name)


@functools.cache
def emulator() -> str | None:
    return next((path for name in QEMU if (path := shutil.which(name))), None)


@functools.cache
def cross_compiler() -> CCompiler | None:
    """gcc for ARM64, else zig."""
    gcc = shutil.which("aarch64-linux-gnu-gcc")
    if gcc is not None:
        return CCompiler((gcc, "-O1"), "cross")
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return None
    return CCompiler((sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-O1"), "cross")


needs_arm64 = pytest.mark.skipif(
    emulator() is None or cross_compiler() is None, reason=f"needs qemu and a compiler for ARM64: {INSTALL}"
)


def compile_arm64(target: str, files: Sequence[str], folder: Path) -> list[Path]:
    """Object files of C files, which lie in `folder` or in the package."""
    compiler = cross_compiler()
    assert compiler is not None
    objects = []
    for name in files:
        source = folder / name if (folder / name).exists() else NATIVE / name
        objects.append(folder / f"{name}.o")
        command = [*compiler.call(target, name), "-Wno-error", "-c", str(source), "-o", str(objects[-1])]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return objects


@functools.cache
def runtime(target: str) -> tuple[list[Path], tempfile.TemporaryDirectory[str]]:
    """The object files of the runtime and of main.c, compiled once per process; the folder lives as long."""
    folder = tempfile.TemporaryDirectory(prefix="wholestep-arm64-")
    shutil.copy(Path(__file__).with_name("main.c"), folder.name)
    return compile_arm64(target, ["main.c", *LIBRARY], Path(folder.name)), folder


class Emulated:
    """A plan of an ARM64 target as a program that qemu runs."""

    def __init__(self, plan: Plan) -> None:
        assert plan.target in TARGETS, plan.target
        self.plan = plan
        self.folder = tempfile.TemporaryDirectory(prefix="wholestep-arm64-")
        here, compiler = Path(self.folder.name), cross_compiler()
        assert compiler is not None
        (here / "plan.c").write_text(render(plan))
        objects = [*compile_arm64(plan.target, ["plan.c"], here), *runtime(plan.target)[0]]
        self.program = here / "program"
        command = [*compiler.command, "-static", *map(str, objects), "-o", str(self.program), "-lm", "-pthread"]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        sizes: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
        threads: int = 2,
        seed: int = 0,
        step: int = 0,
        times: int = 1,
    ) -> Ran:
        plan, memory = self.plan, memory_of(self.plan, inputs, state)
        dims = [sizes[s] for s in plan.symbols]
        numbers = [threads, times, FENCE, plan.arena_bytes, plan.work_bytes, max(1, plan.slots), seed, step]
        parts = [np.array([*numbers, len(dims), *dims], np.int64), np.array(len(plan.scalars), np.int64)]
        parts += [np.array(scalars_of(plan, step, scalars), np.float64), np.array(len(memory), np.int64)]
        for flat in memory.values():
            parts += [np.array(flat.size, np.int64), flat]
        given, result = (Path(self.folder.name, name) for name in ("given", "result"))
        given.write_bytes(b"".join(part.tobytes() for part in parts))
        subprocess.run([str(emulator()), str(self.program), str(given), str(result)], check=True, timeout=600)
        left = np.frombuffer(result.read_bytes(), np.uint8)
        for id, flat in memory.items():
            memory[id], left = left[: flat.size], left[flat.size :]
        arena = plan.arena_bytes + FENCE
        assert_fences_stand(plan, {Space.ARENA: left[:arena], Space.WORK: left[arena:]}, memory)
        return results_of(plan, memory, sizes)
