"""Plan -> one text of CUDA C++: every launch once, however often it is made."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wholestep.compiler.backends.cuda.products import is_direct
from wholestep.compiler.backends.cuda.render.attention import render_call
from wholestep.compiler.backends.cuda.render.chains import render_chained
from wholestep.compiler.backends.cuda.render.columns import render_columns
from wholestep.compiler.backends.cuda.render.middle import render_middle
from wholestep.compiler.backends.cuda.render.nests import render_nest
from wholestep.compiler.backends.cuda.render.products import render_dot
from wholestep.compiler.backends.cuda.render.scatters import render_scatter, render_sorting
from wholestep.compiler.backends.cuda.render.shared import Called, body_of, in_runs, launch_text
from wholestep.compiler.backends.cuda.render.windows import render_window
from wholestep.compiler.backends.cuda.render.writer import Writer
from wholestep.compiler.backends.cuda.scheduled import EXCHANGE, GRAPH, LIBRARY, MIDDLE, SCATTER_SORTED, schedule_of
from wholestep.compiler.backends.cuda.sharing import by_launch, may_share, parts_of
from wholestep.compiler.plan.bodies import Dot
from wholestep.compiler.plan.kernel import Kernel, Kind, Plan

NATIVE = Path(__file__).parent.parent / "native"

GATHERING, GATHER_THREADS = "gathering", 256  # the function of a launch that gathers rows, and its threads
KERNELS = "// ---- kernels"  # what stands before it is the same for every plan

RENDER: Mapping[Kind, Callable[[Writer], None]] = {
    Kind.NEST: render_nest,
    Kind.COLUMNS: render_columns,
    Kind.DOT: lambda w: render_middle(w) if w.schedule.form == MIDDLE else render_dot(w),
    Kind.SCATTER: render_scatter,
    Kind.WINDOW: render_window,
    Kind.CALL: render_call,
}


Argument = ctypes.c_void_p | ctypes.c_int | ctypes.Array[ctypes.c_void_p]


@dataclass(frozen=True)
class Rendered:
    """A launch: its function, and the kernels that share it, each with the buffers that it is given."""

    function: str  # "": it is all a library's
    kernels: tuple[tuple[Kernel, tuple[int, ...]], ...]
    shares: bool = False  # are there several, which find their buffers in a table?
    gathers: int = 0  # blocks that gather the rows of the next step meanwhile
    before: str = ""  # a function of the same arguments that runs first: it sorts the indices of a scatter

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks at capacity, and chunks."""
        first = schedule_of(self.kernels[0][0])
        if not self.shares:
            return first.blocks, first.chunks
        own = [schedule_of(k) for k, _ in self.kernels if schedule_of(k).chained <= 1]
        return sum(s.blocks * s.chunks for s in own) + self.gathers, 1

    @property
    def threads(self) -> int:
        return schedule_of(self.kernels[0][0]).threads

    def arguments(
        self, address: Callable[[int], int], step: int, scratch: int, counters: int, turn: int
    ) -> list[Argument]:
        """What the function is given, as its text lists it."""
        head: list[Argument] = [ctypes.c_void_p(step)]
        if self.kernels[0][0].loop is not None:
            head.append(ctypes.c_int(turn))
        found: list[int] = []
        for kernel, buffers in self.kernels:
            own = schedule_of(kernel)
            if own.scratch:
                found += [scratch + own.scratch_at, counters + 4 * own.counters_at]
            found += map(address, buffers)
        if self.shares:
            return [*head, (ctypes.c_void_p * len(found))(*found)]
        return [*head, *map(ctypes.c_void_p, found)]


@dataclass(frozen=True)
class Source:
    """The text of a plan, and its launches in order."""

    text: str  # of the kernels alone
    launches: tuple[Rendered, ...]

    @property
    def functions(self) -> list[str]:
        names = (name for launch in self.launches for name in (launch.before, launch.function))
        return [name for name in dict.fromkeys(names) if name]


@cache
def native(name: str) -> str:
    """A file of primitives."""
    return (NATIVE / name).read_text()


def written(plan: Plan, kernel: Kernel) -> Writer:
    """The writer of a kernel, whose lines are written."""
    writer = Writer(plan, kernel)
    (render_chained if schedule_of(kernel).chained else RENDER[kernel.kind])(writer)
    return writer


def is_plain_product(plan: Plan, kernel: Kernel) -> bool:
    """Does a library do all of it?"""
    if schedule_of(kernel).form in (GRAPH, EXCHANGE):
        return True
    return schedule_of(kernel).form == LIBRARY and isinstance(kernel.body, Dot) and is_direct(plan, kernel.body)


def render(plan: Plan, prefix: str = "k") -> Source:
    """Launches in order; equal ones have one function, which has the number of the first kernel."""
    names: dict[str, str] = {}
    texts, rendered = [], []
    for launch in by_launch(plan.kernels):
        own = [k for k in launch if not is_plain_product(plan, k)]
        if not own:
            rendered.append(Rendered("", tuple((k, ()) for k in launch)))  # the library's alone
            continue
        text, kernels = shared_text(plan, own) if len(own) > 1 else single_text(plan, own[0])
        sorting = sorting_text(plan, own[0])
        for part, name in ((sorting, f"{prefix}{launch[0].id}_sort"), (text, f"{prefix}{launch[0].id}")):
            if part and part not in names:
                names[part] = name
                texts.append(part.replace("NAME", name))
        rendered.append(Rendered(names[text], kernels, len(own) > 1, before=names.get(sorting, "")))
    return Source("\n\n".join(texts) + "\n", tuple(rendered))


Kernels = tuple[tuple[Kernel, tuple[int, ...]], ...]


def single_text(plan: Plan, kernel: Kernel) -> tuple[str, Kernels]:
    """A kernel that has a launch for itself, under the name NAME."""
    writer = written(plan, kernel)
    buffers = tuple(b for b in writer.params if b not in writer.work)
    return f"// {' '.join(kernel.origin)}\n{writer.function('NAME')}", ((kernel, buffers),)


def sorting_text(plan: Plan, kernel: Kernel) -> str:
    """What runs before a scatter whose indices are sorted; "" for other kernels."""
    if schedule_of(kernel).form != SCATTER_SORTED:
        return ""
    writer = Writer(plan, kernel)
    render_sorting(writer)
    return f"// {' '.join(kernel.origin)}: indices\n{writer.function('NAME')}"


def shared_text(plan: Plan, kernels: Sequence[Kernel], gathers: int = 0) -> tuple[str, Kernels]:
    """Kernels that share a launch: those whose blocks have most to do have the first of them."""
    names: dict[str, str] = {}
    texts, parts = [], []
    for part in sorted(parts_of(kernels), key=work_of_a_block, reverse=True):
        calls = []
        for kernel in part:
            body = body_of(written(plan, kernel))
            if body.text not in names:
                names[body.text] = f"NAME_{len(names)}"
                texts.append(f"// {' '.join(kernel.origin)}\n{body.text.replace('NAME', names[body.text])}")
            calls.append(Called(kernel, names[body.text], body))
        parts.append(tuple(calls))
    ordered = [part for run in in_runs(parts) for part in run]
    text = "\n".join([*texts, launch_text("NAME", ordered, schedule_of(kernels[0]).threads, gathers)])
    return text, tuple((call.kernel, call.body.buffers) for part in ordered for call in part)


def gathering(plan: Plan, source: Source, blocks: int) -> tuple[int, str, Rendered] | None:
    """The launch of a step that also gathers the rows of the next one: its number, its text and what it is then.

    It is the one with the fewest blocks of its own; None where all are a library's, or in loops.
    """
    able = [
        (launch.grid[0] * launch.grid[1], number)
        for number, launch in enumerate(source.launches)
        if launch.threads == GATHER_THREADS
        and all(k.loop is None and may_share(plan, k) for k, _ in launch.kernels)
        and launch.function
    ]
    if not able:
        return None
    number = min(able)[1]
    launch = next(found for i, found in enumerate(by_launch(plan.kernels)) if i == number)
    text, kernels = shared_text(plan, launch, blocks)
    return number, text.replace("NAME", GATHERING), Rendered(GATHERING, kernels, shares=True, gathers=blocks)


def work_of_a_block(part: Sequence[Kernel]) -> float:
    """What orders parts of a launch."""
    own = schedule_of(part[0])
    return sum(k.flops + k.bytes for k in part) / own.blocks / own.chunks


def with_primitives(text: str, machine: str | None = None) -> str:
    """All that a compiler needs; `machine` is what stands for a GPU's own part."""
    primitives = [
        native("gpu.h") if machine is None else machine,
        native("device.h"),
        native("product.h"),
        native("middle.h"),
        native("window.h"),
        native("attention.h"),
    ]
    return "\n".join([*primitives, KERNELS, text])
