"""Layout of a program's own allocation on a GPU, its step record, and a plan's memory footprint, all without a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wholestep.compiler.backends.gpu.kernel_schedule import COUNTERS
from wholestep.compiler.plan.memory.peak_memory import Footprint, states_in
from wholestep.compiler.plan.model.kernel import Buffer, Layout, Plan, Space
from wholestep.compiler.plan.model.layout import layout_bytes
from wholestep.compiler.runtime.arrays import AnyArray

ALIGNMENT = 256  # bytes; alignment of states, inputs and outputs
DIMS = 16  # symbolic dimensions of `ws_step` in native/device.h
HEAD = 4 + DIMS  # 8-byte words before the scalar slots
SMALL = 16 << 10  # bytes of an output that every launch copies to the host


def align_size(size: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def record_words(plan: Plan) -> int:
    """8-byte words of a step record."""
    return HEAD + max(1, plan.slots)


def write_record(
    record: AnyArray, plan: Plan, sizes: Mapping[str, int], slots: Sequence[float], head: Sequence[int]
) -> None:
    """Fills a `ws_step` record of 64-bit words: seed, step, position and rows, then sizes and scalar slots."""
    for i, word in enumerate(head):
        record[i] = word
    for i, symbol in enumerate(plan.symbols):
        record[4 + i] = sizes[symbol]
    if slots:
        record[HEAD : HEAD + len(slots)].view(np.float64)[:] = slots


def is_small(buffer: Buffer) -> bool:
    """Does every launch copy this output to the host?"""
    return buffer.space is Space.OUTPUT and buffer.bytes <= SMALL


@dataclass(frozen=True)
class OwnLayout:
    """Offsets in one allocation: a record, inputs, small outputs, large outputs, constants, half-precision copies."""

    offsets: Mapping[int, int]  # buffer -> offset in the allocation
    given_end: int  # end of the bytes that a launch copies to the GPU
    small: tuple[Buffer, ...]
    small_bytes: int  # bytes after `given_end` that every launch copies to the host
    outputs_end: int
    constants_end: int
    end: int


def lay_out(plan: Plan) -> OwnLayout:
    """Assigns the offsets."""
    offsets: dict[int, int] = {}
    end = align_size(8 * record_words(plan))

    def place(buffers: Sequence[Buffer]) -> int:
        nonlocal end
        for b in buffers:
            offsets[b.id] = end
            end += align_size(b.bytes)
        return end

    given_end = place([plan.buffers[id] for _, id in plan.inputs])
    outputs = [b for b in plan.buffers if b.space is Space.OUTPUT]
    small = tuple(b for b in outputs if is_small(b))
    small_bytes = place(small) - given_end
    outputs_end = place([b for b in outputs if not is_small(b)])
    constants_end = place([b for b in plan.buffers if b.space is Space.CONSTANT])
    offsets |= {b.id: constants_end + b.offset for b in plan.buffers if b.space is Space.COPY}
    end_of_copies = constants_end + align_size(plan.copy_bytes)
    return OwnLayout(offsets, given_end, small, small_bytes, outputs_end, constants_end, end_of_copies)


def _state_bytes(state: Buffer) -> int:
    return align_size(layout_bytes(state.part_type, Layout.ROWS, {}))


def footprint(plan: Plan, threads: int, states: Collection[str] | None = None) -> Footprint:
    """Bytes that a session allocates on a GPU to run a plan; a run's data set is additional."""
    own, records = lay_out(plan), align_size(8 * record_words(plan))
    return Footprint(
        state=sum(map(_state_bytes, (b for b in states_in(plan, states) if not b.is_part))),
        parts=sum(map(_state_bytes, (b for b in states_in(plan, states) if b.is_part))),
        arena=max(1, plan.arena_bytes),
        workspace=4 * COUNTERS,
        copies=own.end - own.constants_end,
        outputs=own.outputs_end - own.given_end,
        constants=own.constants_end - own.outputs_end,
        staging=own.given_end - records,
        records=records,
        page=1,
    )
