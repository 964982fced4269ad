"""The limits of this machine: multiply-adds in registers, and in-place passes over memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from wholestep.compiler.backends.cpu.runtime.compiler import compile_c
from wholestep.compiler.backends.cpu.target import detect_target

SUMS, CHAINS, ROUNDS = 2_000_000, 96, 7  # chains: twelve registers of eight lanes, enough to hide the latency
STREAM_BYTES = 64 << 20
SOURCE = f"""
#define EXPORT __attribute__((visibility("default")))
EXPORT float multiply_add(long steps, float x, float y) {{
  float sum[{CHAINS}];
  for (int l = 0; l < {CHAINS}; l++) sum[l] = (float)l;
  for (long i = 0; i < steps; i++)
    for (int l = 0; l < {CHAINS}; l++) sum[l] = __builtin_fmaf(sum[l], x, y);
  float total = 0;
  for (int l = 0; l < {CHAINS}; l++) total += sum[l];
  return total;
}}
EXPORT void in_place(float *x, long count) {{
  for (long i = 0; i < count; i++) x[i] = x[i] * 0.5f + 1.0f;
}}
"""


@dataclass(frozen=True)
class Limits:
    """Limits per core and for all threads together, with which kernels are compared."""

    gflops_core: float
    gb_s: float


def measure(threads: int) -> Limits:
    """The best of several rounds, since a limit is a rate that was reached once."""
    code = ctypes.CDLL(str(compile_c(SOURCE, target=detect_target().name)))
    code.multiply_add.argtypes = (ctypes.c_long, ctypes.c_float, ctypes.c_float)
    code.multiply_add.restype = ctypes.c_float
    code.in_place.argtypes = (ctypes.c_void_p, ctypes.c_long)
    array = np.ones(STREAM_BYTES // 4, np.float32)
    part = len(array) // threads

    def stream() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda i: code.in_place(array.ctypes.data + 4 * part * i, part), range(threads)))

    flops = 2 * CHAINS * SUMS
    return Limits(
        gflops_core=flops / fastest(lambda: code.multiply_add(SUMS, 0.5, 1.0)) / 1e9,
        gb_s=2 * 4 * part * threads / fastest(stream) / 1e9,
    )


def fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
