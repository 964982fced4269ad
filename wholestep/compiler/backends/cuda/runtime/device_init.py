"""State values computed on the GPU: random initial values, and copies of states in another type or layout.

Initial values are the numbers of `ir/semantics/random.py`, bit for bit.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.driver import CudaModule, DeviceMemory, Gpu
from wholestep.compiler.frontend.initializers import InitialValue
from wholestep.compiler.ir.semantics import random
from wholestep.compiler.ir.types import bfloat16, evaluate, float32
from wholestep.compiler.plan.model.kernel import Buffer, Plan, Space

if TYPE_CHECKING:
    from wholestep.compiler.backends.cuda.driver.memory import CudaArray

LEAST = 1 << 18  # elements of a state; fewer elements take the host 10 ms, without compiled code
ROOM = 1 << 12  # elements of a state that the host may have to recompute
# Bounds on the difference of two libraries' normal numbers: relative to the number, and, for the cosine, to its radius.
# Both are fifty times the libraries' errors; one number in half a million is that near to a rounding boundary.
RELATIVE, ABSOLUTE = 2.0**-44, 2.0**-50
THREADS, BLOCKS = 256, 1024


def draw(code: Callable[[], CudaModule], block: DeviceMemory, offset: int, first: InitialValue) -> bool:
    """Computes an initial value at an offset of a block; returns False if the host must do it."""
    formula, count = first.formula, math.prod(first.shape)
    if formula is None or first.dtype != float32 or count < LEAST:
        return False
    recorded = DeviceMemory(block.gpu, 8 * (1 + ROOM))  # the count, then the elements
    arguments = [
        ctypes.c_void_p(block.address + offset),
        ctypes.c_longlong(count),
        ctypes.c_ulonglong(first.seed % 2**64),
        ctypes.c_ulonglong(random.key_hash(first.key)),
        ctypes.c_int(formula.normal),
        *map(ctypes.c_double, (formula.lift, formula.scale, formula.shift, RELATIVE, ABSOLUTE)),
        ctypes.c_void_p(recorded.address),
        ctypes.c_void_p(recorded.address + 8),
        ctypes.c_int(ROOM),
    ]
    blocks = min(BLOCKS, -(-count // THREADS))

    def build(nodes: Nodes) -> None:
        nodes.kernel(code().function("ws_draw"), (blocks, 1), THREADS, arguments, [])

    CudaGraph(block.gpu, build).launch()
    uncertain = np.empty(1 + ROOM, np.int64)
    recorded.read(0, uncertain)
    if uncertain[0] > ROOM:
        return False
    for element in uncertain[1 : 1 + uncertain[0]].tolist():
        x = random.normal(first.seed, first.key, 0, (1,), element)
        block.write(offset + 4 * element, formula.of(x).astype(np.float32))
    return True


class HalfCopies:
    """Copies of states that one program reads, mostly in half precision.

    The program's own updates write them too.  After an external change of a state they are recomputed on the GPU.
    """

    def __init__(
        self, gpu: Gpu, plan: Plan, own: DeviceMemory, offsets: Mapping[int, int], states: Mapping[int, CudaArray]
    ) -> None:
        self._gpu, self._plan, self._own, self._offsets, self._states = gpu, plan, own, offsets, states
        copies = [b for b in plan.buffers if b.space is Space.COPY]
        self._rounded = [b for b in copies if self._is_rounded(b)]
        self._others = [b for b in copies if b not in self._rounded]
        self._graph: CudaGraph | None = None

    def _is_rounded(self, copy: Buffer) -> bool:
        """Is the copy a half-precision one in the state's own layout?"""
        source = self._plan.buffers[_source(copy)].type.dtype
        return source == float32 and copy.type.dtype.is_half and not copy.transposed

    def renew(self, code: Callable[[], CudaModule]) -> None:
        """Recomputes all copies from the current states."""
        if self._rounded:
            self._graph = self._graph or CudaGraph(
                self._gpu, lambda nodes: self._add(nodes, code().function("ws_round"))
            )
            self._graph.launch()
        for copy in self._others:
            state = self._states[_source(copy)].read()
            values = state.T if copy.transposed else state
            stored = np.zeros([evaluate(e, {}) for e in copy.type.shape], copy.type.dtype.numpy)
            stored[tuple(map(slice, values.shape))] = values
            self._own.write(self._offsets[copy.id], stored)

    def _add(self, nodes: Nodes, function: object) -> None:
        for copy in self._rounded:
            source = self._plan.buffers[_source(copy)].type
            count, row, pitch = (evaluate(e, {}) for e in (source.elements, source.shape[-1], copy.type.shape[-1]))
            arguments = [
                ctypes.c_void_p(self._states[_source(copy)].address),
                ctypes.c_void_p(self._own.address + self._offsets[copy.id]),
                *(ctypes.c_longlong(count), ctypes.c_int(row), ctypes.c_int(pitch)),
                ctypes.c_int(copy.type.dtype == bfloat16),
            ]
            nodes.kernel(function, (max(1, min(BLOCKS, -(-count // THREADS))), 1), THREADS, arguments, [])


def _source(copy: Buffer) -> int:
    assert copy.source is not None, "a copy has a source state"
    return copy.source
