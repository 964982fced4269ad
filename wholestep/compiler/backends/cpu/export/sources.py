"""The C files of an exported step: rendered plans, the native code that they call, tables, the step itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from wholestep.compiler.backends.cpu.export.block import Block
from wholestep.compiler.backends.cpu.export.spec import ExportedStep
from wholestep.compiler.backends.cpu.export.tables import checkpoint_bytes, tables
from wholestep.compiler.backends.cpu.render.source import source
from wholestep.compiler.backends.cpu.runtime.compiler import FLAGS, NATIVE, PARTS, SHARED, TUNE, flags_of
from wholestep.compiler.backends.cpu.runtime.object_loader import parts_of

OWN = Path(__file__).parent / "native"  # the parts of the step that are the same in every folder
INCLUDED = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)
OTHER_PLATFORMS = re.compile(r"platform/(?!none)")
FREESTANDING = "-DWS_FREESTANDING"
LIBRARY_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fopenmp-simd")


def c_files(step: ExportedStep, block: Block) -> dict[str, str]:
    """All C files of a step by their path in its folder."""
    plans = {f"{prefix.removeprefix('ws_')}.c": source(plan, prefix).text for prefix, plan in step.plans.items()}
    own = {
        name: (OWN / name).read_text(encoding="utf-8") for name in ("step.c", "checkpoint.h", "program.h", "tensors.h")
    }
    own |= {"step.h": _header(step, block), "tables.h": tables(step, block)}
    parts = {PARTS[part] for plan in step.plans.values() for part in parts_of(plan)}
    called = ["gemm.c", *sorted(parts), *_shared_files(plans.values())]
    files = _closure([*called, *_includes([*own.values(), *plans.values()])], own)
    return {**own, **plans, **{f"native/{name}": (NATIVE / name).read_text(encoding="utf-8") for name in files}}


def compiled_files(files: Iterable[str]) -> list[str]:
    """The C files to compile.  gemm_double.c includes gemm.c under other names, and both are compiled."""
    return [name for name in files if name.endswith(".c") and name != "main.c"]


def compile_flags(target: str) -> list[str]:
    """The compiler flags with which a step computes the same bits as in Python on a target."""
    flags = [flag for flag in (*FLAGS, *flags_of(target)) if flag not in (*LIBRARY_FLAGS, TUNE)]
    return [*flags, "-fopenmp-simd", FREESTANDING]


def _shared_files(plans: Iterable[str]) -> list[str]:
    """The files that define the functions of the headers that plans include."""
    included = set(_includes(plans))
    return [name for header, name in SHARED.items() if header in included]


def _includes(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from INCLUDED.findall(text)


def _closure(names: Iterable[str], own: Mapping[str, str]) -> list[str]:
    """Native files and all that they include, without other platforms."""
    closure: dict[str, None] = {}
    waiting = [name for name in names if name not in own]
    while waiting:
        name = waiting.pop()
        if name in closure or OTHER_PLATFORMS.match(name):
            continue
        closure[name] = None
        folder = PurePosixPath(name).parent
        for other in _includes([(NATIVE / name).read_text(encoding="utf-8")]):
            near = (folder / other).as_posix()
            waiting.append(near if (NATIVE / near).exists() else other)
    return sorted(closure)


def _header(step: ExportedStep, block: Block) -> str:
    """step.h with the sizes and names of this step."""
    predict = step.entries.get("predict")
    train = step.entries.get("train")
    sizes = {
        "WS_ABI": 1, "WS_BYTES": f"{block.bytes}L", "WS_CHECKPOINT_BYTES": f"{checkpoint_bytes(step)}L",
        "WS_BATCH": 0 if train is None else train.batch, "WS_PREDICT_BATCH": 0 if predict is None else predict.batch,
        "WS_INPUTS": len(step.inputs), "WS_OUTPUTS": len(step.outputs), "WS_SCALARS": len(step.scalars),
        "WS_STATES": len(step.states), "WS_METRICS": max(map(len, step.metrics)),
    }  # fmt: skip
    defines = "\n".join(f"#define {name} {value}" for name, value in sizes.items())
    kinds = {"INPUT": step.inputs, "OUTPUT": step.outputs, "SCALAR": step.scalars}
    names = "\n".join(_enum(kind, names) for kind, names in kinds.items() if names)
    return (OWN / "step.h").read_text(encoding="utf-8").replace("@SIZES@", defines).replace("@NAMES@", names)


def _enum(kind: str, names: Iterable[str]) -> str:
    """The numbers of tensors as C constants named after them; if two names become equal, their number is appended."""
    constants: dict[str, int] = {}
    for i, name in enumerate(names):
        constant = f"WS_{kind}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}"
        constants[f"{constant}_{i}" if constant in constants else constant] = i
    return f"enum {{ {', '.join(f'{name} = {i}' for name, i in constants.items())} }};"
