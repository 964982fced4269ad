"""The compiled step of a run for a report: kernels with their roofline numbers, memory over the step, generated source.

A run stores its plans; layers, measured times and predictions need the run's script and are computed in `rebuild.py`.
The source of a kernel is rendered again from the plan, which is deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from wholestep.compiler.devices import target_named
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.io.report import describe_kernel, plan_report
from wholestep.compiler.plan.io.traffic import loads, price_kernel, stores
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Plan, Space
from wholestep.compiler.runtime.threads import default_threads
from wholestep.errors import OptionError, PlanError
from wholestep.session.inspect.estimate import memory_by_layer, memory_by_purpose
from wholestep.session.inspect.layers import OUTSIDE
from wholestep.train.checkpoint.format import PLANS

MOST_KERNELS = 2000  # kernels of a plan that a page lists
MOST_SOURCE = 1_000_000  # characters of generated code in a page, per plan
_CALL = re.compile(r"ws_k(\d+)\(call\b")


def plan_files(run: Path) -> list[Path]:
    """The plans that a run has stored."""
    return sorted((run / PLANS).glob("*.plan")) if run.is_dir() else []


def describe_plan_file(path: Path) -> dict[str, Any]:
    """The data that a page shows about a plan in a file; a `problem` if it cannot be read."""
    try:
        return describe_plan(serialize.load(path.read_bytes()))
    except (PlanError, OSError) as error:
        return {"problem": f"{path.name}: {error}"}


def describe_plan(plan: Plan) -> dict[str, Any]:
    """The data that a page shows about a plan."""
    threads = default_threads()
    report = plan_report(plan, threads)
    kernels = plan.kernels[:MOST_KERNELS]
    sources = source_by_kernel(plan)
    return {
        "target": plan.target,
        "sizes": dict(plan.sizes),
        "kind": "train" if plan.updated else "inference",
        "flops": report.flops,
        "bytes": report.bytes_moved,
        "peak": report.peak_bytes,
        "regions": plan.regions,
        "threads": threads,
        "left_out": len(plan.kernels) - len(kernels),
        "memory": {name: size for name, size in memory_by_purpose(plan, report).items() if size},
        "layers": memory_by_layer(plan),
        "timeline": list(arena_in_use(plan))[:MOST_KERNELS],
        "kernels": [{**_describe_kernel(k, plan), "source": sources.get(k.id)} for k in kernels],
    }


def arena_in_use(plan: Plan) -> Iterator[int]:
    """The bytes of the arena that are in use at each kernel: a buffer is in use from its first access to its last."""
    changes = [0] * (len(plan.kernels) + 1)
    for buffer in plan.buffers:
        if buffer.space is Space.ARENA:
            changes[buffer.first] += buffer.bytes
            changes[buffer.last + 1] -= buffer.bytes
    return accumulate(changes[:-1])


def _describe_kernel(kernel: Kernel, plan: Plan) -> dict[str, Any]:
    read = dict.fromkeys(load.buffer for load in loads(kernel))
    written = dict.fromkeys(load.buffer for load in stores(kernel))
    return {
        "id": kernel.id,
        "kind": kernel.kind.value,
        "name": describe_kernel(kernel, plan),
        "schedule": kernel.schedule.text.strip(),
        "flops": kernel.flops,
        "bytes": kernel.bytes,
        **_roofline(kernel, plan),
        "layer": _layer(kernel, plan, [*written, *read]),
        "reads": [_buffer_name(plan.buffers[b]) for b in read],
        "writes": [_buffer_name(plan.buffers[b]) for b in written],
    }


def _roofline(kernel: Kernel, plan: Plan) -> dict[str, Any]:
    """The time of one thread by the target's prices, and what bounds it; nothing for a target that is not installed."""
    try:
        costs = target_named(f"null:{plan.target}").costs
    except OptionError:
        return {}
    computing, moving = price_kernel(kernel, plan.buffers, costs)
    return {"seconds": 1e-9 * max(computing, moving), "bound": "flops" if computing > moving else "bytes"}


def _buffer_name(buffer: Buffer) -> str:
    return buffer.name or f"b{buffer.id}"


def _layer(kernel: Kernel, plan: Plan, buffers: list[int]) -> str:
    """The layer whose states a kernel writes, or else reads; plans do not store the layers of other kernels."""
    parameters = {plan.buffers[b].name for b in plan.param_buffers}
    for number in buffers:
        buffer = plan.buffers[number]
        source = plan.buffers[buffer.source] if buffer.source is not None else buffer
        owner = next((p for p in parameters if source.name == p or source.name.startswith(f"{p}.")), None)
        if source.space is Space.STATE and owner is not None:
            return owner.rpartition(".")[0] or owner
    return OUTSIDE


# -- source ----------------------------------------------------------------------------------------------------------


def source_by_kernel(plan: Plan) -> dict[int, str]:
    """The generated function of each kernel; empty if this process cannot render for the plan's backend."""
    family = plan.target.partition("/")[0]
    render = {"cpu": _c_functions, "cuda": _gpu_functions}.get(family)
    functions: Mapping[int, str] = {} if render is None else render(plan)
    total, shown = 0, {}
    for kernel, text in functions.items():
        total += len(text)
        if total <= MOST_SOURCE:
            shown[kernel] = text
    return shown


def _c_functions(plan: Plan) -> dict[int, str]:
    from wholestep.compiler.backends.cpu.render.source import source

    program = source(plan)
    texts = {int(match[1]): text for text in program.kernels if (match := re.search(r"\bws_k(\d+)\(", text))}
    calls = [int(call[1]) for call in _CALL.finditer(program.entry)]  # one per kernel; equal ones share a function
    return {k.id: texts[call] for k, call in zip(plan.kernels, calls, strict=False) if call in texts}


def _gpu_functions(plan: Plan) -> dict[int, str]:
    from wholestep.compiler.backends.gpu.render.source import render

    program = render(plan)
    parts = program.text.split('extern "C"')
    texts = {name: f'extern "C"{part}' for name in program.functions for part in parts[1:] if f" {name}(" in part[:400]}
    return {
        kernel.id: texts[launch.function]
        for launch in program.launches
        for kernel, _ in launch.kernels
        if launch.function in texts
    }
