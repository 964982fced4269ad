"""Plan -> CUDA C++ source: one function per launch; identical launches share a function."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wholestep.compiler.backends.gpu.fusion.horizontal import may_share
from wholestep.compiler.backends.gpu.fusion.launches import by_launch, parts_of
from wholestep.compiler.backends.gpu.grids.gemm_library import is_direct
from wholestep.compiler.backends.gpu.grids.scatter import Preparation, preparations_of
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.backends.gpu.persistent.scan import PersistentScan, find_persistent_scan
from wholestep.compiler.backends.gpu.render.attention import render_call
from wholestep.compiler.backends.gpu.render.column_reduction import render_columns
from wholestep.compiler.backends.gpu.render.convolution.implicit_gemm import render_window
from wholestep.compiler.backends.gpu.render.elementwise import render_nest
from wholestep.compiler.backends.gpu.render.gemm import render_dot, render_medium_gemm
from wholestep.compiler.backends.gpu.render.horizontal_fusion import (
    KernelCall,
    device_function_of,
    group_equal_parts,
    launch_text,
)
from wholestep.compiler.backends.gpu.render.persistent_scan import render_persistent_scan
from wholestep.compiler.backends.gpu.render.row_fusion import render_row_chain
from wholestep.compiler.backends.gpu.render.scatter import render_scatter
from wholestep.compiler.backends.gpu.render.sorted_scatter import render_preparation
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.plan.io.report import origin_comment
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan

NATIVE = Path(__file__).parents[1] / "native"

MANY = 1 << 31  # blocks: no limit on co-resident blocks
GATHERING, GATHER_THREADS = "gathering", 256  # name and threads of the launch that also gathers the next step's rows
KERNELS = "// ---- kernels"  # separator: the text before it is the same for every plan

RENDER: Mapping[Kind, Callable[[GpuWriter], None]] = {
    Kind.NEST: render_nest,
    Kind.COLUMNS: render_columns,
    Kind.DOT: lambda w: render_medium_gemm(w) if w.schedule.form == Form.MEDIUM else render_dot(w),
    Kind.SCATTER: render_scatter,
    Kind.WINDOW: render_window,
    Kind.CALL: render_call,
}


Argument = ctypes.c_void_p | ctypes.c_int | ctypes.Array[ctypes.c_void_p]


@dataclass(frozen=True)
class Rendered:
    """A launch: its function, and its kernels, each with the buffers of its parameters."""

    function: str  # "" if a library computes the complete kernel
    kernels: tuple[tuple[Kernel, tuple[int, ...]], ...]
    shares: bool = False  # is the launch fused, so that buffers are passed in a table?
    gathers: int = 0  # blocks that meanwhile gather the rows of the next step
    before: tuple[tuple[str, Preparation], ...] = ()  # functions with the same arguments that run first, of a scatter
    shared: int = 0  # bytes of dynamic shared memory per block
    together: bool = False  # is the launch a persistent loop, whose blocks must be co-resident?

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks and chunks at capacity."""
        first = schedule_of(self.kernels[0][0])
        if self.together:
            return first.owns[2] * first.owns[3], 1
        if not self.shares:
            return first.blocks, first.chunks
        schedules = [schedule_of(k) for k, _ in self.kernels if schedule_of(k).chained <= 1]
        return sum(s.blocks * s.chunks for s in schedules) + self.gathers, 1

    @property
    def threads(self) -> int:
        return schedule_of(self.kernels[0][0]).threads

    def arguments(
        self, address: Callable[[int], int], step: int, scratch: int, counters: int, turn: int
    ) -> list[Argument]:
        """The kernel arguments, in the order of the function's parameters."""
        head: list[Argument] = [ctypes.c_void_p(step)]
        if self.together:
            first = schedule_of(self.kernels[0][0])
            barrier = ctypes.c_void_p(counters + 4 * (first.counters_at + first.sum_counters))
            table = [address(b) for _, buffers in self.kernels for b in buffers]
            return [*head, barrier, (ctypes.c_void_p * len(table))(*table)]
        if self.kernels[0][0].loop is not None:
            head.append(ctypes.c_int(turn))
        addresses: list[int] = []
        for kernel, buffers in self.kernels:
            schedule = schedule_of(kernel)
            if schedule.scratch:
                addresses += [scratch + schedule.scratch_at, counters + 4 * schedule.counters_at]
            addresses += map(address, buffers)
        if self.shares:
            return [*head, (ctypes.c_void_p * len(addresses))(*addresses)]
        return [*head, *map(ctypes.c_void_p, addresses)]


@dataclass(frozen=True)
class GpuSource:
    """The source text of a plan, and its launches in order."""

    text: str  # kernels only, without the native headers
    launches: tuple[Rendered, ...]

    @property
    def functions(self) -> list[str]:
        names = (n for launch in self.launches for n in (*(name for name, _ in launch.before), launch.function))
        return [name for name in dict.fromkeys(names) if name]


@cache
def native(name: str) -> str:
    """Text of a native header."""
    return (NATIVE / name).read_text(encoding="utf-8")


def write_kernel(plan: Plan, kernel: Kernel) -> GpuWriter:
    """The writer of a kernel, after all lines were emitted."""
    writer = GpuWriter(plan, kernel)
    (render_row_chain if schedule_of(kernel).chained else RENDER[kernel.kind])(writer)
    return writer


def is_plain_product(plan: Plan, kernel: Kernel) -> bool:
    """Is a kernel executed by a library alone?"""
    if schedule_of(kernel).form in (Form.GRAPH, Form.EXCHANGE):
        return True
    return schedule_of(kernel).form == Form.LIBRARY and isinstance(kernel.body, Dot) and is_direct(plan, kernel.body)


def render(plan: Plan, prefix: str = "k", together: int = MANY) -> GpuSource:
    """Renders launches in order; identical launches share a function, named after the first kernel.

    Args:
        together: blocks that can be co-resident.  A loop with more blocks gets one launch per kernel and step.
    """
    names: dict[str, str] = {}
    texts, rendered = [], []

    def define_function(text: str, name: str) -> str:
        if text and text not in names:
            names[text] = name
            texts.append(text.replace("NAME", name))
        return names.get(text, "")

    for launch in in_launches(plan, together):
        name, generated = f"{prefix}{launch[0].id}", [k for k in launch if not is_plain_product(plan, k)]
        if not generated:
            rendered.append(Rendered("", tuple((k, ()) for k in launch)))
        elif is_loop(launch, together):
            loop = find_persistent_scan(plan, launch)
            assert isinstance(loop, PersistentScan), "its schedules say so"
            loop_text = render_persistent_scan(plan, loop)
            kernels = tuple(zip(launch, loop_text.buffers, strict=True))
            persistent = Rendered(
                define_function(loop_text.text, name), kernels, shares=True, shared=loop.bytes, together=True
            )
            rendered.append(persistent)
        else:
            text, kernels = (
                fused_launch_text(plan, generated) if len(generated) > 1 else single_text(plan, generated[0])
            )
            before = tuple(
                (define_function(preparation_text(plan, generated[0], step), f"{name}_{step.step}{number}"), step)
                for number, step in enumerate(preparations(plan, generated[0]))
            )
            ahead = schedule_of(generated[0]).ahead
            rendered.append(
                Rendered(define_function(text, name), kernels, len(generated) > 1, before=before, shared=ahead)
            )
    return GpuSource("\n\n".join(texts) + "\n", tuple(rendered))


def is_loop(launch: Sequence[Kernel], together: int) -> bool:
    """Is a launch a persistent loop whose blocks can be co-resident?"""
    owns = schedule_of(launch[0]).owns
    return bool(owns) and owns[2] * owns[3] <= together


def in_launches(plan: Plan, together: int) -> Iterator[tuple[Kernel, ...]]:
    """The kernels of each launch."""
    for launch in by_launch(plan.kernels):
        if schedule_of(launch[0]).owns and not is_loop(launch, together):
            yield from ((k,) for k in launch)
        else:
            yield launch


Kernels = tuple[tuple[Kernel, tuple[int, ...]], ...]


def single_text(plan: Plan, kernel: Kernel) -> tuple[str, Kernels]:
    """Source of a kernel with its own launch, named NAME."""
    writer = write_kernel(plan, kernel)
    return f"{origin_comment(kernel)}\n{writer.function('NAME')}", ((kernel, writer.buffers),)


def preparations(plan: Plan, kernel: Kernel) -> tuple[Preparation, ...]:
    """The launches that must precede a kernel's own launch: the sorts of sorted scatters."""
    return preparations_of(plan, kernel) if schedule_of(kernel).form == Form.SCATTER_SORTED else ()


def preparation_text(plan: Plan, kernel: Kernel, step: Preparation) -> str:
    """Source of a preparing launch, named NAME."""
    writer = GpuWriter(plan, kernel)
    render_preparation(writer, step)
    return f"{origin_comment(kernel)}: {step.step}\n{writer.function('NAME')}"


def fused_launch_text(plan: Plan, kernels: Sequence[Kernel], gathers: int = 0) -> tuple[str, Kernels]:
    """Source of a fused launch; kernels with the most work per block come first."""
    names: dict[str, str] = {}
    texts, parts = [], []
    for part in sorted(parts_of(kernels), key=work_of_a_block, reverse=True):
        calls = []
        for kernel in part:
            body = device_function_of(write_kernel(plan, kernel))
            if body.text not in names:
                names[body.text] = f"NAME_{len(names)}"
                texts.append(f"{origin_comment(kernel)}\n{body.text.replace('NAME', names[body.text])}")
            calls.append(KernelCall(kernel, names[body.text], body))
        parts.append(tuple(calls))
    ordered = [part for run in group_equal_parts(parts) for part in run]
    text = "\n".join([*texts, launch_text(plan, "NAME", ordered, schedule_of(kernels[0]).threads, gathers)])
    return text, tuple((call.kernel, call.body.buffers) for part in ordered for call in part)


def gather_launch(plan: Plan, source: GpuSource, blocks: int) -> tuple[int, str, Rendered] | None:
    """The launch that also gathers the rows of the next step: its index, its source and its record.

    It is the launch with the fewest blocks; None if all launches are a library's or in loops.
    """
    candidates = [
        (launch.grid[0] * launch.grid[1], number)
        for number, launch in enumerate(source.launches)
        if launch.threads == GATHER_THREADS
        and all(k.loop is None and may_share(plan, k) for k, _ in launch.kernels)
        and launch.function
    ]
    if not candidates:
        return None
    number = min(candidates)[1]
    text, kernels = fused_launch_text(plan, [k for k, _ in source.launches[number].kernels], blocks)
    return number, text.replace("NAME", GATHERING), Rendered(GATHERING, kernels, shares=True, gathers=blocks)


def work_of_a_block(part: Sequence[Kernel]) -> float:
    """Estimated work per block, which orders the parts of a launch."""
    schedule = schedule_of(part[0])
    return sum(k.flops + k.bytes for k in part) / schedule.blocks / schedule.chunks


# Headers that the translation unit of every plan contains.
PRIMITIVES = (
    "device.h",
    "product.h",
    "gemm_medium.h",
    "window.h",
    "grouped.h",
    "attention.h",
    "attention_mma.h",
    "scatter.h",
    "persistent_scan.h",
)


def with_primitives(text: str, machine: str) -> str:
    """The complete translation unit; `machine` is the header of the vendor, such as `backends/cuda/native/ptx.h`."""
    return "\n".join([machine, *map(native, PRIMITIVES), KERNELS, text])
