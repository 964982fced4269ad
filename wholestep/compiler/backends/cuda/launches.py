"""What a step is on a GPU: its kernels in order, with their addresses, ready to be put into a stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from wholestep.compiler.backends.cuda.driver import Gpu, launch
from wholestep.compiler.backends.cuda.memory import COUNTERS
from wholestep.compiler.backends.cuda.render.source import Rendered, Source
from wholestep.compiler.backends.cuda.scheduled import schedule_of
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.kernel import Kernel, Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import PlanError

DIMS = 16  # of `ws_step` in native/device.h
HEAD = 2 + DIMS  # words before the slots


def record_words(plan: Plan) -> int:
    """The 8-byte words of what a step is told."""
    return HEAD + max(1, plan.slots)


def write_record(record: AnyArray, plan: Plan, sizes: Mapping[str, int], slots: AnyArray, seed: int, step: int) -> None:
    """Fill a record of `ws_step`: an array of 64-bit words."""
    record[0], record[1] = seed % 2**64, step
    for i, symbol in enumerate(plan.symbols):
        record[2 + i] = sizes[symbol]
    record[HEAD : HEAD + plan.slots] = slots.view(np.uint64)


@dataclass(frozen=True)
class Launches:
    """The kernels of a plan on a GPU."""

    gpu: Gpu
    plan: Plan
    source: Source
    functions: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.plan.symbols) > DIMS:
            raise PlanError(f"a plan for a GPU has at most {DIMS} symbolic sizes; received {len(self.plan.symbols)}.")
        most = max((schedule_of(k).blocks for k in self.plan.kernels if schedule_of(k).scratch), default=0)
        if most > COUNTERS:
            raise PlanError(f"a sum is cut for {most} blocks; at most {COUNTERS} can be counted.")

    def record(self, address: Callable[[int], int], step: int, scratch: int, counters: int) -> None:
        """Put one step into the stream: buffers are where `address` says, the record is at `step`."""
        pairs = zip(self.plan.kernels, self.source.kernels, strict=True)
        for loop, inside in groupby(pairs, key=lambda pair: pair[0].loop):
            kernels = list(inside)
            # A graph has as many launches as the longest loop; those behind the end of a shorter one do nothing.
            turns = [0] if loop is None else range(evaluate(self.plan.loops[loop].length, self.plan.sizes))
            for turn in turns:
                for kernel, rendered in kernels:
                    self._launch(kernel, rendered, address, step, scratch, counters, turn)

    def _launch(
        self,
        kernel: Kernel,
        rendered: Rendered,
        address: Callable[[int], int],
        step: int,
        scratch: int,
        counters: int,
        turn: int,
    ) -> None:
        schedule = schedule_of(kernel)
        arguments: list[Any] = [ctypes.c_void_p(step)]
        if kernel.loop is not None:
            arguments.append(ctypes.c_int(turn))
        if schedule.scratch:
            arguments += [ctypes.c_void_p(scratch), ctypes.c_void_p(counters)]
        arguments += [ctypes.c_void_p(address(b)) for b in rendered.buffers]
        function = self.functions[rendered.function]
        launch(self.gpu, function, (schedule.blocks, schedule.chunks), schedule.threads, arguments)

    @property
    def count(self) -> int:
        """Launches of one step."""
        turns = [
            1 if k.loop is None else evaluate(self.plan.loops[k.loop].length, self.plan.sizes)
            for k in self.plan.kernels
        ]
        return sum(turns)
