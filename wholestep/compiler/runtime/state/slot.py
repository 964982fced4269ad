"""Where a state is stored.  A slot belongs to its owner, a parameter of a module or a State; others borrow it."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Protocol
from weakref import WeakSet

from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state.storage import StateBlock, StateMemory, Stored

HOST = "wholestep.compiler.backends.cpu.layout.panels"  # the module whose MEMORY it is


class SlotMember(Protocol):
    """What belongs to a family: a slot, or a State with slots."""

    family: SlotFamily


class SlotFamily:
    """The States that share a slot, directly or through others.

    `version` changes whenever a number of one of them does: programs that keep a second layout of a state compare it,
    whoever wrote it.
    """

    __slots__ = ("averages", "members", "spread", "version")

    def __init__(self, first: SlotMember) -> None:
        self.version = 0
        self.spread = False  # has one of them numbers in several memories?
        self.averages = False  # does one of them train weights whose averages are shown?
        self.members: WeakSet[SlotMember] = WeakSet([first])

    def with_member(self, member: SlotMember) -> SlotFamily:
        """This family, with a new member."""
        self.members.add(member)
        return self


def relate(one: SlotMember, other: SlotMember) -> None:
    """Make one family of two; its version is one that neither has had."""
    kept, gone = one.family, other.family
    if kept is gone:
        return
    if len(kept.members) < len(gone.members):
        kept, gone = gone, kept
    kept.version = max(kept.version, gone.version) + 1
    kept.averages |= gone.averages
    kept.spread |= gone.spread
    for member in list(gone.members):
        member.family = kept.with_member(member)


class Slot:
    """One state: its type and its numbers, in the memory of each backend that has asked for them.

    A program brings the copies that it uses up to date before it runs, if somebody else has changed a number since.
    """

    def __init__(
        self, type: TensorType, stored: Stored, kind: str, family: SlotFamily | None = None, by_columns: bool = False
    ) -> None:
        self.type, self._stored, self._newest = type, {kind: stored}, kind
        self.by_columns = by_columns  # as it was declared: every memory follows from it how the state is stored
        self.family = SlotFamily(self) if family is None else family.with_member(self)

    @property
    def blocks(self) -> list[StateBlock]:
        """The pieces of memory that hold its numbers."""
        return [stored.block for stored in self._stored.values()]

    @property
    def newest(self) -> Stored:
        """The numbers as they are now."""
        return self._stored[self._newest]

    def on(self, memory: StateMemory) -> Stored:
        """Where programs of a memory's kind find the state; room is made there when it is first asked for."""
        if memory.kind not in self._stored:
            (made,) = memory.hold([self.type], [self.by_columns])
            made.write(self.read())
            self._stored[memory.kind] = made
            self.family.spread = True
        return self._stored[memory.kind]

    def bring(self, kind: str, changes: bool) -> None:
        """Bring the numbers up to date in the memory of a program that runs next and `changes` them, or not."""
        if self._newest != kind:
            self._stored[kind].write(self.read())
        if changes:
            self._newest = kind

    def move(self, memory: StateMemory) -> None:
        """From now on the numbers are those of another memory."""
        if memory.kind in self._stored:
            self.bring(memory.kind, changes=True)
        else:
            self.on(memory)
            self._newest = memory.kind
        self.family.version += 1

    def read(self) -> AnyArray:
        """A copy, as the user sees it: rows contiguous."""
        return self.newest.read()

    def write(self, value: AnyArray) -> None:
        """Take numbers of the state's shape and dtype."""
        self.newest.write(value)
        self.family.version += 1

    def __reduce__(self) -> tuple[object, ...]:
        """A copy of a slot has memory of its own: what `copy.deepcopy` of a module makes."""
        return _copy_slot, (self.type, self.read(), self.by_columns)


def _copy_slot(type: TensorType, value: AnyArray, by_columns: bool) -> Slot:
    memory = host_memory()
    (stored,) = memory.hold([type], [by_columns])
    slot = Slot(type, stored, memory.kind, by_columns=by_columns)
    slot.write(value)
    return slot


@cache
def host_memory() -> StateMemory:
    """Where numbers are that no session has asked for yet: this machine's own memory, as the CPU reads it."""
    memory: StateMemory = importlib.import_module(HOST).MEMORY
    return memory


class Owner(Protocol):
    """A parameter of a module: its numbers are one slot, whichever States borrow it."""

    slot: Slot | None
    by_columns: bool
    adopts: bool  # made while a step was recorded: it takes over the numbers that the step has under its name
