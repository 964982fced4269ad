"""Slots: the storage of one state, with a copy in the memory of each backend that uses it.

A slot belongs to a parameter of a module or to a State; other States share it.  Coherence is lazy: a slot knows which
copy is newest, and a program synchronises its copies before it runs if the family's version has changed.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Protocol
from weakref import WeakSet

from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state.storage import StateBlock, StateMemory, Stored

HOST = "wholestep.compiler.backends.cpu.layout.stored_layout"  # the module that defines MEMORY, the host's memory


class SlotMember(Protocol):
    """A member of a family: a slot, or a State with slots."""

    family: SlotFamily


class SlotFamily:
    """The States that share a slot, directly or through other States.

    `version` changes with every write to one of them, by any writer; programs that keep a second layout of a state
    compare it to detect stale copies.
    """

    __slots__ = ("averages", "members", "spread", "version")

    def __init__(self, first: SlotMember) -> None:
        self.version = 0
        self.spread = False  # do slots of this family have copies in several memories?
        self.averages = False  # do names of some trained weights now refer to the averaged weights?
        self.members: WeakSet[SlotMember] = WeakSet([first])

    def with_member(self, member: SlotMember) -> SlotFamily:
        """Add a member to this family, and return the family."""
        self.members.add(member)
        return self


def merge_families(one: SlotMember, other: SlotMember) -> None:
    """Merge two families; the result gets a version that neither has had."""
    larger, smaller = one.family, other.family
    if larger is smaller:
        return
    if len(larger.members) < len(smaller.members):
        larger, smaller = smaller, larger
    larger.version = max(larger.version, smaller.version) + 1
    larger.averages |= smaller.averages
    larger.spread |= smaller.spread
    for member in list(smaller.members):
        member.family = larger.with_member(member)


class Slot:
    """One state: its type and its values, in the memory of each backend that uses it.

    Before a program runs, it synchronises the copies that it uses if another writer has changed the state since.
    """

    def __init__(
        self, type: TensorType, stored: Stored, kind: str, family: SlotFamily | None = None, by_columns: bool = False
    ) -> None:
        self.type, self._stored, self._newest = type, {kind: stored}, kind
        self.by_columns = by_columns  # as declared; every memory derives its layout from this
        self.family = SlotFamily(self) if family is None else family.with_member(self)

    @property
    def blocks(self) -> list[StateBlock]:
        """The blocks of memory that hold its copies."""
        return [stored.block for stored in self._stored.values()]

    @property
    def newest(self) -> Stored:
        """The copy with the current values."""
        return self._stored[self._newest]

    def on(self, memory: StateMemory) -> Stored:
        """The copy in a memory, allocated on first use."""
        if memory.kind not in self._stored:
            (copy,) = memory.hold([self.type], [self.by_columns])
            copy.write(self.read())
            self._stored[memory.kind] = copy
            self.family.spread = True
        return self._stored[memory.kind]

    def sync_to(self, kind: str, changes: bool) -> None:
        """Synchronise the copy in the memory of the program that runs next; `changes`: the program writes it."""
        if self._newest != kind:
            self._stored[kind].write(self.read())
        if changes:
            self._newest = kind

    def move(self, memory: StateMemory) -> None:
        """Make the copy in another memory the current one."""
        if memory.kind in self._stored:
            self.sync_to(memory.kind, changes=True)
        else:
            self.on(memory)
            self._newest = memory.kind
        self.family.version += 1

    def read(self) -> AnyArray:
        """A copy, as the user sees it: rows contiguous."""
        return self.newest.read()

    def write(self, value: AnyArray) -> None:
        """Overwrite the state with an array of its shape and dtype."""
        self.newest.write(value)
        self.family.version += 1

    def __reduce__(self) -> tuple[object, ...]:
        """`copy.deepcopy` of a module: the copy of a slot has its own memory."""
        return _copy_slot, (self.type, self.read(), self.by_columns)


def _copy_slot(type: TensorType, value: AnyArray, by_columns: bool) -> Slot:
    memory = host_memory()
    (stored,) = memory.hold([type], [by_columns])
    slot = Slot(type, stored, memory.kind, by_columns=by_columns)
    slot.write(value)
    return slot


@cache
def host_memory() -> StateMemory:
    """The memory of states that no session uses yet: host memory in the CPU backend's layout."""
    memory: StateMemory = importlib.import_module(HOST).MEMORY
    return memory


class Owner(Protocol):
    """A parameter of a module: it owns one slot, which States share."""

    slot: Slot | None
    by_columns: bool
    adopts: bool  # was it created while a step was traced?  Then it takes over the step's slot of the same name
