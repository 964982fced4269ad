"""What tests plan and compile for, unless they say otherwise: this machine's CPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from wholestep.compiler.backends.cpu import schedule
from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.backends.cpu.runtime import compiler, library
from wholestep.compiler.backends.cpu.runtime.device import CpuDevice
from wholestep.compiler.backends.cpu.target import detect_target
from wholestep.compiler.devices import register, unregister
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.passes.egraph import optimize as egraph
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.plan.model.request import PlanRequest
from wholestep.compiler.runtime.cache.content_store import ContentStore
from wholestep.compiler.target import Target

HERE = detect_target()
COSTS = HERE.costs

optimize = partial(egraph.optimize, costs=COSTS)
compile_c = partial(compiler.compile_c, target=HERE.name)
load_library = partial(library.load_library, HERE.name)


def own_library(folder: Path, target: Target, part: str) -> library.Library:
    """A library with a part, apart from the process's own: loaded from the same file they would share a table."""
    cache, found = ContentStore(), compiler.find_compiler()
    own = library.Library(Path(shutil.copy(library.build_library(cache, found, target.name), folder)))
    library.add_part(own, part, library.build_library(cache, found, target.name, part))
    return own


def make_plan(
    graph: IRGraph, capacity: Mapping[str, int], *, target: Target = HERE, settings: Settings | None = None, **more: Any
) -> Plan:
    return schedule.make_plan(PlanRequest(graph, capacity, target, **more), settings)


@contextmanager
def cpu_with(**limits: int) -> Iterator[str]:
    """The name of a device that is this machine's CPU with other limits."""
    register("odd", replace(HERE, limits=replace(HERE.limits, **limits)), CpuDevice)
    try:
        yield "odd"
    finally:
        unregister("odd")
