"""State: the numbers that outlive a step, by name.  Those of modules are borrowed from their parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import TYPE_CHECKING

from wholestep.compiler.frontend.initializers import FirstValue
from wholestep.compiler.frontend.update_counters import RAW
from wholestep.compiler.ir.types import TensorType, shape_text, symbols_of
from wholestep.compiler.runtime.arrays import AnyArray, as_array, check_dtype
from wholestep.compiler.runtime.background import run_all
from wholestep.compiler.runtime.state.slot import Owner, Slot, SlotFamily, host_memory, relate
from wholestep.compiler.runtime.state.step_counters import Counting
from wholestep.compiler.runtime.state.storage import HostArray, StateMemory
from wholestep.compiler.runtime.threads import default_threads
from wholestep.errors import GraphError, ShapeError, UnknownNameError

if TYPE_CHECKING:
    from wholestep.compiler.runtime.state.partitioned_state import Parts
    from wholestep.compiler.runtime.state.state_pieces import StatePiece

MANY = 4 << 20  # bytes of states from which on their first values are worth a thread for each core
NOBODY: Mapping[str, Owner] = {}

First = Callable[[str], AnyArray | FirstValue | None]


class State(Counting):
    """name -> slot.  Every entry point of every session over a model reads and writes these same bytes.

    A State belongs to a module, graph or step and owns what is its own: moments, metrics, states that were declared by
    hand.  The slots of modules' parameters belong to these, under whatever name they are known here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[str, Slot] = {}
        self.family = SlotFamily(self)
        self.network: int | None = None  # which network of the process it is: see steps/networks.py

    def add(
        self,
        types: Mapping[str, TensorType],
        initial: First,
        owners: Mapping[str, Owner] = NOBODY,
        memory: StateMemory | None = None,
        by_columns: Container[str] = (),
    ) -> None:
        """Borrow what has numbers; make room in a memory for the rest, in one piece, and give it its first values.

        None stands for zeros, and for the host's memory.  `by_columns` are those that products read transposed.
        """
        memory = memory or host_memory()
        known = {name: slot for name in types if (slot := self._existing_slot(name, owners.get(name))) is not None}
        for name, slot in known.items():
            if slot.type != types[name]:
                raise GraphError(
                    f"the state {name!r} is {slot.type} in this model; received a program that has it as "
                    f"{types[name]}. Give one of them another name."
                )
            if slot.by_columns != (name in by_columns):
                raise GraphError(
                    f"the state {name!r} is stored {_storage(slot.by_columns)} in this model; received a program that "
                    f"has it stored {_storage(not slot.by_columns)}. Declare it alike, or under another name."
                )
            slot.on(memory)
        new = {name: type for name, type in types.items() if name not in known}
        made = self._make(new, initial, memory, by_columns)
        for name, slot in {**known, **made}.items():
            if self._slots.get(name) is not slot:
                self._bind(name, slot)
            if name in owners:
                owners[name].slot = slot
        self.family.version += bool(made)

    def _existing_slot(self, name: str, owner: Owner | None) -> Slot | None:
        """The slot that has the numbers already."""
        if owner is None or (owner.slot is None and owner.adopts):
            return self._slots.get(name)
        return owner.slot

    def _bind(self, name: str, slot: Slot) -> None:
        """A name stands for a slot from now on.  Where it stood for another, the moments beside that one go too."""
        if name in self._slots:
            self._slots = {n: s for n, s in self._slots.items() if not n.startswith(f"{name}.")}
            self.forget_updates(name)
        self._slots[name] = slot
        relate(self, slot)
        self.family.averages |= name.endswith(RAW)

    def _make(
        self, types: Mapping[str, TensorType], initial: First, memory: StateMemory, by_columns: Container[str]
    ) -> dict[str, Slot]:
        """New slots with their first values: the memory draws them, or NumPy those of several at a time."""
        for name, type in types.items():
            _need_fixed_size(name, type)
        if not types:
            return {}
        held = memory.hold(list(types.values()), [name in by_columns for name in types])
        made = {
            name: Slot(types[name], stored, memory.kind, self.family, name in by_columns)
            for name, stored in zip(types, held, strict=True)
        }

        def write(name: str, value: AnyArray | FirstValue) -> None:
            if isinstance(value, FirstValue) and isinstance(stored := made[name].newest, HostArray):
                stored.draw(value)
                return
            numbers = value.array() if isinstance(value, FirstValue) else value
            made[name].write(_check_value(made[name], numbers, name))

        firsts, waiting = {name: initial(name) for name in made}, []
        for name in sorted(made, key=lambda name: -_bytes(types[name])):
            first = firsts[name]  # None: the memory is as it should be
            is_drawn = isinstance(first, FirstValue) and memory.draw(made[name].newest, first)
            if first is not None and not is_drawn:
                waiting.append(partial(write, name, first))
        many = sum(map(_bytes, types.values())) >= MANY
        run_all(waiting, threads=default_threads() if many else 1)
        return made

    @property
    def version(self) -> int:
        """Changes whenever a number does, here or in a State that shares one; whoever writes past `set` changes it."""
        return self.family.version

    @version.setter
    def version(self, value: int) -> None:
        self.family.version = value

    @property
    def mapped_bytes(self) -> int:
        """The bytes of all memory that holds its states."""
        blocks = {id(block): block for slot in self._slots.values() for block in slot.blocks}
        return sum(block.size for block in blocks.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._slots)

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    def slot(self, name: str) -> Slot:
        """Where a state is stored; UnknownNameError where there is none of this name."""
        try:
            return self._slots[name]
        except KeyError:
            known = ", ".join(map(repr, self._slots)) or "none"
            raise UnknownNameError(f"there is no state named {name!r}; there are: {known}.") from None

    def is_divided(self, name: str) -> bool:
        """Has each of several processes a part of it?  Then all of them read it together."""
        return self._parts(name) is not None

    def piece(self, name: str) -> StatePiece | None:
        """What this process has of a state that several have divided; None where it has all of it."""
        found = self._parts(name)
        return None if found is None else found.piece()

    def _parts(self, name: str) -> Parts | None:
        from wholestep.compiler.runtime.state.partitioned_state import Parts  # most are alone

        return found if isinstance(found := self.slot(name).newest, Parts) and not found.all_here else None

    def get(self, name: str) -> AnyArray:
        """A copy of a state, as the user sees it: rows contiguous."""
        return self.slot(name).read()

    def set(self, name: str, value: object) -> None:
        """Replace a state's numbers."""
        self.slot(name).write(self.fit(name, value))

    def replace(self, name: str, value: object) -> None:
        """Give a weight other numbers; where its average is shown under the name, what is trained has them as well."""
        self.set(name, value)
        for state, own in self.averages_of(name):
            state.set(own + RAW, value)

    def averages_of(self, name: str) -> list[tuple[State, str]]:
        """The States in which this weight is the average of what is trained, and its name there."""
        slot = self.slot(name)
        states = [m for m in list(self.family.members) if isinstance(m, State)] if self.family.averages else []
        return [(s, own) for s in states for own in s._slots if s._slots[own] is slot and own + RAW in s]

    def fit(self, name: str, value: object) -> AnyArray:
        """`value` as an array of the state's dtype; an error where its shape or dtype does not fit.  Writes nothing."""
        return _check_value(self.slot(name), value, name)


def _check_value(slot: Slot, value: object, name: str) -> AnyArray:
    what = f"the state {name!r}"
    array = as_array(value, what)
    if array.shape != slot.type.shape:
        raise ShapeError(
            f"{what} has shape {shape_text(slot.type.shape)}; received {array.shape}. Reshape the array to it."
        )
    check_dtype(array, slot.type.dtype.numpy, what)
    return array.astype(slot.type.dtype.numpy, copy=False)


def _need_fixed_size(name: str, type: TensorType) -> None:
    symbols = sorted(symbols_of(type.shape))
    if symbols:
        raise GraphError(
            f"the state {name!r} has shape {shape_text(type.shape)}; a state outlives the step and needs a "
            f"fixed size. Replace {', '.join(map(repr, symbols))} by a number."
        )


def _storage(by_columns: bool) -> str:
    return "by columns (by_columns=True)" if by_columns else "by rows"


def _bytes(type: TensorType) -> int:
    return type.bytes({})
