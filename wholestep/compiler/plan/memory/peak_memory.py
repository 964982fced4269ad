"""How many bytes a plan needs, by arithmetic alone: what is mapped when it is loaded equals these numbers."""

from __future__ import annotations

import mmap
from collections.abc import Collection

from wholestep.compiler.plan.model.kernel import Buffer, Layout, Plan, Space
from wholestep.compiler.plan.model.layout import align_up, layout_bytes
from wholestep.records import dataclass


def page_rounded(size: int) -> int:
    """`size` rounded up to whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


ADVICE = "Raise memory=, or lower batch_size."


@dataclass(frozen=True)
class Limit:
    """The most bytes that a step may take: a number, or a part of what it takes without a limit."""

    memory: int | float
    threads: int = 1  # of the session: each has a workspace
    beside: int = 0  # bytes that a session takes which are not of this plan

    def bytes_of(self, unlimited: int) -> int:
        """In bytes, of a step that takes so many without a limit."""
        return self.memory if isinstance(self.memory, int) else int(self.memory * unlimited)

    @property
    def key(self) -> str:
        """What stands for it in caches."""
        return f"memory={self.memory!r} threads={self.threads} beside={self.beside}"


@dataclass(frozen=True)
class Segments:
    """The scratch memory of a session: one arena, then one workspace per thread."""

    arena: int = 0
    work: int = 0  # of one thread
    threads: int = 0

    @property
    def total(self) -> int:
        return self.arena + self.work * self.threads

    def grown(self, arena: int, work: int, threads: int) -> Segments:
        """Segments that hold these and what they held before."""
        return Segments(max(self.arena, align_up(arena)), max(self.work, align_up(work)), max(self.threads, threads))


@dataclass(frozen=True)
class Footprint:
    """Where each byte of a loaded plan goes.  Three mappings of whole pages: the state, the scratch, the rest.

    Parts of states have one more.  The memory of a device has no pages: `page` is 1 there.
    """

    state: int
    arena: int
    workspace: int  # all threads
    copies: int  # second stored layouts of states
    outputs: int
    constants: int
    staging: int  # inputs that are gathered or converted
    parts: int = 0  # of states that ranks have divided among them: those of one rank
    records: int = 0  # what a device is told of a step, and what its kernels count
    page: int = mmap.PAGESIZE

    @property
    def scratch_mapped(self) -> int:
        return self.rounded(self.arena + self.workspace)

    @property
    def private_mapped(self) -> int:
        return self.rounded(self.copies + self.outputs + self.constants + self.staging + self.records)

    def rounded(self, size: int) -> int:
        """In whole pages."""
        return -(-size // self.page) * self.page

    @property
    def peak_bytes(self) -> int:
        """All of it, in whole pages."""
        return self.rounded(self.state) + self.rounded(self.parts) + self.scratch_mapped + self.private_mapped

    def rows(self) -> tuple[tuple[str, int], ...]:
        """Name and bytes of each part, then what rounding to whole pages adds."""
        shown = [(name, size) for name, size in vars(self).items() if name != "page" and (size or name != "parts")]
        return (*shown, ("page rounding", self.peak_bytes - sum(size for _, size in shown)))


def pages_of(plan: Plan, threads: int, states: Collection[str] | None = None) -> Footprint:
    """The bytes that a session maps on a CPU to run `plan` on `threads` threads, with these of its states alone."""
    scratch = Segments().grown(plan.arena_bytes, plan.work_bytes, threads)
    return Footprint(
        state=sum(align_up(b.bytes) for b in states_in(plan, states) if not b.is_part),
        parts=sum(align_up(b.bytes) for b in states_in(plan, states) if b.is_part),
        arena=scratch.arena,
        workspace=scratch.work * threads,
        copies=align_up(plan.copy_bytes),
        outputs=space_bytes(plan, Space.OUTPUT),
        constants=space_bytes(plan, Space.CONSTANT),
        staging=sum(staging_bytes(plan, b) for b in plan.buffers if b.space is Space.INPUT),
    )


def states_in(plan: Plan, names: Collection[str] | None) -> list[Buffer]:
    """Those of its states that are named; all of them where nothing is said."""
    return [b for b in plan.buffers if b.space is Space.STATE and (names is None or b.name in names)]


def space_bytes(plan: Plan, space: Space) -> int:
    """The bytes of all buffers of one space, each in whole multiples of the alignment."""
    return sum(align_up(b.bytes) for b in plan.buffers if b.space is space)


def staging_bytes(plan: Plan, buffer: Buffer) -> int:
    """The bytes of a place to gather or convert an input, as the caller lays it out."""
    return layout_bytes(buffer.type, Layout.ROWS, plan.sizes)
