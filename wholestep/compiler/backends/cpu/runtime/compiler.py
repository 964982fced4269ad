"""From C source to a shared object, through the cache."""

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
# What most programs have none of are libraries of their own: a first start would wait for them.
PARTS = {
    "half": "gemm_half.c",
    "double": "gemm_double.c",
    "processes": "group_processes.c",
    "sockets": "group_sockets.c",
    "copy": "copy.c",
}
# What kernels of many plans call, by the header that declares it: compiled once, linked with plans that include it.
SHARED = {"reduce.h": "shared_reduce.c", "conv.h": "shared_conv.c", "conv_f64.h": "shared_conv_f64.c"}
SHARED_SUFFIX = ".o"
# What only the library is made of; every other header may be included by a plan and is part of its key.
LIBRARY_HEADERS = frozenset(
    {"runtime.h", "gemm_tile.h", "gemm_vector.h", "gemm_portable.h", "order.h", "loop.h"}
    | {"group_sums.h", "group_rows.h", "group_waiting.h", "group_messages.h", "waiting.h"}
)

# No -ffast-math: bits are a contract.  Contraction is off so that a multiply-add is fused only where it is written.
# -fno-trapping-math and -fno-math-errno change no value; they let branch-free code be vectorised.
# zig cc adds UBSan below -O2, and its runtime is not in a shared object.
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
# Hundreds of calls in a row: a higher level takes up to 2 s longer, and the calls take as long.
ENTRY_FILE, ENTRY_LEVEL = "entry.c", "-O0"
LINK = ("-shared",)
OLDEST_ZIG = (
    0,
    16,
)  # before, a target with AVX-512 has no 64-byte vectors unless -mevex512 is said, which is gone since
SHOWN_LINES = 20  # of what a compiler says when it fails
LIBRARIES = ("-lm", "-pthread")
EVERY_FLAG = (*FLAGS, ENTRY_LEVEL, *LINK, *LIBRARIES)


TUNE = "-mtune=native"
_AVX2 = ("-mavx2", "-mfma", TUNE)
# The same bits as AVX2.  The library's products use 64-byte vectors; a plan's loop does so where it asks for 16 lanes
# (simdlen), which is 1.4-1.6 times as fast for elementary functions and 3-9 % slower where memory is the limit.
# Without avx512vl narrower loops are AVX2's own: with it, epilogues that select take up to 1.4 times as long (Zen 4).
_AVX512 = ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mprefer-vector-width=256", *_AVX2)
# What the C compiler is told of each target.
TARGET_FLAGS: Mapping[str, tuple[str, ...]] = {
    "cpu/avx512bf16": ("-mavx512bf16", *_AVX512),
    "cpu/avx512": _AVX512,
    "cpu/avx2": _AVX2,
    "cpu/portable": ("-Wno-psabi",),  # 32-byte vectors without AVX: they stay inside a function
}


def flags_of(target: str) -> tuple[str, ...]:
    """What the C compiler is told of a target; a plan for another device is refused."""
    if target not in TARGET_FLAGS:
        known = ", ".join(map(repr, TARGET_FLAGS))
        raise PlanError(f"a plan for {target!r} cannot be compiled for a CPU; expected one of {known}. Plan it again.")
    return TARGET_FLAGS[target]


@dataclass(frozen=True)
class CCompiler:
    """A C compiler: how to call it, and a fingerprint that changes when it does."""

    command: tuple[str, ...]
    fingerprint: str

    @property
    def flags(self) -> tuple[str, ...]:
        """Ours, without our level where the command line names one: "gcc -O1" compiles faster, to the same bits."""
        levelled = any(word.startswith("-O") for word in self.command)
        return tuple(flag for flag in FLAGS if not (levelled and flag.startswith("-O")))

    @property
    def is_quick(self) -> bool:
        """Does the command line ask for a level that takes little time?"""
        return not {"-O0", "-O1", "-Og"}.isdisjoint(self.command)

    def call(self, target: str, name: str) -> list[str]:
        """How it is called for a file of a target; what to do, and what to write, is to be added."""
        flags = [ENTRY_LEVEL if name == ENTRY_FILE and flag.startswith("-O") else flag for flag in self.flags]
        # zig takes -mtune=native for -mcpu=native: it would compile for this machine, whatever the target.
        target_flags = [flag for flag in flags_of(target) if not (flag == TUNE and _is_zig(self.command))]
        return [*self.command, *flags, *target_flags, f"-iquote{NATIVE}"]


class CompileCounter:
    """How often a compiler was run for a plan; a test that asserts "no recompile" reads it."""

    def __init__(self) -> None:
        self.value = 0


compile_counter = CompileCounter()


def find_compiler(requested: str | None = None) -> CCompiler:
    """The compiler `requested` (a name, a path, or a command line), else gcc, clang, cc, or the `ziglang` wheel."""
    if requested is not None:
        import shlex

        found = _on_path(tuple(shlex.split(requested)))
        if found is None:
            raise CompilerError(
                f"the C compiler {requested!r} was not found or is not executable; name one that is on the PATH, or "
                "none to let Wholestep look for gcc, clang, cc and the ziglang wheel."
            )
        return found
    for name in ("gcc", "clang", "cc"):
        found = _on_path((name,))
        if found is not None:
            return found
    zig = _zig()
    if zig is None:
        raise CompilerError(
            "no C compiler was found: looked for gcc, clang and cc on the PATH and for the ziglang wheel in this "
            "Python. Install one, or run: pip install ziglang (which wholestep[cc] asks for). device='reference' needs "
            "none: it computes in NumPy, slowly."
        )
    return zig


def _on_path(command: tuple[str, ...]) -> CCompiler | None:
    executable = _executable(command[0]) if command else None
    if executable is None:
        return None
    real = Path(executable).resolve()
    status = real.stat()
    # The file's identity stands for the version: asking `--version` would cost a process on every start.
    fingerprint = f"{real} {status.st_size} {status.st_mtime_ns} {' '.join(command[1:])}"
    found = (executable, *command[1:])
    return CCompiler((*found, *_zig_target()) if _is_zig(found) and "-target" not in found else found, fingerprint)


def _is_zig(command: Sequence[str]) -> bool:
    """`zig cc`, or `python -m ziglang cc`."""
    return "ziglang" in command or (command[1:2] == ("cc",) and Path(command[0]).name.startswith("zig"))


def _zig_target() -> tuple[str, str]:
    """Without a target zig compiles for exactly this machine, whatever our flags say."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    system = {"linux": "linux-gnu", "darwin": "macos"}.get(sys.platform, sys.platform)
    return "-target", f"{machine}-{system}"


def _executable(name: str) -> str | None:
    """Where a command is found, as `shutil.which` says; that module brings three compressors along."""
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

    The source may include the headers of `native` that are not the library's own; their text is part of the key.
    `files` are the same program cut into several, which are compiled side by side.
    """
    compiler = compiler or find_compiler()
    cache = cache or ContentStore()
    key = key_of("plan", source, *_plan_headers(), *flags_of(target), *EVERY_FLAG, compiler.fingerprint)
    found = cache.get(key, OBJECT_SUFFIX)
    if found is not None:
        return found
    with cache.lock(key):
        found = cache.get(key, OBJECT_SUFFIX)  # another process may have made it while we waited
        if found is not None:
            return found
        compile_counter.value += 1
        called = [name for header, name in SHARED.items() if f'#include "{header}"' in source]
        shared = [partial(shared_object, name, cache, compiler, target) for name in called]
        return cache.put(key, run_compiler(compiler, target, files or {"plan.c": source}, shared), OBJECT_SUFFIX)


@lru_cache(maxsize=1)
def _plan_headers() -> tuple[str, ...]:
    headers = [path for path in NATIVE.glob("*.h") if path.name not in LIBRARY_HEADERS]
    files = sorted([*headers, *(NATIVE / name for name in SHARED.values())])
    return tuple(text for path in files for text in (path.name, path.read_text()))


def shared_object(name: str, cache: ContentStore, compiler: CCompiler, target: str) -> Path:
    """The object of a file of functions that plans share, to be linked with them: from the cache, or compiled."""
    key = key_of("shared", name, *_plan_headers(), *flags_of(target), *EVERY_FLAG, compiler.fingerprint)
    found = cache.get(key, SHARED_SUFFIX)
    if found is not None:
        return found
    from wholestep.compiler.runtime.build_folder import build_folder  # a start from the cache compiles nothing

    with cache.lock(key), build_folder() as folder:
        found = cache.get(key, SHARED_SUFFIX)
        if found is not None:
            return found
        _run([*compiler.call(target, name), "-c", str(NATIVE / name), "-o", "shared.o"], folder)
        return cache.put(key, Path(folder, "shared.o").read_bytes(), SHARED_SUFFIX)


def run_compiler(
    compiler: CCompiler, target: str, sources: Mapping[str, str], shared: Sequence[Callable[[], Path]] = ()
) -> bytes:
    """Compile `sources` (file name -> text) into one shared object and return its bytes.

    Files are compiled side by side, one for each core at a time, the first ones first; `shared` give objects that are
    linked with them.
    """
    from wholestep.compiler.runtime.blas_threads import on_one_thread
    from wholestep.compiler.runtime.build_folder import build_folder

    with build_folder() as folder:
        for name, text in sources.items():
            Path(folder, name).write_text(text)
        names = [name for name in sources if name.endswith(".c")]
        with inner_span("gcc"), on_one_thread():  # whoever evaluates the step meanwhile
            if len(names) == 1:
                inputs = [names[0], *(str(made()) for made in shared)]
            else:
                commands = [[*compiler.call(target, name), "-c", name, "-o", f"{name}.o"] for name in names]
                run_all([*shared, *(partial(_run, command, folder) for command in commands)], default_threads())
                inputs = [*(f"{name}.o" for name in names), *(str(made()) for made in shared)]
            name = names[0] if len(names) == 1 else ""
            _run([*compiler.call(target, name), *LINK, *inputs, "-o", "out.so", *LIBRARIES], folder)
        return Path(folder, "out.so").read_bytes()


def _run(command: Sequence[str], folder: str) -> None:
    import subprocess

    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompilerError(
            f"{command[0]} failed with status {done.returncode}; if the compiler works otherwise, this is a bug in "
            f"Wholestep: please report it with this text.\n{' '.join(command)}\n{_first_errors(done.stderr)}"
        )


def _first_errors(stderr: str) -> str:
    """20 lines from the first error on; warnings before it are left out, and what has no error is shown from its start.

    gcc and clang write "error:", linkers that or "undefined reference".
    """
    lines = stderr.strip().splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line or "undefined " in line), 0)
    after = len(lines) - first - SHOWN_LINES
    before = [f"... {first} lines of warnings"] if first else []
    return "\n".join([*before, *lines[first:][:SHOWN_LINES], *([f"... {after} more lines"] if after > 0 else [])])
