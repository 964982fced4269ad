"""C source -> shared object, through a content-addressed cache (double-checked under a lock)."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

from wholestep.compiler.runtime.background import run_all
from wholestep.compiler.runtime.cache.content_store import ContentStore, key_of
from wholestep.compiler.runtime.threads import default_threads
from wholestep.compiler.spans import inner_span
from wholestep.errors import CompilerError, PlanError
from wholestep.records import dataclass

NATIVE = Path(__file__).parents[1] / "native"
OBJECT_SUFFIX = ".so"
# Rarely needed code is built as separate libraries, so that a first start does not wait for it.
PARTS = {
    "half": "gemm_half.c",
    "double": "gemm_double.c",
    "processes": "group_processes.c",
    "sockets": "group_sockets.c",
    "copy": "copy.c",
}
# Functions that kernels of many plans call, by the header that declares them: compiled once, linked with these plans.
SHARED = {"reduce.h": "shared_reduce.c", "conv.h": "shared_conv.c", "conv_f64.h": "shared_conv_f64.c"}
SHARED_SUFFIX = ".o"
# No -ffast-math: bits are a contract.  Contraction is off, so that a multiply-add is fused only where it is written.
# -fno-trapping-math and -fno-math-errno change no value; they permit vectorization of branch-free code.
# zig cc adds UBSan below -O2, and a shared object does not contain its runtime.
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-sanitize=undefined",
)
# The entry point is hundreds of calls: optimizing it takes up to 2 s longer and makes the calls no faster.
ENTRY_FILE, ENTRY_LEVEL = "entry.c", "-O0"
LINK = ("-shared",)
# Older versions have no 64-byte vectors in a target with AVX-512, unless given -mevex512, which newer ones refuse.
OLDEST_ZIG = (0, 16)
SHOWN_LINES = 20  # lines of a failing compiler's output that the error shows
LIBRARIES = ("-lm", "-pthread")
WINDOWS_LIBRARIES = ("-lapi-ms-win-core-synch-l1-2-0",)  # WaitOnAddress
EVERY_FLAG = (*FLAGS, ENTRY_LEVEL, *LINK, *LIBRARIES)


TUNE = "-mtune=native"
_AVX2 = ("-mavx2", "-mfma", TUNE)
# Plans have the same bits as with AVX2.  The library's products use 64-byte vectors; a plan's loop does so if it
# requests 16 lanes (simdlen): 1.4-1.6 times as fast for elementary functions, 3-9 % slower if memory is the limit.
# Without avx512vl narrower loops use AVX2: with it, epilogues with selects take up to 1.4 times as long (Zen 4).
_AVX512 = ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mprefer-vector-width=256", *_AVX2)
# The C compiler's flags for each target.
TARGET_FLAGS: Mapping[str, tuple[str, ...]] = {
    "cpu/avx512bf16": ("-mavx512bf16", *_AVX512),
    "cpu/avx512": _AVX512,
    "cpu/avx2": _AVX2,
    "cpu/neonbf16": ("-mcpu=generic+bf16",),
    "cpu/neon": (),
    # 32-byte vectors without AVX are safe: no function passes them to another one.
    "cpu/portable": ("-DWS_PORTABLE", "-Wno-psabi"),
}


def flags_of(target: str) -> tuple[str, ...]:
    """The C compiler's flags for a target; raises `PlanError` for a plan of another device."""
    if target not in TARGET_FLAGS:
        targets = ", ".join(map(repr, TARGET_FLAGS))
        raise PlanError(
            f"a plan for {target!r} cannot be compiled for a CPU; expected one of {targets}. Plan it again."
        )
    return TARGET_FLAGS[target]


@dataclass(frozen=True)
class CCompiler:
    """A C compiler: its command, and a fingerprint that changes with its version."""

    command: tuple[str, ...]
    fingerprint: str

    @property
    def flags(self) -> tuple[str, ...]:
        """Our flags, without -O3 if the command specifies a level: "gcc -O1" compiles faster, to the same bits."""
        has_level = any(word.startswith("-O") for word in self.command)
        return tuple(flag for flag in FLAGS if not (has_level and flag.startswith("-O")))

    @property
    def is_quick(self) -> bool:
        """Does the command specify a low optimization level, which compiles quickly?"""
        return not {"-O0", "-O1", "-Og"}.isdisjoint(self.command)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What a shared object is linked with."""
        for_windows = sys.platform == "win32" or any("windows" in word for word in self.command)
        return (*LIBRARIES, *WINDOWS_LIBRARIES) if for_windows else LIBRARIES

    def call(self, target: str, name: str) -> list[str]:
        """The command for one file and target; the caller appends what to do and the output."""
        flags = [ENTRY_LEVEL if name == ENTRY_FILE and flag.startswith("-O") else flag for flag in self.flags]
        # zig treats -mtune=native as -mcpu=native: it would compile for this machine, whatever the target.
        target_flags = [flag for flag in flags_of(target) if not (flag == TUNE and _is_zig(self.command))]
        return [*self.command, *flags, *target_flags, f"-iquote{NATIVE}"]


class CompileCounter:
    """Counts compiler runs for plans; a test that asserts "no recompile" reads it."""

    def __init__(self) -> None:
        self.value = 0


compile_counter = CompileCounter()


def find_compiler(requested: str | None = None) -> CCompiler:
    """The compiler `requested` (a name, a path, or a command line), else gcc, clang, cc, or the `ziglang` wheel."""
    if requested is not None:
        compiler = _on_path(_words(requested))
        if compiler is None:
            raise CompilerError(
                f"the C compiler {requested!r} was not found or is not executable; name one that is on the PATH, or "
                "none to let Wholestep look for gcc, clang, cc and the ziglang wheel."
            )
        return compiler
    for name in ("gcc", "clang", "cc"):
        compiler = _on_path((name,))
        if compiler is not None:
            return compiler
    zig = _zig()
    if zig is None:
        raise CompilerError(
            "no C compiler was found: looked for gcc, clang and cc on the PATH and for the ziglang wheel in this "
            "Python. Install one, or run: pip install ziglang (which wholestep[cc] asks for). device='reference' needs "
            "none: it computes in NumPy, slowly."
        )
    return zig


def _words(command: str, system: str = sys.platform) -> tuple[str, ...]:
    """The words of a command line; on Windows a backslash separates folders and protects nothing."""
    import shlex

    if system != "win32":
        return tuple(shlex.split(command))
    return tuple(word.strip('"') for word in shlex.split(command, posix=False))


def _on_path(command: tuple[str, ...]) -> CCompiler | None:
    executable = _executable(command[0]) if command else None
    if executable is None:
        return None
    real = Path(executable).resolve()
    status = real.stat()
    # The file's identity replaces the version: running `--version` would cost a process on every start.
    fingerprint = f"{real} {status.st_size} {status.st_mtime_ns} {' '.join(command[1:])}"
    words = (executable, *command[1:])
    return CCompiler((*words, *_zig_target()) if _is_zig(words) and "-target" not in words else words, fingerprint)


def _is_zig(command: Sequence[str]) -> bool:
    """`zig cc`, or `python -m ziglang cc`."""
    return "ziglang" in command or (command[1:2] == ("cc",) and Path(command[0]).name.startswith("zig"))


def _zig_target() -> tuple[str, str]:
    """zig's name of the target; without it, zig ignores our flags and compiles for exactly this machine."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    system = {"linux": "linux-gnu", "darwin": "macos", "win32": "windows-gnu"}.get(sys.platform, sys.platform)
    return "-target", f"{machine}-{system}"


def _executable(name: str) -> str | None:
    """The path of a command, like `shutil.which`, whose module would import three compressors."""
    candidates = [Path(name)] if "/" in name else [Path(folder, name) for folder in os.get_exec_path()]
    return next((str(path) for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)


def _zig() -> CCompiler | None:
    import importlib.metadata

    try:
        version = importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        return None
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_ZIG:
        raise CompilerError(
            f"the ziglang wheel {version} is the only C compiler here, and it is too old: its clang does not take our "
            "flags for AVX-512. Run: pip install --upgrade 'ziglang>=0.16', or install gcc or clang."
        )
    return CCompiler((sys.executable, "-m", "ziglang", "cc", *_zig_target()), f"ziglang {version}")


def compile_c(
    source: str,
    *,
    files: Mapping[str, str] | None = None,
    cache: ContentStore | None = None,
    compiler: CCompiler | None = None,
    target: str,
) -> Path:
    """The shared object of a plan's C `source` for a target by name: from the cache, or compiled and cached.

    The source may include every header of `native`; their text is part of the key.
    `files` is the same program divided into several files, which are compiled in parallel.
    """
    compiler = compiler or find_compiler()
    cache = cache or ContentStore()
    key = key_of("plan", source, *native_texts(), *flags_of(target), *EVERY_FLAG, compiler.fingerprint)

    def compile_plan() -> bytes:
        compile_counter.value += 1
        files_needed = [name for header, name in SHARED.items() if f'#include "{header}"' in source]
        shared = [partial(shared_object, name, cache, compiler, target) for name in files_needed]
        return run_compiler(compiler, target, files or {"plan.c": source}, shared)

    return cache.get_or_compute(key, OBJECT_SUFFIX, compile_plan)


@lru_cache(maxsize=1)
def native_texts() -> tuple[str, ...]:
    """The names and texts of all headers, and of the functions that plans share: part of every key."""
    files = sorted([*NATIVE.rglob("*.h"), *(NATIVE / name for name in SHARED.values())])
    return tuple(
        text for path in files for text in (path.relative_to(NATIVE).as_posix(), path.read_text(encoding="utf-8"))
    )


def shared_object(name: str, cache: ContentStore, compiler: CCompiler, target: str) -> Path:
    """The object file of functions that plans share, to be linked with them: from the cache, or compiled."""
    key = key_of("shared", name, *native_texts(), *flags_of(target), *EVERY_FLAG, compiler.fingerprint)

    def compile_shared() -> bytes:
        from wholestep.compiler.runtime.build_folder import build_folder  # a start from the cache compiles nothing

        with build_folder() as folder:
            _run([*compiler.call(target, name), "-c", str(NATIVE / name), "-o", "shared.o"], folder)
            return Path(folder, "shared.o").read_bytes()

    return cache.get_or_compute(key, SHARED_SUFFIX, compile_shared)


def run_compiler(
    compiler: CCompiler, target: str, sources: Mapping[str, str], shared: Sequence[Callable[[], Path]] = ()
) -> bytes:
    """Compile `sources` (file name -> text) into one shared object and return its bytes.

    Files are compiled in parallel, one per core at a time, in the given order; `shared` returns object files to link.
    """
    from wholestep.compiler.runtime.blas_threads import on_one_thread
    from wholestep.compiler.runtime.build_folder import build_folder

    with build_folder() as folder:
        for name, text in sources.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        names = list(sources)
        with inner_span("gcc"), on_one_thread():  # limits BLAS in a thread that evaluates the step meanwhile
            if len(names) == 1:
                inputs = [names[0], *(str(build()) for build in shared)]
            else:
                commands = [[*compiler.call(target, name), "-c", name, "-o", f"{name}.o"] for name in names]
                run_all([*shared, *(partial(_run, command, folder) for command in commands)], default_threads())
                inputs = [*(f"{name}.o" for name in names), *(str(build()) for build in shared)]
            name = names[0] if len(names) == 1 else ""
            _run([*compiler.call(target, name), *LINK, *inputs, "-o", "out.so", *compiler.libraries], folder)
        return Path(folder, "out.so").read_bytes()


def _run(command: Sequence[str], folder: str) -> None:
    import subprocess

    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode != 0:
        raise CompilerError(
            f"{command[0]} failed with status {done.returncode}; if the compiler works otherwise, this is a bug in "
            f"Wholestep: please report it with this text.\n{' '.join(command)}\n{_first_errors(done.stderr)}"
        )


def _first_errors(stderr: str) -> str:
    """20 lines from the first error on, without the warnings before it; from the start if no line has an error.

    gcc and clang write "error:", linkers write that or "undefined reference".
    """
    lines = stderr.strip().splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line or "undefined " in line), 0)
    after = len(lines) - first - SHOWN_LINES
    before = [f"... {first} lines of warnings"] if first else []
    return "\n".join([*before, *lines[first:][:SHOWN_LINES], *([f"... {after} more lines"] if after > 0 else [])])
