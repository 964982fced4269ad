"""Where a state is stored.  A slot belongs to its owner, a parameter of a module or a State; others borrow it."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.layout import layout_bytes, pack, state_layout, unpack
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import Region


class Member(Protocol):
    """What belongs to a family: a slot, or a State with slots."""

    family: Family


class Family:
    """The States that share a slot, directly or through others.

    `version` changes whenever a number of one of them does: programs that keep a second layout of a state compare it,
    whoever wrote it.
    """

    __slots__ = ("averages", "members", "version")

    def __init__(self, first: Member) -> None:
        self.version = 0
        self.averages = False  # does one of them train weights whose averages are shown?
        self.members: WeakSet[Member] = WeakSet([first])

    def joined_by(self, member: Member) -> Family:
        """This family, with a new member."""
        self.members.add(member)
        return self


def relate(one: Member, other: Member) -> None:
    """Make one family of two; its version is one that neither has had."""
    kept, gone = one.family, other.family
    if kept is gone:
        return
    if len(kept.members) < len(gone.members):
        kept, gone = gone, kept
    kept.version = max(kept.version, gone.version) + 1
    kept.averages |= gone.averages
    for member in list(gone.members):
        member.family = kept.joined_by(member)


class Slot:
    """One state: its type and the flat array that stores it."""

    def __init__(self, type: TensorType, region: Region, offset: int = 0, family: Family | None = None) -> None:
        self.type, self.layout, self.region = type, state_layout(type), region
        self.stored: AnyArray = region.view(offset, slot_bytes(type) // type.dtype.size, type.dtype.numpy)
        self.family = Family(self) if family is None else family.joined_by(self)

    @property
    def address(self) -> int:
        return int(self.stored.ctypes.data)

    def read(self) -> AnyArray:
        """A copy, as the user sees it: rows contiguous."""
        return unpack(self.stored, self.type.shape, self.layout)

    def write(self, stored: AnyArray) -> None:
        """Take numbers in the slot's own layout."""
        self.stored[: stored.size] = stored
        self.family.version += 1

    def __reduce__(self) -> tuple[object, ...]:
        """A copy of a slot has memory of its own: what `copy.deepcopy` of a module makes."""
        return _copied, (self.type, self.read())


def _copied(type: TensorType, value: AnyArray) -> Slot:
    slot = Slot(type, Region(slot_bytes(type)))
    slot.write(pack(value, slot.layout))
    return slot


def slot_bytes(type: TensorType) -> int:
    """The bytes of a state of fixed size."""
    return layout_bytes(type, state_layout(type), {})


class Owner(Protocol):
    """A parameter of a module: its numbers are one slot, whichever States borrow it."""

    slot: Slot | None
    adopts: bool  # made while a step was recorded: it takes over the numbers that the step has under its name
