"""Peak memory of a plan, computed without loading it.  Invariant: a session maps exactly these bytes."""

from __future__ import annotations

import mmap
from collections.abc import Collection

from wholestep.compiler.plan.model.kernel import Buffer, Layout, Plan, Space
from wholestep.compiler.plan.model.layout import align_up, layout_bytes
from wholestep.records import dataclass


def page_rounded(size: int) -> int:
    """`size` rounded up to a multiple of the page size."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


ADVICE = "Raise memory=, or lower batch_size."


@dataclass(frozen=True)
class Limit:
    """A memory budget of a step: bytes (int), or a fraction (float) of its peak memory without a limit."""

    memory: int | float
    threads: int = 1  # threads of the session, each with a workspace
    beside: int = 0  # bytes that the session holds outside of this plan

    def bytes_of(self, unlimited: int) -> int:
        """The budget in bytes, for a step that takes `unlimited` bytes without a limit."""
        return self.memory if isinstance(self.memory, int) else int(self.memory * unlimited)

    @property
    def key(self) -> str:
        """The key of the limit in caches."""
        return f"memory={self.memory!r} threads={self.threads} beside={self.beside}"


@dataclass(frozen=True)
class Segments:
    """The scratch memory of a session: one arena, then one workspace per thread."""

    arena: int = 0
    work: int = 0  # bytes of one thread's workspace
    threads: int = 0

    @property
    def total(self) -> int:
        return self.arena + self.work * self.threads

    def grown(self, arena: int, work: int, threads: int) -> Segments:
        """The segments enlarged to at least these sizes."""
        return Segments(max(self.arena, align_up(arena)), max(self.work, align_up(work)), max(self.threads, threads))


@dataclass(frozen=True)
class Footprint:
    """The bytes of a loaded plan by purpose.  There are three mappings, in multiples of pages: states, scratch,
    everything else.

    Partitioned states have a fourth mapping.  Device memory is not counted in pages: `page` is 1 there.
    """

    state: int
    arena: int
    workspace: int  # bytes of all threads' workspaces
    copies: int  # second stored layouts of states
    outputs: int
    constants: int
    staging: int  # buffers for inputs that are gathered or converted
    parts: int = 0  # one rank's parts of states that are partitioned among ranks
    records: int = 0  # bytes of launch parameters and of the kernels' counters on a device
    page: int = mmap.PAGESIZE

    @property
    def scratch_mapped(self) -> int:
        return self.round_to_pages(self.arena + self.workspace)

    @property
    def private_mapped(self) -> int:
        return self.round_to_pages(self.copies + self.outputs + self.constants + self.staging + self.records)

    def round_to_pages(self, size: int) -> int:
        """`size` rounded up to a multiple of the page size."""
        return -(-size // self.page) * self.page

    @property
    def peak_bytes(self) -> int:
        """The sum of all mappings."""
        states = self.round_to_pages(self.state) + self.round_to_pages(self.parts)
        return states + self.scratch_mapped + self.private_mapped

    def rows(self) -> tuple[tuple[str, int], ...]:
        """Name and bytes of each purpose, then the bytes that rounding to pages adds."""
        entries = [(name, size) for name, size in vars(self).items() if name != "page" and (size or name != "parts")]
        return (*entries, ("page rounding", self.peak_bytes - sum(size for _, size in entries)))


def host_footprint(plan: Plan, threads: int, states: Collection[str] | None = None) -> Footprint:
    """The bytes that a session maps on a CPU to run `plan` on `threads` threads, counting only these of its states."""
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
    """The state buffers with these names; all of them if `names` is None."""
    return [b for b in plan.buffers if b.space is Space.STATE and (names is None or b.name in names)]


def space_bytes(plan: Plan, space: Space) -> int:
    """The bytes of all buffers of one space, each rounded up to the alignment."""
    return sum(align_up(b.bytes) for b in plan.buffers if b.space is space)


def staging_bytes(plan: Plan, buffer: Buffer) -> int:
    """The bytes of the staging buffer of an input, in dense rows as the caller's array."""
    return layout_bytes(buffer.type, Layout.ROWS, plan.sizes)
