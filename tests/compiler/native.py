"""Run a plan on NumPy arrays without a session: what the planner's and the renderer's tests need."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.compiler.targets import HERE
from tests.support import compilers
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.backends.cpu.runtime.compiler import compile_c, find_compiler
from wholestep.compiler.backends.cpu.runtime.library import NativeCall, add_part, build_library, load_library
from wholestep.compiler.backends.cpu.runtime.object_loader import parts_of
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.compiler.plan.model.layout import pack, unpack
from wholestep.compiler.runtime.cache.content_store import ContentStore
from wholestep.options import CompileOptions

Flat = np.ndarray[Any, Any]


def lower(graph: IRGraph, *, egraph: bool = True) -> IRGraph:
    """The graph that the planner gets: the pipeline's own stages, with both rewritings by the e-graph."""
    return Compiler(CompileOptions(egraph=egraph)).run_stages(graph, HERE)


QUICK = find_compiler(compilers.QUICK)
FENCE = 256  # bytes that nothing may write, between buffers and after the last


def fenced(plan: Plan) -> Plan:
    """The plan with every buffer of the arena and of a thread's workspace by itself, and fences between them."""
    ends = {Space.ARENA: 0, Space.WORK: 0}
    buffers = []
    for b in plan.buffers:
        if b.space in ends:
            b = replace(b, offset=ends[b.space])
            ends[b.space] += b.bytes + FENCE
        buffers.append(b)
    return replace(plan, buffers=tuple(buffers), arena_bytes=ends[Space.ARENA], work_bytes=ends[Space.WORK])


def assert_fences_stand(plan: Plan, shared: Mapping[Space, Flat], own: Mapping[int, Flat]) -> None:
    """No byte is written that belongs to no buffer."""
    for space, memory in shared.items():
        free = np.ones(memory.size, bool)
        each = plan.work_bytes if space is Space.WORK else memory.size
        for start in range(0, memory.size - FENCE + 1, max(each, 1)):
            for b in plan.buffers:
                if b.space is space:
                    free[start + b.offset : start + b.offset + b.bytes] = False
        assert (memory[free] == 255).all(), f"a kernel writes outside of every buffer of the {space.value}"
    for id, flat in own.items():
        assert (flat[plan.buffers[id].bytes :] == 255).all(), f"a kernel writes behind buffer {id}"


@dataclass
class Ran:
    outputs: dict[str, np.ndarray]
    state: dict[str, np.ndarray]


def memory_of(plan: Plan, inputs: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]) -> dict[int, Flat]:
    """Bytes for every buffer that a plan reads by address: inputs and states in their layout, others zero; fences."""
    memory, constants = {}, dict(plan.constants)
    for b in plan.pointer_buffers():
        flat = np.full(b.bytes + FENCE, 255, np.uint8)
        flat[: b.bytes] = 0
        source = {Space.STATE: state.get(b.name), Space.INPUT: inputs.get(b.name)}.get(b.space)
        if source is not None:
            raw = pack(np.asarray(source, b.type.dtype.numpy), b.layout).view(np.uint8)
            flat[: raw.size] = raw
        elif b.id in constants:
            flat[: len(constants[b.id])] = np.frombuffer(constants[b.id], np.uint8)
        memory[b.id] = flat
    return memory


def scalars_of(plan: Plan, step: int, scalars: Mapping[str, float] | None) -> list[float]:
    values = {s.name: s.default for s in plan.scalars} | {"step": float(step)} | dict(scalars or {})
    return [values[s.name] for s in plan.scalars]


def results_of(plan: Plan, memory: Mapping[int, Flat], sizes: Mapping[str, int]) -> Ran:
    def read(id: int) -> np.ndarray:
        b = plan.buffers[id]
        flat = memory[id][: b.bytes].view(b.type.dtype.numpy)
        return unpack(flat, [evaluate(e, sizes) for e in b.type.shape], b.layout)

    return Ran({n: read(i) for n, i in plan.outputs}, {n: read(i) for n, i in plan.states})


class Loaded:
    """A plan's compiled object; `prefix` picks one of several plans that share a file."""

    def __init__(self, plan: Plan, source: str | None = None, prefix: str = "ws") -> None:
        self.plan = plan
        self.dll = ctypes.CDLL(str(compile_c(source or render(plan), compiler=QUICK, target=plan.target)))
        self.prefix = prefix

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        sizes: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
        threads: int = 2,
        seed: int = 0,
        step: int = 0,
        times: int = 1,
    ) -> Ran:
        """What a step computes; done several `times`, what the last one of them does."""
        plan, library = self.plan, load_library(self.plan.target)
        for part in parts_of(plan):
            add_part(library, part, build_library(ContentStore(), find_compiler(), plan.target, part))
        memory = memory_of(plan, inputs, state)
        pointers = (ctypes.c_void_p * max(1, len(memory)))(*[m.ctypes.data for m in memory.values()])
        dims = (ctypes.c_long * max(1, len(plan.symbols)))(*[sizes[s] for s in plan.symbols])
        given = (ctypes.c_double * max(1, len(plan.scalars)))(*scalars_of(plan, step, scalars))
        derived = (ctypes.c_double * max(1, plan.slots))()
        arena = np.full(plan.arena_bytes + FENCE, 255, np.uint8)  # NaN: nothing may rely on what was there
        work = np.full(threads * plan.work_bytes + FENCE, 255, np.uint8)
        call = NativeCall(
            library.api,
            dims,
            pointers,
            arena.ctypes.data,
            work.ctypes.data,
            plan.work_bytes,
            given,
            derived,
            seed,
            step,
        )
        function = {n: getattr(self.dll, f"{self.prefix}_{n}") for n in ("prologue", "entry", "refresh")}
        function["refresh"](ctypes.byref(call))
        address = {n: ctypes.cast(f, ctypes.c_void_p).value for n, f in function.items()}
        for _ in range(times):
            library.run_step(address["prologue"], address["entry"], call, threads)
        assert_fences_stand(plan, {Space.ARENA: arena, Space.WORK: work}, memory)
        return results_of(plan, memory, sizes)


def run_plan(
    plan: Plan,
    inputs: Mapping[str, np.ndarray],
    state: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    **kw: object,
) -> Ran:
    return Loaded(plan).run(inputs, state, sizes, **kw)  # type: ignore[arg-type]
