"""CUDA C++ -> machine code with NVRTC; it needs no GPU, driver or toolkit."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from wholestep.compiler.backends.cuda.driver.driver import INSTALL
from wholestep.compiler.backends.gpu.render.source import GpuSource, with_primitives
from wholestep.compiler.runtime.cache.content_store import ContentStore, key_of
from wholestep.errors import CompilerError

SUFFIX = ".cubin"
PTX = Path(__file__).parents[1] / "native" / "ptx.h"  # the primitives that need PTX
TOGETHER = 4  # functions per compilation unit at least; several units compile in parallel
UNITS_PER_CORE = 2  # a core that is done with a small unit takes another; each takes 25 ms for the headers
FUNCTION = 10_000  # characters of source that NVRTC compiles in the time that any function takes, 0.15 s


@cache
def nvrtc() -> Any:
    """The module of compiler functions; CompilerError if it is missing."""
    try:
        from cuda.bindings import nvrtc as module

        error, *_ = module.nvrtcVersion()
    except Exception as error:  # the bindings raise several types if the library is missing
        raise CompilerError(
            f"kernels for a GPU are compiled by NVRTC, which cannot be loaded ({type(error).__name__}: {error}). "
            f"Install it: {INSTALL}."
        ) from None
    return module


def nvrtc_version() -> str:
    _, major, minor = nvrtc().nvrtcVersion()
    return f"{major}.{minor}"


def _check(error: Any, what: str) -> None:
    if int(error):
        raise CompilerError(f"NVRTC refused {what}: {nvrtc().nvrtcGetErrorString(error)[1].decode()}.")


def options(architecture: str) -> list[bytes]:
    """Compiler options."""
    return [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"--device-as-default-execution-space"]


def compile_text(text: str, architecture: str) -> bytes:
    """Machine code of a translation unit for "sm_90", or PTX for "compute_90"."""
    library = nvrtc()
    error, program = library.nvrtcCreateProgram(text.encode(), b"wholestep.cu", 0, [], [])
    _check(error, "a program")
    flags = options(architecture)
    (error,) = library.nvrtcCompileProgram(program, len(flags), flags)
    if int(error):
        _, size = library.nvrtcGetProgramLogSize(program)
        log = b" " * size
        library.nvrtcGetProgramLog(program, log)
        library.nvrtcDestroyProgram(program)
        lines = log.decode().splitlines()
        errors = "\n".join(line for line in lines if "error" in line) or "\n".join(lines)
        raise CompilerError(f"NVRTC refused our source, which is a bug of Wholestep:\n{errors[:4000]}")
    is_binary = architecture.startswith("sm_")
    _, size = (library.nvrtcGetCUBINSize if is_binary else library.nvrtcGetPTXSize)(program)
    code: bytes = b" " * size
    (error,) = (library.nvrtcGetCUBIN if is_binary else library.nvrtcGetPTX)(program, code)
    _check(error, "its result")
    library.nvrtcDestroyProgram(program)
    return code


def pieces(source: GpuSource) -> list[tuple[list[str], str]]:
    """Compilation units of the source, which compile in parallel, each with its functions; the longest first."""
    texts = source.text.rstrip("\n").split("\n\n")
    names = source.functions
    assert len(texts) == len(names), f"{len(texts)} texts of {len(names)} functions"
    count = max(1, min(UNITS_PER_CORE * (os.cpu_count() or 1), -(-len(names) // TOGETHER)))
    units: list[list[int]] = [[] for _ in range(count)]
    lengths = [0] * count
    for i in sorted(range(len(texts)), key=lambda i: (-len(texts[i]), i)):
        unit = lengths.index(min(lengths))
        units[unit].append(i)
        lengths[unit] += len(texts[i]) + FUNCTION
    return [([names[i] for i in sorted(unit)], "\n\n".join(texts[i] for i in sorted(unit))) for unit in units]


def translation_unit(kernels: str) -> str:
    """The complete CUDA C++ source of some kernels."""
    return with_primitives(kernels, PTX.read_text(encoding="utf-8"))


def compile_kernels(body: str, architecture: str, cache: ContentStore) -> bytes:
    """Machine code of some kernels, cached by the source text."""
    text = translation_unit(body)
    key = key_of("cuda", text, architecture, nvrtc_version())
    path = cache.get(key, SUFFIX) or cache.put(key, compile_text(text, architecture), SUFFIX)
    return path.read_bytes()


def compile_source(source: GpuSource, architecture: str, cache: ContentStore) -> list[tuple[list[str], bytes]]:
    """Functions and machine code of each compilation unit, cached by the source text."""

    def compile_unit(piece: tuple[list[str], str]) -> tuple[list[str], bytes]:
        names, body = piece
        return names, compile_kernels(body, architecture, cache)

    units = [piece for piece in pieces(source) if piece[0]]
    if len(units) == 1:
        return [compile_unit(units[0])]
    with ThreadPoolExecutor(min(len(units), os.cpu_count() or 1)) as pool:
        return list(pool.map(compile_unit, units))
