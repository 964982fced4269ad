"""Plans for a GPU, run on the CPU: the kernels' own text, compiled by a C++ compiler through `emulate.h`.

`register` makes a device of it, so that sessions and everything above them run as they would on a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.lib.stride_tricks import as_strided

from wholestep.compiler.backend import LoadContext, do_nothing
from wholestep.compiler.backends.common.numpy_program import HostDevice, HostProgram, LaunchMemory
from wholestep.compiler.backends.cuda.libraries import library_calls
from wholestep.compiler.backends.cuda.libraries.cudnn import Description
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.arena import arena_end
from wholestep.compiler.backends.gpu.grids.gemm_library import GemmOperand, Product, product_of, sizes_of_iteration
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.backends.gpu.program_memory import record_words, write_record
from wholestep.compiler.backends.gpu.render.source import GpuSource, Rendered, render, with_primitives
from wholestep.compiler.devices import register, unregister
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.attrs import AttentionAttrs
from wholestep.compiler.ir.semantics import convolution_values, layer_values
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Exchange
from wholestep.compiler.plan.model.kernel import Kernel, Plan
from wholestep.compiler.runtime.cache.content_store import key_of, open_cache
from wholestep.compiler.target import Target
from wholestep.options import CompileOptions

HERE = Path(__file__).parent
TARGET = TARGETS["cuda/sm_90"]
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-w", "-ffp-contract=off", "-fno-strict-aliasing")
RUNTIME = "emulate.o"
FENCE = 64  # bytes after the scratch memory that no kernel may write
WRONG = {1: "threads wait for ever", 2: "too many blocks wait for each other", 3: "a block's shared memory is overrun"}
Array = np.ndarray[Any, Any]


@cache
def folder() -> Path:
    """In the cache of plans and compiled code, one for each text that everything here is compiled with.

    A later run, or another process of this one, finds what was compiled before.
    """
    compiler = Path(shutil.which("g++") or "g++").resolve()
    status = compiler.stat()
    sources = [path.read_bytes() for path in sorted(HERE.iterdir()) if path.suffix in (".c", ".cpp", ".h")]
    key = key_of(header_text(), *sources, *FLAGS, f"{compiler} {status.st_size} {status.st_mtime_ns}")
    shared = open_cache(CompileOptions()).folder / "emulated" / key[:24]
    shared.mkdir(mode=0o700, parents=True, exist_ok=True)
    return shared


def header_text() -> str:
    """The primitives of kernels, and what stands in for CUDA's own."""
    return with_primitives("", (HERE / "emulate.h").read_text())


LOCK = threading.Lock()


def header() -> Path:
    """The primitives, compiled once: the same for every program.  What they call lies beside them, `RUNTIME`."""
    with LOCK:
        return _header()


@cache
def _header() -> Path:
    path = folder() / "emulated.h"
    with FileLock(path.with_suffix(".lock")):
        if not Path(f"{path}.gch").exists():
            path.write_text(header_text())
            subprocess.run(
                ["g++", *FLAGS, "-O1", "-c", str(HERE / "emulate.cpp"), "-o", str(path.parent / RUNTIME)], check=True
            )
            subprocess.run(["g++", *FLAGS, str(path), "-o", f"{path}.part"], check=True)
            Path(f"{path}.part").replace(f"{path}.gch")
    return path


def compiled(source: GpuSource) -> ctypes.CDLL:
    return compiled_text(source.text, source.functions)[0]


def compiled_text(kernels: str, functions: Sequence[str]) -> tuple[ctypes.CDLL, str]:
    """The code of some kernels, and the file that it is in."""
    entries = "\n".join(f"WS_ENTRY({name})" for name in functions)
    text = f'#include "emulated.h"\n{kernels}\n{entries}\n'
    path = header().parent / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    with FileLock(path.with_suffix(".lock")):  # processes may share a folder: one of them compiles
        if not path.exists():
            own = path.with_suffix(".part")
            path.with_suffix(".cpp").write_text(text)
            given = [str(path.with_suffix(".cpp")), str(header().parent / RUNTIME)]
            done = subprocess.run(["g++", *FLAGS, "-shared", *given, "-o", str(own)], capture_output=True, text=True)
            assert done.returncode == 0, f"{done.stderr[:4000]}\n{path.with_suffix('.cpp')}"
            own.replace(path)
    return ctypes.CDLL(str(path)), str(path)


def host_product(product: Product, a: int, b: int, c: int, bias: int = 0) -> None:
    """What a library would compute, in float64 and rounded once; operands in tf32 where it is told so."""

    def read(array: Array) -> Array:
        if not product.tf32:
            return array.astype(np.float64)
        bits = np.ascontiguousarray(array).view(np.uint32)
        return ((bits + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)

    def view(matrix: GemmOperand, address: int, rows: int, columns: int) -> Array:
        dtype = matrix.dtype.numpy
        reach = (product.batch - 1) * matrix.batch + (rows - 1) * matrix.row + (columns - 1) * matrix.column + 1
        flat = np.frombuffer((ctypes.c_uint8 * (reach * dtype.itemsize)).from_address(address), dtype)
        steps = [step * dtype.itemsize for step in (matrix.batch, matrix.row, matrix.column)]
        return as_strided(flat, (product.batch, rows, columns), steps)

    for i in range(product.outer):
        left = view(product.a, a + i * product.a.outer * product.a.dtype.size, product.m, product.k)
        right = view(product.b, b + i * product.b.outer * product.b.dtype.size, product.k, product.n)
        whole = read(left) @ read(right)
        if product.bias is not None:
            whole += read(view(product.bias, bias, 1, product.n))
        result = view(product.c, c + i * product.c.outer * product.c.dtype.size, product.m, product.n)
        result[...] = whole + result if product.adds else whole


def attended(options: Options, q: Array, k: Array, v: Array) -> tuple[Array, ...]:
    attrs = AttentionAttrs(bool(options["use_causal_mask"]), float(options["attn_scale"]))
    out = layer_values.attention(None, attrs, q, k, v)
    return out, layer_values.attention_lse(None, attrs, q, k, v)[..., None]


def attended_backward(
    options: Options, q: Array, k: Array, v: Array, o: Array, dO: Array, stats: Array
) -> tuple[Array, ...]:
    assert options["use_deterministic_algorithm"], "cuDNN adds in a fixed order only where it is told to"
    attrs = AttentionAttrs(bool(options["use_causal_mask"]), float(options["attn_scale"]))
    np.testing.assert_allclose(layer_values.attention_lse(None, attrs, q, k, v)[..., None], stats, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer_values.attention(None, attrs, q, k, v), o, rtol=0.05, atol=0.05)
    return layer_values.attention_grad(None, attrs, q, k, v, stats[..., 0], dO)


Options = Mapping[str, Any]


def _attrs(options: Options, channels: tuple[int, int], size: tuple[int, ...] | None = None) -> Any:
    """The groups follow from the channels of an image and of a filter, as in the library."""
    low, groups = options["padding"], channels[0] // channels[1]
    given = (options["stride"], low, low, options["dilation"], groups, False)
    return at.ConvAttrs(*given) if size is None else at.ConvGradAttrs(*given, size)


def convolved(options: Options, image: Array, weight: Array) -> tuple[Array, ...]:
    channels = (image.shape[1], weight.shape[1])
    return (convolution_values.conv2d(None, _attrs(options, channels), image, weight),)


def given_back(options: Options, loss: Array, filter: Array) -> tuple[Array, ...]:
    attrs = _attrs(options, (options["shape"][1], filter.shape[1]), options["shape"][2:])
    return (convolution_values.conv2d_grad_input(None, attrs, loss, filter),)


def correlated(options: Options, image: Array, loss: Array) -> tuple[Array, ...]:
    attrs = _attrs(options, (image.shape[1], options["shape"][1]), options["shape"][2:])
    return (convolution_values.conv2d_grad_weight(None, attrs, image, loss),)


HOST: Mapping[str, Callable[..., tuple[Array, ...]]] = {
    "sdpa": attended,
    "sdpa_backward": attended_backward,
    "conv_fprop": convolved,
    "conv_dgrad": given_back,
    "conv_wgrad": correlated,
}


def host_graph(description: Description, at: Mapping[str, int]) -> None:
    """What cuDNN would compute, in float64 and rounded once."""
    arrays = {a.name: a for a in description.arrays}

    def view(name: str) -> Array:
        a = arrays[name]
        dtype = a.dtype.numpy
        reach = sum((n - 1) * step for n, step in zip(a.shape, a.steps, strict=True)) + 1
        flat = np.frombuffer((ctypes.c_uint8 * (reach * dtype.itemsize)).from_address(at[name]), dtype)
        return as_strided(flat, a.shape, [step * dtype.itemsize for step in a.steps])

    made = {name for op in description.ops for name in op.outputs}
    values = {name: view(name).astype(np.float64) for name in arrays if name not in made}
    for op in description.ops:
        given = {argument: values[name] for argument, name in op.inputs}
        results = HOST[op.function]({**dict(op.options), "shape": arrays[op.outputs[0]].shape}, **given)
        for name, value in zip(op.outputs, results, strict=False):
            values[name] = value
            if name in arrays:
                view(name)[...] = value


class Emulated:
    """A plan's kernels; `threads` and `blocks` say in which order those run."""

    def __init__(self, plan: Plan, source: GpuSource | None = None, dll: ctypes.CDLL | None = None) -> None:
        self.plan, self.source = plan, source or render(plan)
        self.dll = dll or compiled(self.source)
        self.scratch = np.full(plan.arena_bytes - arena_end(plan) + FENCE, 255, np.uint8)
        self.counters = np.zeros(1 << 16, np.int32)

    def run(self, memory: LaunchMemory, threads: int = 0, blocks: int = 0) -> None:
        step = self.record(memory)
        for loop, inside in groupby(self.source.launches, lambda launch: launch.kernels[0][0].loop):
            launches = list(inside)
            alone = loop is None or launches[0].together
            turns: Sequence[int] = [-1] if alone else range(self.longest(loop))
            for turn in turns:
                for launch in launches:
                    for kernel, _ in launch.kernels:
                        if schedule_of(kernel).form == Form.LIBRARY:
                            self.multiply(kernel, memory, turn)
                        elif schedule_of(kernel).form == Form.GRAPH:
                            self.call(kernel, memory)
                        elif schedule_of(kernel).form == Form.EXCHANGE:
                            self.exchange(kernel, memory)
                    for name, preparation in launch.before:
                        grid = (preparation.blocks, 1)
                        self.launch(launch, name, memory, step, turn, (threads, blocks), grid)
                    if launch.function:
                        self.launch(launch, launch.function, memory, step, turn, (threads, blocks))
        assert not self.counters.any(), "a kernel leaves its counters as they were"
        assert (self.scratch[-FENCE:] == 255).all(), "a kernel writes behind the scratch memory"

    def multiply(self, kernel: Kernel, memory: LaunchMemory, turn: int) -> None:
        """A product of the library; in a loop, of one of its steps."""
        sizes = sizes_of_iteration(self.plan, kernel, memory.sizes, turn)
        if not sizes and memory.sizes:
            return
        found = product_of(self.plan, kernel, sizes)

        def address(matrix: GemmOperand) -> int:
            if matrix.buffer < 0:
                return int(self.scratch.ctypes.data) + schedule_of(kernel).scratch_at
            return int(memory.arrays[matrix.buffer].ctypes.data) + matrix.offset * matrix.dtype.size

        bias = 0 if found.bias is None else address(found.bias)
        host_product(found, *map(address, (found.a, found.b, found.c)), bias)

    def call(self, kernel: Kernel, memory: LaunchMemory) -> None:
        """A graph of cuDNN."""
        found = library_calls.call_of(self.plan, kernel, memory.sizes)
        scratch = int(self.scratch.ctypes.data) + schedule_of(kernel).scratch_at
        starts = {p.name: scratch if p.buffer < 0 else memory.arrays[p.buffer].ctypes.data for p in found.places}
        host_graph(found.description, {p.name: int(starts[p.name]) + p.offset for p in found.places})

    def exchange(self, kernel: Kernel, memory: LaunchMemory) -> None:
        """A rank that is alone has what it gave."""
        assert isinstance(kernel.body, Exchange)
        for source, to in zip(kernel.body.operands, kernel.body.results, strict=True):
            (count,) = memory.shape(source.shape)
            memory.arrays[to.buffer][:count] = memory.arrays[source.buffer][:count]

    def longest(self, loop: int) -> int:
        """A graph has as many launches as the longest loop; those behind the end of a shorter one do nothing."""
        return evaluate(self.plan.loops[loop].length, self.plan.sizes)

    def record(self, memory: LaunchMemory) -> Array:
        step = np.zeros(record_words(self.plan), np.uint64)
        write_record(step, self.plan, memory.sizes, memory.slots, (memory.seed % 2**64, memory.step, 0, 0))
        return step

    def launch(
        self,
        launch: Rendered,
        name: str,
        memory: LaunchMemory,
        step: Array,
        turn: int,
        orders: tuple[int, int],
        before: tuple[int, int] | None = None,
    ) -> None:
        def address(buffer: int) -> int:
            return int(memory.arrays[buffer].ctypes.data)

        scratch, counters = (int(a.ctypes.data) for a in (self.scratch, self.counters))
        values = launch.arguments(address, int(step.ctypes.data), scratch, counters, turn)
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        own = [schedule_of(k) for k, _ in launch.kernels]
        meets = any(s.chained or s.form not in (Form.ELEMENTS, Form.SCATTER, Form.LIBRARY) for s in own)
        given = 0 if before else launch.shared
        geometry = (ctypes.c_int * 7)(
            *(before or launch.grid), launch.threads, 2 if launch.together else meets, *orders, given
        )
        wrong = self.dll[f"run_{name}"](geometry, pointers)
        assert not wrong, f"{name}: {WRONG[wrong]}"


class EmulatedProgram(HostProgram):
    def __init__(self, plan: Plan, place: LoadContext, meanwhile: Callable[[], None] = do_nothing) -> None:
        super().__init__(plan, place, meanwhile)
        self._emulated = Emulated(plan)

    @property
    def source(self) -> str:
        return self._emulated.source.text

    def run(self, memory: LaunchMemory) -> None:
        self._emulated.run(memory)


@contextmanager
def emulated_device(name: str = "emulated", target: Target = TARGET) -> Iterator[None]:
    """A device of this name; its plans are those of an H200."""
    register(name, target, lambda target: HostDevice(target, EmulatedProgram))
    try:
        yield
    finally:
        unregister(name)
