"""Copies of states in another type or layout that a program reads, mostly in half precision.

The program's own updates write them too.  After an external change of a state they are recomputed on the GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

import numpy as np

from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.driver import CudaModule, DeviceMemory, Gpu
from wholestep.compiler.backends.cuda.driver.memory import CudaArray
from wholestep.compiler.ir.types import bfloat16, evaluate, float32
from wholestep.compiler.plan.model.kernel import Buffer, Plan, Space

THREADS, BLOCKS = 256, 1024


class HalfCopies:
    """The copies of one program."""

    def __init__(
        self, gpu: Gpu, plan: Plan, own: DeviceMemory, offsets: Mapping[int, int], states: Mapping[int, CudaArray]
    ) -> None:
        self._gpu, self._plan, self._own, self._offsets, self._states = gpu, plan, own, offsets, states
        copies = [b for b in plan.buffers if b.space is Space.COPY]
        self._rounded = [b for b in copies if self._is_rounded(b)]
        self._others = [b for b in copies if b not in self._rounded]
        self._graph: CudaGraph | None = None

    def _is_rounded(self, copy: Buffer) -> bool:
        """Is it a half-precision copy in the state's own layout?"""
        return self._plan.buffers[_source(copy)].type.dtype == float32 and copy.type.dtype.is_half and not copy.turned

    def renew(self, code: Callable[[], CudaModule]) -> None:
        """Recomputes all copies from the current states."""
        if self._rounded:
            self._graph = self._graph or CudaGraph(
                self._gpu, lambda nodes: self._add(nodes, code().function("ws_round"))
            )
            self._graph.launch()
        for copy in self._others:
            state = self._states[_source(copy)].read()
            values = state.T if copy.turned else state
            self._own.write(self._offsets[copy.id], np.ascontiguousarray(values.astype(copy.type.dtype.numpy)))

    def _add(self, nodes: Nodes, function: object) -> None:
        for copy in self._rounded:
            count = evaluate(copy.type.elements, {})
            arguments = [
                ctypes.c_void_p(self._states[_source(copy)].address),
                ctypes.c_void_p(self._own.address + self._offsets[copy.id]),
                ctypes.c_longlong(count),
                ctypes.c_int(copy.type.dtype == bfloat16),
            ]
            nodes.kernel(function, (max(1, min(BLOCKS, -(-count // THREADS))), 1), THREADS, arguments, [])


def _source(copy: Buffer) -> int:
    assert copy.source is not None, "a copy has a source state"
    return copy.source
