"""The native code of a plan: taken from the cache or compiled, then loaded next to the library that it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from wholestep import platforms
from wholestep.compiler.backends.cpu.runtime import library as native
from wholestep.compiler.backends.cpu.runtime.compiler import OBJECT_SUFFIX, CCompiler, compile_c, find_compiler
from wholestep.compiler.ir.types import DType
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.bodies import Call, Dot
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.background import Background
from wholestep.compiler.runtime.cache.content_store import key_of, open_cache
from wholestep.compiler.runtime.sources import compiler_version
from wholestep.options import CompileOptions

if TYPE_CHECKING:
    from wholestep.compiler.backends.cpu.render.source import CSource

KERNELS_OF_A_QUICK_FILE = 48  # kernels; at a low -O level one takes 10 ms, less than another compiler process


class PlanCode:
    """The functions of a plan in this process, by address."""

    def __init__(
        self,
        plan: Plan,
        options: CompileOptions,
        *,
        key: str,
        profile: bool,
        library: Callable[[], native.Library],
        meanwhile: Callable[[], None],
    ) -> None:
        """`library` waits for the library; `meanwhile` runs while the compilers work."""
        self._plan, self._options, self._profile = plan, options, profile
        compilation = Background(lambda: self._find_or_compile(key))
        parts = {name: Background(partial(self._find_or_build, name)) for name in parts_of(plan)}
        meanwhile()
        self.path = compilation.result()
        self.library = library()
        for name, part in parts.items():
            native.add_part(self.library, name, part.result())
        self.prologue, self.entry = native.load_plan_object(self.path)
        code = platforms.load_code(self.path)  # the same handle: an object is loaded once per process
        self.refresh = code.ws_refresh if hasattr(code, "ws_refresh") else None
        if self.refresh is not None:
            self.refresh.restype = None

    @cached_property
    def source(self) -> CSource:
        """The C source that runs."""
        from wholestep.compiler.backends.cpu.render.source import source  # not imported on a cache hit

        return source(self._plan, profile=self._profile)

    def _find_or_compile(self, key: str) -> Path:
        """The plan's shared object.  Its key is derived from the plan, so a hit neither renders nor compiles."""
        store, compiler = open_cache(self._options), compiler_of(self._options)
        key = program_key(self._plan, self._options, key)
        key = key_of("profiled", key) if self._profile else key
        cached = store.get(key, OBJECT_SUFFIX)
        if cached is not None:
            return cached
        source, target = self.source, self._plan.target
        few = len(source.kernels) <= KERNELS_OF_A_QUICK_FILE and compiler.is_quick
        files = None if few else source.files
        compiled = compile_c(source.text, files=files, cache=store, compiler=compiler, target=target)
        return store.put(key, compiled.read_bytes(), OBJECT_SUFFIX)

    def _find_or_build(self, part: str) -> Path:
        return native.build_library(open_cache(self._options), compiler_of(self._options), self._plan.target, part)


def program_key(plan: Plan, options: CompileOptions, key: str = "") -> str:
    """The key of a plan's compiled code: of the plan (or its `key`), our version and the C compiler."""
    fingerprint = compiler_of(options).fingerprint
    return key_of("program", key or serialize.dump(plan), compiler_version("cpu"), fingerprint, plan.target)


def compiler_of(options: CompileOptions) -> CCompiler:
    """The C compiler that the options select."""
    return find_compiler(options.compiler_command)


def parts_of(plan: Plan) -> list[str]:
    """The parts of the library whose products a plan calls."""
    return sorted({native.PART_OF[dtype.name] for dtype in _gemm_dtypes(plan) if dtype.name in native.PART_OF})


def _gemm_dtypes(plan: Plan) -> Iterable[DType]:
    for kernel in plan.kernels:
        if isinstance(kernel.body, Dot):
            yield plan.buffers[kernel.body.a.buffer].type.dtype
        elif isinstance(kernel.body, Call):  # attention
            yield kernel.body.dtype
