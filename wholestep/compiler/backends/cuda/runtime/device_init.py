"""Random initial values computed on the GPU: the numbers of `ir/semantics/random.py`, bit for bit."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np

from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.driver import CudaModule, DeviceMemory
from wholestep.compiler.frontend.initializers import InitialValue
from wholestep.compiler.ir.semantics import random
from wholestep.compiler.ir.types import float32

LEAST = 1 << 18  # elements of a state: the host computes fewer in 10 ms, and needs no compiled code
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
