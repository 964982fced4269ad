"""A step as a WebAssembly module with 128-bit vectors, compiled by `zig cc`; bits are those of cpu/portable."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from wholestep.compiler.backends.cpu.export.sources import OWN, compile_flags
from wholestep.compiler.runtime.background import run_all
from wholestep.compiler.runtime.threads import default_threads
from wholestep.errors import CompilerError

PORTABLE = "cpu/portable"
MODULE, LOADER, MEMORY = "step.wasm", "step.mjs", "memory.c"
FUNCTION = re.compile(r"^[a-z][a-z* ]*?\**(ws_\w+)\(", re.MULTILINE)
TARGET = ("-target", "wasm32-freestanding", "-msimd128", "-mbulk-memory")
STACK = 1 << 20  # bytes: products of half types keep blocks of their operands there


def loader() -> dict[str, str]:
    """The JavaScript module that loads a step, and what a C library would provide."""
    return {name: (OWN / name).read_text(encoding="utf-8") for name in (LOADER, MEMORY)}


def compile_module(folder: Path, target: str, sources: Sequence[str]) -> None:
    """Compile the C files of a folder to step.wasm, several at a time."""
    zig, sources = _zig(), [*sources, MEMORY]
    flags = [*TARGET, *compile_flags(target), f"-iquote{folder / 'native'}", "-Wno-unknown-warning-option"]
    names = FUNCTION.findall((folder / "step.h").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as objects:
        outputs = [f"{objects}/{i}.o" for i in range(len(sources))]

        def compile_file(source: str, output: str) -> None:
            _run([*zig, *flags, "-c", str(folder / source), "-o", output])

        pairs = zip(sources, outputs, strict=True)
        run_all([lambda s=s, o=o: compile_file(s, o) for s, o in pairs], default_threads())  # type: ignore[misc]
        exports = [f"-Wl,--export={name}" for name in [*names, "__heap_base"]]
        link = ["-O3", "-nostdlib", "-Wl,--no-entry", f"-Wl,-z,stack-size={STACK}", *exports]
        _run([*zig, *TARGET, *outputs, *link, "-o", str(folder / MODULE)])


def _zig() -> list[str]:
    if importlib.util.find_spec("ziglang") is None:
        raise CompilerError("a WebAssembly module is compiled by zig, which is not installed. Run: pip install ziglang")
    return [sys.executable, "-m", "ziglang", "cc"]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        raise CompilerError(
            f"zig cc failed with status {done.returncode}; expected the ziglang wheel of at least version 0.16. "
            f"Run: pip install --upgrade ziglang.\n{' '.join(command)}\n{done.stderr[-2000:]}"
        )
