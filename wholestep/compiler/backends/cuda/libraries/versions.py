"""Versions of the installed NVIDIA libraries, and which are missing, for `wholestep doctor`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

from wholestep.compiler.backends.cuda.driver.driver import INSTALL, call
from wholestep.compiler.backends.cuda.libraries.nccl import INSTALL as NCCL
from wholestep.errors import WholestepError


def _driver() -> str:
    version: int = call("cuDriverGetVersion")
    return f"for CUDA {version // 1000}.{version % 1000 // 10}"


def _nvrtc() -> str:
    from wholestep.compiler.backends.cuda.driver.nvrtc import nvrtc_version

    return nvrtc_version()


def _cublas() -> str:
    from wholestep.compiler.backends.cuda.libraries.cublas import library

    ask = library().cublasLtGetVersion
    ask.restype = ctypes.c_size_t
    return _version_text(ask(), 10_000)


def _cudnn() -> str:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    from wholestep.compiler.backends.cuda.libraries.cudnn import PACKAGE, VERSION, library

    library()  # fails unless the frontend is installed too
    ask = ctypes.CDLL(load_nvidia_dynamic_lib("cudnn").abs_path).cudnnGetVersion
    ask.restype = ctypes.c_size_t
    return f"{_version_text(ask(), 10_000)} through {PACKAGE} {VERSION}"


def _nccl() -> str:
    from wholestep.compiler.backends.cuda.libraries.nccl import version

    return version()


def _version_text(version: int, major: int) -> str:
    return f"{version // major}.{version % major // 100}.{version % 100}"


# Name -> function that returns its version or raises if it is missing.
LIBRARIES: Mapping[str, Callable[[], str]] = {
    "driver": _driver,
    "NVRTC": _nvrtc,
    "cuBLASLt": _cublas,
    "cuDNN": _cudnn,
}


# Name -> function, as above, for libraries that only distributed training needs.
OF_WORKERS: Mapping[str, Callable[[], str]] = {"NCCL": _nccl}


def library_versions() -> list[str]:
    """One line per library: its version, or that it is missing; then how to install the missing ones."""
    lines, missing = _query_versions(LIBRARIES)
    lines += [f"install what is missing: {INSTALL}"] if missing else []
    more, missing = _query_versions(OF_WORKERS)
    return [*lines, *more, *([f"workers on GPUs need it: {NCCL}"] if missing else [])]


def _query_versions(libraries: Mapping[str, Callable[[], str]]) -> tuple[list[str], bool]:
    """One line per library, and whether any is missing."""
    lines, missing = [], False
    for name, ask in libraries.items():
        try:
            lines.append(f"{name} {ask()}")
        except WholestepError:
            lines.append(f"{name} is missing")
            missing = True
    return lines, missing
