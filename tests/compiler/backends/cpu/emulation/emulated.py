"""Run plans of another machine in an emulator: a program of the plan's C, the runtime and main.c.

The machines are ARM64 with Linux, under qemu, and x86-64 with Windows, under Wine.  `Emulated` takes what
`tests.compiler.native.Loaded` takes; `emulated_cpu` is a device of sessions that runs steps so.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import math
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.compiler.native import FENCE, Flat, Ran, assert_fences_stand, memory_of, results_of, scalars_of
from wholestep.compiler.backend import LoadContext
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE, PARTS, SHARED, CCompiler
from wholestep.compiler.backends.cpu.runtime.device import CpuDevice
from wholestep.compiler.backends.cpu.runtime.library import CALLING_THREAD
from wholestep.compiler.backends.cpu.runtime.program import CpuProgram
from wholestep.compiler.devices import register, unregister
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.compiler.target import Target

LIBRARY = ("gemm.c", "pool.c", "loop.c", "group.c", PARTS["double"], PARTS["half"], *SHARED.values())


class EmulatedMachine:
    """ARM64 with Linux under qemu; another machine overrides the compiler, the emulator and how to install both."""

    install = "apt-get install qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross"

    @functools.cached_property
    def emulator(self) -> str | None:
        return shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")

    @functools.cached_property
    def compiler(self) -> CCompiler | None:
        """gcc for ARM64, else zig."""
        gcc = shutil.which("aarch64-linux-gnu-gcc")
        command = (gcc, "-O1") if gcc else _zig("aarch64-linux-musl")
        return CCompiler(command, "cross") if command else None

    @property
    def needed(self) -> pytest.MarkDecorator:
        """Skips tests where the machine cannot be emulated."""
        missing = self.emulator is None or self.compiler is None
        return pytest.mark.skipif(missing, reason=f"needs an emulator and a compiler: {self.install}")

    def compile(self, target: str, files: Sequence[str], folder: Path) -> list[str]:
        """Object files of C files that are in `folder` or in the package."""
        assert self.compiler is not None
        for name in files:
            source = folder / name if (folder / name).exists() else NATIVE / name
            call([*self.compiler.call(target, name), "-c", str(source), "-o", str(folder / f"{name}.o")])
        return [str(folder / f"{name}.o") for name in files]

    def link(self, objects: Sequence[str | Path], program: Path) -> None:
        assert self.compiler is not None
        command = [*self.compiler.command, "-static", "-s", *map(str, objects), "-o", str(program)]
        call([*command, *self.compiler.libraries])

    def run(self, program: Path, *arguments: str | Path) -> str:
        """What the program prints."""
        return call([str(self.emulator), str(program), *map(str, arguments)], self.variables)

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables of the emulator."""
        return {}

    @functools.cache  # noqa: B019  # machines live as long as the process
    def runtime(self, target: str) -> list[str]:
        """The object files of the runtime and of main.c, compiled once per process."""
        folder = temporary_folder()
        shutil.copy(Path(__file__).with_name("main.c"), folder)
        return self.compile(target, ["main.c", *LIBRARY], folder)

    @functools.lru_cache(maxsize=32)  # noqa: B019
    def program(self, target: str, text: str) -> tuple[tempfile.TemporaryDirectory[str], Path]:
        """The program of a plan's text, in a folder that lives as long as the pair."""
        folder = tempfile.TemporaryDirectory(prefix="wholestep-emulated-")
        weakref.finalize(folder, shutil.rmtree, folder.name, ignore_errors=True)  # before it warns that nobody did
        here = Path(folder.name)
        (here / "plan.c").write_text(text)
        self.link([*self.compile(target, ["plan.c"], here), *self.runtime(target)], here / "program")
        return folder, here / "program"


class WineMachine(EmulatedMachine):
    """Wine, with a configuration of its own."""

    install = "apt-get install wine wine64 && pip install ziglang"

    @functools.cached_property
    def emulator(self) -> str | None:
        return shutil.which("wine64") or shutil.which("wine")

    @functools.cached_property
    def compiler(self) -> CCompiler | None:
        command = _zig("x86_64-windows-gnu")
        return CCompiler(command, "cross") if command else None

    @functools.cached_property
    def variables(self) -> Mapping[str, str]:
        return {
            "WINEPREFIX": str(temporary_folder() / "wine"),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree,mshtml=",
        }


def _zig(triple: str) -> tuple[str, ...] | None:
    return (sys.executable, "-m", "ziglang", "cc", "-target", triple, "-O1") if find_spec("ziglang") else None


ARM64, WINDOWS = EmulatedMachine(), WineMachine()


def temporary_folder() -> Path:
    """A folder that lives as long as this process."""
    folder = tempfile.mkdtemp(prefix="wholestep-emulated-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def call(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """Run a command to its end; returns what it prints."""
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Emulated:
    """A plan as a program of another machine."""

    def __init__(self, plan: Plan, machine: EmulatedMachine = ARM64) -> None:
        self.plan, self.machine = plan, machine
        self.folder, self.program = machine.program(plan.target, render(plan))

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        sizes: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
        threads: int = 2,
        seed: int = 0,
        step: int = 0,
    ) -> Ran:
        memory = memory_of(self.plan, inputs, state)
        dims, values = [sizes[s] for s in self.plan.symbols], scalars_of(self.plan, step, scalars)
        arena, work = self.execute(list(memory.values()), dims, values, threads, seed, step)
        assert_fences_stand(self.plan, {Space.ARENA: arena, Space.WORK: work}, memory)
        return results_of(self.plan, memory, sizes)

    def execute(
        self, memory: Sequence[Flat], dims: Sequence[int], scalars: Sequence[float], threads: int, seed: int, step: int
    ) -> tuple[Flat, Flat]:
        """Run one step over the buffers, which it rewrites; returns the arena and the workspaces."""
        plan = self.plan
        numbers = [threads, FENCE, plan.arena_bytes, plan.work_bytes, max(1, plan.slots), seed, step]
        parts = [np.array([*numbers, len(dims), *dims, len(scalars)], np.int64), np.array(scalars, np.float64)]
        parts += [np.array([len(memory), *(flat.size for flat in memory)], np.int64), *memory]
        given, result = (Path(self.folder.name, name) for name in ("given", "result"))
        given.write_bytes(b"".join(part.tobytes() for part in parts))
        self.machine.run(self.program, given, result)
        left = np.frombuffer(result.read_bytes(), np.uint8)
        for flat in memory:
            flat[:], left = left[: flat.size], left[flat.size :]
        arena = plan.arena_bytes + FENCE
        return left[:arena], left[arena:]


class EmulatedProgram(CpuProgram):
    """A program of a session whose memory is here, and whose steps are emulated."""

    def __init__(self, plan: Plan, place: LoadContext) -> None:
        self.emulated = Emulated(plan)
        library = SimpleNamespace(api=None, step=lambda reference: self._emulate())
        code: Any = SimpleNamespace(prologue=None, entry=None, refresh=None, path=None, library=library)
        super().__init__(plan, place, code)

    def _emulate(self) -> int:
        plan, call, memory = self.plan, self._call, []
        views = [self._view(b.id, address) for b, address in zip(plan.pointer_buffers(), self._addresses, strict=False)]
        for buffer, view in zip(plan.pointer_buffers(), views, strict=True):
            memory.append(np.zeros(buffer.bytes, np.uint8))
            memory[-1][: view.size] = view
        scalars, dims = list(self._scalars)[: len(plan.scalars)], list(self._dims)[: len(plan.symbols)]
        threads = 1 if self.threads == CALLING_THREAD else self.threads
        self.emulated.execute(memory, dims, scalars, threads, call.seed, call.step)
        for buffer, view, flat in zip(plan.pointer_buffers(), views, memory, strict=True):
            if buffer.space is not Space.INPUT:
                view[:] = flat
        return 0

    def _view(self, id: int, address: int) -> Flat:
        """The bytes of a buffer; of an input, those that a batch of this size has."""
        buffer = self.plan.buffers[id]
        shape = [evaluate(e, self._sizes_now()) for e in buffer.type.shape]
        size = math.prod(shape) * buffer.type.dtype.size if buffer.space is Space.INPUT else buffer.bytes
        return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


class EmulatedCpu(CpuDevice):
    """A CPU of ARM64."""

    def load(self, plan: Plan, place: LoadContext, key: str = "", meanwhile: Callable[[], None] = lambda: None) -> Any:
        meanwhile()
        return EmulatedProgram(plan, place)

    def prepare(self, options: object) -> None:
        """There is no library in this process."""


@contextmanager
def emulated_cpu(target: Target) -> Iterator[str]:
    """The name of a device whose steps are those of a target for ARM64."""
    register("arm64", target, EmulatedCpu)
    try:
        yield "arm64"
    finally:
        unregister("arm64")
