"""The folder of an exported step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wholestep.compiler.backends.cpu.export.block import lay_out
from wholestep.compiler.backends.cpu.export.sources import OWN, c_files, compile_flags, compiled_files
from wholestep.compiler.backends.cpu.export.spec import ExportedStep
from wholestep.compiler.backends.cpu.export.tables import file_tensors
from wholestep.compiler.plan.io import serialize
from wholestep.errors import OptionError
from wholestep.nn.state.weights import save_arrays
from wholestep.session.export.collect import collect
from wholestep.session.export.manifest import manifest
from wholestep.session.export.wasm import PORTABLE, compile_module, loader
from wholestep.session.programs import Programs
from wholestep.session.state_dict import state_dict

FORMS = ("c", "wasm")
WEIGHTS, MANIFEST = "weights.safetensors", "manifest.json"


def write_folder(
    programs: Programs, folder: Path, to: str, target: str | None, experiment: Mapping[str, Any] | None = None
) -> Path:
    """Write the step of a session into a folder, as C source or as a WebAssembly module."""
    if to not in FORMS:
        raise OptionError(f"to={to!r}: expected one of {', '.join(map(repr, FORMS))}.")
    step = collect(programs, PORTABLE if to == "wasm" else target)
    block = lay_out(step)
    files = c_files(step, block)
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
    if to == "wasm":
        compile_module(folder, step.target, compiled_files(files))
    return folder


def _project(step: ExportedStep, files: Mapping[str, str]) -> dict[str, str]:
    """The example and the CMake file."""
    cmake = (OWN / "CMakeLists.txt").read_text(encoding="utf-8")
    flags = [flag for flag in compile_flags(step.target) if not flag.startswith("-O")]
    cmake = cmake.replace("@FLAGS@", " ".join(flags)).replace("@SOURCES@", "\n  ".join(compiled_files(files)))
    return {"main.c": (OWN / "main.c").read_text(encoding="utf-8"), "CMakeLists.txt": cmake}
