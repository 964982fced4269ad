"""The folder of an exported step, as C source or as a WebAssembly module.

The module has 128-bit vectors and is compiled by `zig cc`; its results are bit for bit the same as on cpu/portable.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wholestep.compiler.backends.cpu.export.block import Block, lay_out
from wholestep.compiler.backends.cpu.export.sources import OWN, c_files, compile_flags, compiled_files
from wholestep.compiler.backends.cpu.export.spec import ExportedStep
from wholestep.compiler.backends.cpu.export.tables import file_tensors
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.runtime.background import run_all
from wholestep.compiler.runtime.threads import default_threads
from wholestep.errors import CheckpointError, CompilerError, OptionError
from wholestep.nn.state.weights import save_arrays
from wholestep.session.export.collect import collect
from wholestep.session.export.manifest import manifest
from wholestep.session.programs import Programs
from wholestep.session.state_dict import state_dict

PORTABLE = "cpu/portable"
MODULE, LOADER, MEMORY = "step.wasm", "step.mjs", "memory.c"
FUNCTION = re.compile(r"^[a-z][a-z* ]*?\**(ws_\w+)\(", re.MULTILINE)
TARGET = ("-target", "wasm32-freestanding", "-msimd128", "-mbulk-memory")
STACK = 1 << 20  # bytes of the stack, where products of half types copy blocks of their operands
FORMS = ("c", "wasm")
WEIGHTS, MANIFEST = "weights.safetensors", "manifest.json"


def write_folder(
    programs: Programs, folder: Path, to: str, target: str | None, experiment: Mapping[str, Any] | None = None
) -> Path:
    """Write the step of a session into a folder, as C source or as a WebAssembly module."""
    if to not in FORMS:
        raise OptionError(f"to={to!r}: expected one of {', '.join(map(repr, FORMS))}.")
    if to == "wasm" and target not in (None, PORTABLE):
        raise OptionError(
            f"target={target!r}: a WebAssembly module computes the bits of {PORTABLE!r}; leave target= out."
        )
    step = collect(programs, PORTABLE if to == "wasm" else target)
    block = lay_out(step)
    files = c_files(step, block)
    try:
        _write(programs, folder, to, step, block, files, experiment)
    except OSError as error:
        raise CheckpointError(
            f"the step could not be written to {folder}: {error}. Name a new folder, in a place that can be written."
        ) from error
    if to == "wasm":
        compile_module(folder, step.target, compiled_files(files))
    return folder


def _write(
    programs: Programs,
    folder: Path,
    to: str,
    step: ExportedStep,
    block: Block,
    files: Mapping[str, str],
    experiment: Mapping[str, Any] | None,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**files, **(loader() if to == "wasm" else _project(step, files))}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name, entry in step.entries.items():
        for i, plan in enumerate(entry.plans):
            suffix = i if len(entry.plans) > 1 else ""
            (folder / f"{name}{suffix}.plan").write_bytes(serialize.dump(plan))
    (folder / MANIFEST).write_text(json.dumps(manifest(step, block, experiment), indent=1) + "\n", encoding="utf-8")
    values, saved = state_dict(programs), {tensor.name for tensor in file_tensors(step)}
    save_arrays({name: array for name, array in values.items() if name in saved}, folder / WEIGHTS)


def _project(step: ExportedStep, files: Mapping[str, str]) -> dict[str, str]:
    """The example and the CMake file."""
    cmake = (OWN / "CMakeLists.txt").read_text(encoding="utf-8")
    flags = [flag for flag in compile_flags(step.target) if not flag.startswith("-O")]
    cmake = cmake.replace("@FLAGS@", " ".join(flags)).replace("@SOURCES@", "\n  ".join(compiled_files(files)))
    return {"main.c": (OWN / "main.c").read_text(encoding="utf-8"), "CMakeLists.txt": cmake}


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
