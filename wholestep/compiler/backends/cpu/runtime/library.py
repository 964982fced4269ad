"""The native runtime library: compiled once per machine, loaded once per process; its C structures and functions."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from ctypes import POINTER, Structure, c_double, c_int, c_long, c_uint64, c_void_p
from pathlib import Path

import numpy as np

from wholestep import platforms
from wholestep.compiler.backend import IndexRefusedError
from wholestep.compiler.backends.cpu.runtime.compiler import (
    EVERY_FLAG,
    NATIVE,
    OBJECT_SUFFIX,
    PARTS,
    SHARED,
    CCompiler,
    compile_counter,
    find_compiler,
    flags_of,
    native_texts,
    run_compiler,
)
from wholestep.compiler.ir.semantics import random
from wholestep.compiler.runtime.cache.content_store import ContentStore, key_of
from wholestep.compiler.runtime.process_group import GroupFailedError
from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads

__all__ = [
    "Ahead",
    "Body",
    "NativeBound",
    "NativeCall",
    "Copy",
    "Gemm",
    "NativeGroup",
    "Library",
    "NativeLoop",
    "LoopInput",
    "NativePhase",
    "NativeShare",
    "NativeStep",
    "MicroBatchLoop",
    "SEQUENTIAL",
    "SHUFFLED",
    "EXPLICIT",
    "build_library",
    "compile_counter",
    "default_threads",
    "load_library",
    "load_plan_object",
]

SEQUENTIAL, SHUFFLED, EXPLICIT = range(3)
CALLING_THREAD = 1 << 16  # passed as `threads`: run on the calling thread, outside of the pool
GROUP_FAILED = (errno.ETIMEDOUT, errno.EPIPE, errno.EPROTO, errno.EBADMSG)
DOUBTFUL = 64  # values per piece of normal draws that NumPy may have to round; one in half a million is expected
_NORMALS = (c_uint64, c_uint64, c_long, c_double, c_double, c_double, c_void_p, c_void_p, c_long)
NO_LIBRARY = {*PARTS.values(), *SHARED.values()}  # files that are compiled separately
INCLUDED = "gemm.c"  # the parts include this file to instantiate its products for other element types
Body = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_int)


class Ahead(Structure):
    """`ws_ahead` of ws.h: memory that is prefetched while a product runs; `bytes` and `step` in bytes."""

    _fields_ = [("start", c_void_p), *[(name, c_long) for name in ("count", "bytes", "step")]]


class Gemm(Structure):
    """`ws_gemm` of ws.h: one matrix product, strides in elements."""

    _fields_ = [
        *[(name, c_long) for name in ("m", "n", "k")],
        ("a", c_void_p),
        *[(name, c_long) for name in ("a_m", "a_k", "a_kp")],
        ("b", c_void_p),
        *[(name, c_long) for name in ("b_k", "b_p")],
        ("c", c_void_p),
        *[(name, c_long) for name in ("c_m", "c_p", "add")],
        ("ahead", POINTER(Ahead)),
        ("aheads", c_long),
        ("a_mp", c_long),
    ]


class Pairs(Structure):
    """`ws_pairs` of ws.h: packs half elements into pairs of rows, strides in elements."""

    _fields_ = [
        ("rows", c_long),
        ("columns", c_long),
        ("source", c_void_p),
        ("source_k", c_long),
        ("source_p", c_long),
        ("to", c_void_p),
        ("to_p", c_long),
    ]


class NativeCall(Structure):
    """`ws_call` of ws.h: the arguments of an entry point."""

    _fields_ = [
        ("api", c_void_p),
        ("dims", POINTER(c_long)),
        ("buffers", POINTER(c_void_p)),
        ("arena", c_void_p),
        ("work", c_void_p),
        ("work_bytes", c_long),
        ("scalars", POINTER(c_double)),
        ("derived", POINTER(c_double)),
        ("seed", c_uint64),
        ("step", c_uint64),
        ("group", c_void_p),
    ]


class LoopInput(Structure):
    """`ws_input` of runtime.h: an input that the loop reads row by row from `source`."""

    _fields_ = [("source", c_void_p), ("row_bytes", c_long), ("slot", c_void_p), ("staging", c_void_p)]


class NativeBound(Structure):
    """`ws_bound` of runtime.h: indices that must be below a limit."""

    _fields_ = [("slot", c_void_p), ("count", c_long), ("limit", c_uint64), ("bytes", c_int)]


class NativeStep(Structure):
    """`ws_step_call` of runtime.h: one step."""

    _fields_ = [
        ("prologue", c_void_p),
        ("entry", c_void_p),
        ("call", POINTER(NativeCall)),
        ("bounds", POINTER(NativeBound)),
        ("bound_count", c_int),
        ("threads", c_int),
    ]


class NativeLoop(Structure):
    """`ws_loop` of runtime.h: many steps of one epoch."""

    _fields_ = [
        ("prologue", c_void_p),
        ("entry", c_void_p),
        ("call", POINTER(NativeCall)),
        ("batch_dim", c_void_p),
        ("inputs", POINTER(LoopInput)),
        ("order", c_void_p),
        ("loss", c_void_p),
        ("refused", c_void_p),
        ("losses", c_void_p),
        ("step_scalar", c_void_p),
        ("order_seed", c_uint64),
        ("order_epoch", c_uint64),
        *[(name, c_long) for name in ("rows", "capacity", "position", "steps")],
        ("seconds", c_double),
        *[(name, c_int) for name in ("input_count", "order_kind", "loss_is_double", "stop_on_refusal", "threads")],
        ("own_dim", c_void_p),
        ("rows_dim", c_void_p),
    ]


WHOLE, HALF = 0, {"bfloat16": 1, "float16": 2}


class Copy(Structure):
    """`ws_copy` of runtime.h: a transposed or half-precision copy of a state."""

    _fields_ = [
        ("state", c_void_p),
        ("copy", c_void_p),
        ("rows", c_long),
        ("columns", c_long),
        *[(name, c_int) for name in ("paneled", "bytes", "half", "transposed")],
    ]


PHASE_DIMS = ("batch_dim", "first_dim", "rows_dim", "parts_dim", "own_dim", "whole_dim")


class NativePhase(Structure):
    """`ws_phase` of runtime.h: one program of a step over micro-batches."""

    _fields_ = [
        ("prologue", c_void_p),
        ("entry", c_void_p),
        ("call", POINTER(NativeCall)),
        *[(name, c_void_p) for name in PHASE_DIMS],
        ("step_scalar", c_void_p),
        ("inputs", POINTER(LoopInput)),
        ("copies", POINTER(Copy)),
        *[(name, c_int) for name in ("input_count", "copy_count", "once")],
    ]


class MicroBatchLoop(Structure):
    """`ws_micro_batch_loop` of runtime.h: many steps over micro-batches of one epoch."""

    _fields_ = [
        ("phases", POINTER(NativePhase)),
        *[(name, c_void_p) for name in ("order", "loss", "refused", "losses", "bounds")],
        *[(name, c_uint64) for name in ("order_seed", "order_epoch", "step")],
        *[(name, c_long) for name in ("rows", "batch", "part", "position", "steps")],
        ("seconds", c_double),
        *[(name, c_int) for name in ("phase_count", "bound_count", "order_kind", "loss_is_double")],
        *[(name, c_int) for name in ("stop_on_refusal", "threads")],
    ]


class NativeShare(Structure):
    """`ws_share` of group.h: one tensor of a collective."""

    _fields_ = [("source", c_void_p), ("to", c_void_p), ("count", c_long)]


Collective = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(NativeShare), c_int, c_int)


class NativeGroup(Structure):
    """`ws_group` of group.h: the ranks that run a step together, as one of them sees it."""

    _fields_ = [
        *[(name, c_int) for name in ("rank", "size", "failed")],
        ("timeout", c_double),
        *[(name, Collective) for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast")],
        ("engine", c_void_p),
        ("step", c_uint64),
        ("model", c_void_p),
    ]


class Library:
    """The functions of the runtime library, with their C signatures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dll = platforms.load_code(path)
        self.api: int = ctypes.addressof(ctypes.c_byte.in_dll(self.dll, "ws_api_table"))
        self.gemm_f32 = self._function("ws_gemm_f32", None, POINTER(Gemm))
        self.parts: dict[str, Part] = {}  # loaded when a plan needs them
        self.barrier = self._function("ws_barrier", None)
        self.order = self._function("ws_order", c_uint64, c_uint64, c_uint64, c_uint64, c_uint64)
        self._uniforms = self._function("ws_uniforms", None, c_uint64, c_uint64, c_uint64, c_long, c_void_p)
        self._normals = self._function("ws_normals", c_long, *_NORMALS)
        self._pool_run = self._function("ws_pool_run", c_int, c_void_p, c_void_p, c_int)
        self.step = self.dll.ws_step  # takes byref(Step); a call without declared argument types is fastest
        # Runs steps until `loop.steps`, the end of the epoch or the time limit; returns how many were done.
        self.run_loop = self._function("ws_run_loop", c_long, POINTER(NativeLoop))
        self.run_loop.errcheck = _check_result  # type: ignore[assignment]  # the stubs know no structures
        self.run_micro_batches = self._function("ws_run_micro_batches", c_long, POINTER(MicroBatchLoop))
        self.run_micro_batches.errcheck = _check_result  # type: ignore[assignment]

    def _function(self, name: str, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
        function = getattr(self.dll, name)
        function.restype, function.argtypes = result, list(arguments)
        return function  # type: ignore[no-any-return]

    def run_step(self, prologue: int | None, entry: int, call: NativeCall, threads: int) -> None:
        """Run one step: the prologue, then `entry` on every thread.  The caller advances `call.step`."""
        step = NativeStep(prologue=prologue, entry=entry, call=ctypes.pointer(call), threads=threads)
        check(self.step(ctypes.byref(step)), threads)

    def pool_run(self, body: int | ctypes._CFunctionType, argument: int | None, threads: int) -> None:
        """Call `body(argument, id, threads)` on every thread of the pool and wait for all of them."""
        check(self._pool_run(ctypes.cast(body, c_void_p), argument, threads), threads)

    def uniforms(self, key: int, step: int, block: int, count: int) -> random.Floats:
        """Four uniform values for each of `count` Philox blocks."""
        out = np.empty(4 * count)
        self._uniforms(key, step, block, count, out.ctypes.data)
        return out

    def normals(self, key: int, first: int, formula: random.Formula, out: random.Singles) -> random.Places | None:
        """Write normal values by a formula.  Returns the positions that NumPy must round; None if too many."""
        positions = np.empty(DOUBTFUL, np.int64)
        parameters = formula.lift, formula.scale, formula.shift
        count = self._normals(key, first, len(out), *parameters, out.ctypes.data, positions.ctypes.data, DOUBTFUL)
        return positions[:count] if count <= DOUBTFUL else None


# Part of the library -> function -> its argument structure; then dtype -> the part that has its GEMM.
FUNCTIONS: dict[str, dict[str, type[Structure]]] = {
    "half": {"gemm_bf16": Gemm, "gemm_f16": Gemm, "pair_rows": Pairs},
    "double": {"gemm_f64": Gemm},
}
PART_OF = {"bfloat16": "half", "float16": "half", "float64": "double"}


class Part:
    """Products that the base library lacks; they are added to the function table that plans use."""

    def __init__(self, name: str, path: Path, library: Library) -> None:
        self.dll, self.library = platforms.load_code(path), library  # kept alive: a part may call its products
        self.functions = {function: getattr(self.dll, f"ws_{function}") for function in FUNCTIONS[name]}
        for function, argument in FUNCTIONS[name].items():
            self.functions[function].restype, self.functions[function].argtypes = None, [POINTER(argument)]
        self.dll[f"ws_add_{name}"](c_void_p(library.api))


def _check_result(done: int, function: object, arguments: tuple[NativeLoop | MicroBatchLoop]) -> int:
    """The steps that a loop has run; raises if the result is a negative error number."""
    if done == -errno.EDOM:
        raise IndexRefusedError
    check(max(0, -done), arguments[0].threads)
    return done


def check(error: int, threads: int) -> None:
    """Raise the exception that corresponds to an error number of the library; 0 is success."""
    if error == 0:
        return
    if error == errno.EINVAL and not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"threads={threads}: expected 1 to {MAX_THREADS}")
    if error == errno.EINVAL:
        raise ValueError("a loop without a batch dimension needs rows that are a multiple of its capacity")
    if error in GROUP_FAILED:
        raise GroupFailedError(error)
    if error == errno.EDEADLK:
        raise RuntimeError("a step was started from inside a step of the same process; run them one after the other")
    raise OSError(error, f"could not start {threads} threads: {os.strerror(error)}; use fewer with threads=")


def library_sources(part: str = "") -> dict[str, str]:
    """The text of every file that is compiled for the library, or for one of its parts, by name."""
    names = {PARTS[part]} if part else {path.name for path in NATIVE.glob("*.c")} - NO_LIBRARY
    order = sorted(names, key=lambda name: (name != INCLUDED, name))  # the slowest file is compiled first
    return {name: (NATIVE / name).read_text(encoding="utf-8") for name in order}


def build_library(cache: ContentStore, compiler: CCompiler, target: str, part: str = "") -> Path:
    """The shared object of the library for a target by name, or of one of its parts, cached."""
    sources = library_sources(part)
    texts = [
        *(text for pair in sources.items() for text in pair),
        (NATIVE / INCLUDED).read_text(encoding="utf-8"),
        *native_texts(),
    ]
    key = key_of("library", part, *texts, *EVERY_FLAG, *flags_of(target), compiler.fingerprint)
    return cache.get_or_compute(key, OBJECT_SUFFIX, lambda: run_compiler(compiler, target, sources))


_loaded: dict[str, Library] = {}  # by target name: `cpu/portable` has products with other bits
_loading = threading.Lock()


def _after_fork() -> None:
    """A forked child has none of its parent's threads, so a lock that one of them held would never be released."""
    global _loading
    _loading = threading.Lock()


platforms.after_fork(_after_fork)


def is_loaded(target: str) -> bool:
    """Has this process loaded the library of a target?"""
    return target in _loaded


def load_library(target: str, cache: ContentStore | None = None, compiler: CCompiler | None = None) -> Library:
    """The library of a target in this process.  The first call decides how it is built: a target has only one pool."""
    with _loading:
        if target not in _loaded:
            _loaded[target] = Library(build_library(cache or ContentStore(), compiler or find_compiler(), target))
            random.register_native_generators(_loaded[target].uniforms, _loaded[target].normals)
        return _loaded[target]


def add_part(library: Library, name: str, path: Path) -> None:
    """Load a part of the library into this process, unless it is already loaded."""
    with _loading:
        if name not in library.parts:
            library.parts[name] = Part(name, path, library)


def load_plan_object(path: Path) -> tuple[int | None, int]:
    """Load a plan's shared object; returns the addresses of its `ws_prologue` (None without one) and `ws_entry`."""
    plan = platforms.load_code(path)
    entry = ctypes.cast(plan.ws_entry, c_void_p).value
    assert entry is not None
    prologue = ctypes.cast(plan.ws_prologue, c_void_p).value if hasattr(plan, "ws_prologue") else None
    return prologue, entry
