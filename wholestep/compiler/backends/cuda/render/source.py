"""Plan -> one text of CUDA C++: every kernel once, however often it is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wholestep.compiler.backends.cuda.products import is_direct
from wholestep.compiler.backends.cuda.render.nests import render_columns, render_nest
from wholestep.compiler.backends.cuda.render.products import render_dot
from wholestep.compiler.backends.cuda.render.scatters import render_scatter
from wholestep.compiler.backends.cuda.render.windows import render_window
from wholestep.compiler.backends.cuda.render.writer import Writer
from wholestep.compiler.backends.cuda.scheduled import LIBRARY, schedule_of
from wholestep.compiler.plan.bodies import Dot
from wholestep.compiler.plan.kernel import Kernel, Kind, Plan

NATIVE = Path(__file__).parent.parent / "native"

KERNELS = "// ---- kernels"  # what stands before it is the same for every plan

RENDER: Mapping[Kind, Callable[[Writer], None]] = {
    Kind.NEST: render_nest,
    Kind.COLUMNS: render_columns,
    Kind.DOT: render_dot,
    Kind.SCATTER: render_scatter,
    Kind.WINDOW: render_window,
}


@dataclass(frozen=True)
class Rendered:
    """The function that a kernel is, and the buffers that it is given behind a step's record."""

    function: str
    buffers: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """The text of a plan, and what each of its kernels calls, in order."""

    text: str  # of the kernels alone
    kernels: tuple[Rendered, ...]

    @property
    def functions(self) -> list[str]:
        return list(dict.fromkeys(k.function for k in self.kernels if k.function))


@cache
def native(name: str) -> str:
    """A file of primitives."""
    return (NATIVE / name).read_text()


def render_kernel(plan: Plan, kernel: Kernel) -> tuple[Writer, str]:
    """The writer of a kernel and its text, under the name NAME."""
    writer = Writer(plan, kernel)
    RENDER[kernel.kind](writer)
    return writer, writer.function("NAME")


def is_plain_product(plan: Plan, kernel: Kernel) -> bool:
    """Does the library do all of it?"""
    return schedule_of(kernel).form == LIBRARY and isinstance(kernel.body, Dot) and is_direct(plan, kernel.body)


def render(plan: Plan, prefix: str = "k") -> Source:
    """Kernels in order; equal ones have one function, which has the number of the first."""
    names: dict[str, str] = {}
    texts, rendered = [], []
    for kernel in plan.kernels:
        if is_plain_product(plan, kernel):
            rendered.append(Rendered("", ()))  # the library's alone
            continue
        writer, text = render_kernel(plan, kernel)
        if text not in names:
            names[text] = f"{prefix}{kernel.id}"
            origin = " ".join(kernel.origin)
            texts.append(f"// {origin}\n{text.replace(' NAME(', f' {names[text]}(', 1)}")
        rendered.append(Rendered(names[text], tuple(b for b in writer.params if b not in writer.work)))
    return Source("\n\n".join(texts) + "\n", tuple(rendered))


def with_primitives(text: str, machine: str | None = None) -> str:
    """All that a compiler needs; `machine` is what stands for a GPU's own part."""
    primitives = [
        native("gpu.h") if machine is None else machine,
        native("device.h"),
        native("product.h"),
        native("window.h"),
    ]
    return "\n".join([*primitives, KERNELS, text])
