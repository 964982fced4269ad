"""Where a program keeps what is its own on a GPU, and so how many bytes a plan needs there, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from wholestep.compiler.backends.gpu.schedule import COUNTERS
from wholestep.compiler.plan.memory.peak_memory import Footprint, states_in
from wholestep.compiler.plan.model.kernel import Buffer, Layout, Plan, Space
from wholestep.compiler.plan.model.layout import layout_bytes

ALIGNMENT = 256  # bytes: where a state, an input or an output begins
DIMS = 16  # of `ws_step` in native/device.h
HEAD = 4 + DIMS  # words before the slots
SMALL = 16 << 10  # bytes of an output that every launch brings back to the host


def align_size(size: int) -> int:
    """`size` in whole multiples of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def record_words(plan: Plan) -> int:
    """The 8-byte words of what a step is told."""
    return HEAD + max(1, plan.slots)


def is_small(buffer: Buffer) -> bool:
    """Does every launch bring it back?"""
    return buffer.space is Space.OUTPUT and buffer.bytes <= SMALL


@dataclass(frozen=True)
class OwnLayout:
    """Bytes of one allocation: a record, inputs, small outputs side by side, large ones, constants, second forms."""

    offsets: Mapping[int, int]  # by buffer
    given_end: int  # all that a launch copies to the GPU lies before it
    small: tuple[Buffer, ...]
    small_bytes: int  # from `given_end` on: what every launch brings back
    outputs_end: int
    constants_end: int
    end: int


def lay_out(plan: Plan) -> OwnLayout:
    """Place what is a program's alone."""
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
    whole = constants_end + align_size(plan.copy_bytes)
    return OwnLayout(offsets, given_end, small, small_bytes, outputs_end, constants_end, whole)


def _state_bytes(state: Buffer) -> int:
    return align_size(layout_bytes(state.held, Layout.ROWS, {}))


def footprint(plan: Plan, threads: int, states: Collection[str] | None = None) -> Footprint:
    """What a session allocates on a GPU to run a plan; the data of a run comes on top."""
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
