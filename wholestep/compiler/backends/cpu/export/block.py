"""The layout of the memory block: the head, the arguments of each program, states, copies, staged rows, scratch.

Offsets assume pointers and `long` of 8 bytes, so that they are the same on 32-bit and 64-bit machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wholestep.compiler.backends.cpu.export.spec import ExportedStep
from wholestep.compiler.plan.memory.peak_memory import Segments, staging_bytes
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.compiler.plan.model.layout import align_up

WORD = 8
CALL_BYTES = 96  # room for `ws_call`


@dataclass(frozen=True)
class ProgramPlace:
    """Offsets of the arguments of one program, and of each of its buffers that is in the block."""

    call: int
    buffers: int
    sizes: int
    values: int
    derived: int
    of_buffer: Mapping[int, int]


@dataclass(frozen=True)
class Block:
    """Offsets in the block, in bytes."""

    head: int
    programs: Mapping[str, ProgramPlace]  # prefix of the C functions -> place
    states: Mapping[str, int]
    staging: Mapping[str, int]
    arena: int
    work: int
    work_bytes: int
    bytes: int


class _Cursor:
    """Allocates consecutive aligned ranges."""

    def __init__(self) -> None:
        self.end = 0

    def take(self, size: int) -> int:
        """The offset of a new range."""
        start, self.end = self.end, self.end + align_up(size)
        return start


def lay_out(step: ExportedStep) -> Block:
    """The offsets of everything that an exported step uses."""
    cursor = _Cursor()
    words = 8 + 1 + len(step.counts) + len(step.plans) + len(step.scalars) + 1 + len(step.inputs) + 1
    head = align_up(words * WORD)
    cursor.take(head)
    arguments = {prefix: _arguments(plan, cursor) for prefix, plan in step.plans.items()}
    states = {name: cursor.take(buffer.bytes) for name, buffer in step.states.items()}
    programs = {
        prefix: ProgramPlace(*arguments[prefix], _own_buffers(plan, states, cursor))
        for prefix, plan in step.plans.items()
    }
    staging = {name: cursor.take(size) for name, size in _staging_sizes(step).items()}
    segments = Segments()
    for plan in step.plans.values():
        segments = segments.grown(plan.arena_bytes, plan.work_bytes, 1)
    arena, work = cursor.take(segments.arena), cursor.take(segments.work)
    return Block(head, programs, states, staging, arena, work, segments.work, cursor.end)


def _arguments(plan: Plan, cursor: _Cursor) -> tuple[int, int, int, int, int]:
    sizes = (len(plan.pointer_buffers()), len(plan.symbols), len(plan.scalars), plan.slots)
    call = cursor.take(CALL_BYTES)
    buffers, dims, values, derived = (cursor.take(WORD * max(1, n)) for n in sizes)
    return call, buffers, dims, values, derived


def _own_buffers(plan: Plan, states: Mapping[str, int], cursor: _Cursor) -> dict[int, int]:
    """The offsets of a program's states, copies and outputs."""
    copies = cursor.take(plan.copy_bytes)
    offsets = {}
    for b in plan.buffers:
        if b.space is Space.STATE:
            offsets[b.id] = states[b.name]
        elif b.space is Space.COPY:
            offsets[b.id] = copies + b.offset
        elif b.space is Space.OUTPUT:
            offsets[b.id] = cursor.take(b.bytes)
    return offsets


def _staging_sizes(step: ExportedStep) -> dict[str, int]:
    """Bytes of the buffers into which a shuffled batch is gathered, for each input that training reads by rows."""
    sizes = dict[str, int]()
    for plan in step.entries["train"].plans if "train" in step.entries else ():
        for name, id in plan.inputs:
            if name in step.rows:
                sizes[name] = max(sizes.get(name, 0), staging_bytes(plan, plan.buffers[id]))
    return sizes
