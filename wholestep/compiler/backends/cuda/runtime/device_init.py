"""First values that a GPU draws: the numbers of `ir/semantics/random.py`, bit for bit, at the speed of its memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np

from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.driver import CudaModule, DeviceMemory
from wholestep.compiler.frontend.initializers import FirstValue
from wholestep.compiler.ir.semantics import random
from wholestep.compiler.ir.types import float32

LEAST = 1 << 18  # elements of a state: the host draws fewer in 10 ms, and needs no code for it
ROOM = 1 << 12  # elements of a state that the host may have to draw besides
# By how much two libraries' normal numbers may differ: of the number itself, and, by the cosine, of its radius.  Both
# are fifty times what theirs are off by; one number in half a million is so near to the middle of two floats.
RELATIVE, ABSOLUTE = 2.0**-44, 2.0**-50
THREADS, BLOCKS = 256, 1024


def draw(code: Callable[[], CudaModule], block: DeviceMemory, offset: int, first: FirstValue) -> bool:
    """Draw a first value at a place of a block; False where the host is to do it."""
    formula, count = first.formula, math.prod(first.shape)
    if formula is None or first.dtype != float32 or count < LEAST:
        return False
    noted = DeviceMemory(block.gpu, 8 * (1 + ROOM))  # how many, and which
    given = [
        ctypes.c_void_p(block.address + offset),
        ctypes.c_longlong(count),
        ctypes.c_ulonglong(first.seed % 2**64),
        ctypes.c_ulonglong(random.key_hash(first.key)),
        ctypes.c_int(formula.normal),
        *map(ctypes.c_double, (formula.lift, formula.scale, formula.shift, RELATIVE, ABSOLUTE)),
        ctypes.c_void_p(noted.address),
        ctypes.c_void_p(noted.address + 8),
        ctypes.c_int(ROOM),
    ]
    blocks = min(BLOCKS, -(-count // THREADS))

    def build(nodes: Nodes) -> None:
        nodes.kernel(code().function("ws_draw"), (blocks, 1), THREADS, given, [])

    CudaGraph(block.gpu, build).launch()
    found = np.empty(1 + ROOM, np.int64)
    noted.read(0, found)
    if found[0] > ROOM:
        return False
    for element in found[1 : 1 + found[0]].tolist():
        x = random.normal(first.seed, first.key, 0, (1,), element)
        block.write(offset + 4 * element, formula.of(x).astype(np.float32))
    return True
