"""A process that loads plan files and runs them, one for each line it reads; what it writes tells how that ended.

Memory of a session lies between pages that cannot be touched: a kernel that leaves it ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import sys
from pathlib import Path

import numpy as np

import wholestep as ws
from wholestep.compiler.backends.cpu.runtime import compiler
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime import memory
from wholestep.errors import CompilerError, WholestepError

PAGE, LINE = mmap.PAGESIZE, 64
_kept = []


def between_fences(size: int) -> np.ndarray:
    """Bytes that end where a page begins that cannot be touched, and begin behind one such."""
    rounded = -(-max(size, 1) // PAGE) * PAGE
    mapped = mmap.mmap(-1, rounded + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _kept.append(mapped)
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for address in (base, base + PAGE + rounded):
        assert protect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0) == 0
    whole = np.frombuffer(mapped, np.uint8)
    return whole[PAGE + rounded - size : PAGE + rounded]


def fenced_region(self: memory.Region, size: int) -> None:
    self.size = -(-size // LINE) * LINE
    self._bytes = between_fences(self.size) if self.size else np.empty(0, np.uint8)
    self._bytes.fill(0)
    self.address = self._bytes.ctypes.data


def inputs_of(plan: Plan, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    given = {}
    for name, id in plan.inputs:
        type = plan.buffers[id].type
        shape = tuple(evaluate(e, sizes) for e in type.shape)
        dtype = type.dtype.numpy
        flat = between_fences(int(np.prod(shape)) * dtype.itemsize).view(dtype)
        if dtype.kind == "f":
            flat[:] = np.random.default_rng(0).standard_normal(flat.size)
        given[name] = flat.reshape(shape)
    return given


def run(path: str) -> str:
    try:
        plan = serialize.load(Path(path).read_bytes())
        session = ws.Session(plan, threads=1, options=ws.CompileOptions(cache=False))
        for sizes in (plan.sizes, dict.fromkeys(plan.symbols, 1)):
            session.step(inputs_of(plan, sizes))
    except CompilerError as error:
        return f"not C: {str(error)[-300:]}"
    except WholestepError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"foreign: {error!r}"
    return "ran"


def main() -> None:
    # Of a plan that asks for more, memory is refused rather than the machine's spent.
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory.Region.__init__ = fenced_region  # type: ignore[method-assign]
    compiler.FLAGS = tuple("-O0" if flag == "-O3" else flag for flag in compiler.FLAGS)
    ws.Session(serialize.load(Path(sys.argv[1]).read_bytes()), threads=1, options=ws.CompileOptions(cache=False))
    print("ready", flush=True)
    for line in sys.stdin:
        print(run(line.strip()).replace("\n", " "), flush=True)
        _kept.clear()


if __name__ == "__main__":
    main()
