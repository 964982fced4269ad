"""State: the tensors that outlive a step, by name.  Weights of modules are shared with their parameters' slots."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import TYPE_CHECKING

from wholestep.compiler.frontend.initializers import InitialValue
from wholestep.compiler.frontend.update_counters import RAW
from wholestep.compiler.ir.types import TensorType, shape_text, symbols_of
from wholestep.compiler.runtime.arrays import AnyArray, as_array, check_dtype
from wholestep.compiler.runtime.background import run_all
from wholestep.compiler.runtime.state.slot import Owner, Slot, SlotFamily, host_memory, merge_families
from wholestep.compiler.runtime.state.step_counters import Counting
from wholestep.compiler.runtime.state.storage import HostArray, StateMemory
from wholestep.compiler.runtime.threads import default_threads
from wholestep.errors import GraphError, ShapeError, UnknownNameError

if TYPE_CHECKING:
    from wholestep.compiler.runtime.state.partitioned_state import Parts
    from wholestep.compiler.runtime.state.state_pieces import StatePiece

MANY = 4 << 20  # bytes of states from which on initial values are drawn on one thread per core
NOBODY: Mapping[str, Owner] = {}

First = Callable[[str], AnyArray | InitialValue | None]


class State(Counting):
    """name -> slot.  All entry points of all sessions over a model read and write the same slots.

    A State belongs to a module, graph or step and owns moments, metrics and explicitly declared states.  The slots of
    modules' parameters belong to the parameters, under any name here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[str, Slot] = {}
        self.family = SlotFamily(self)
        self.network: int | None = None  # number of the network in the process: see steps/networks.py

    def add(
        self,
        types: Mapping[str, TensorType],
        initial: First,
        owners: Mapping[str, Owner] = NOBODY,
        memory: StateMemory | None = None,
        by_columns: Container[str] = (),
    ) -> None:
        """Add states: share slots that exist; allocate the other slots as one block of a memory, and initialise them.

        An initial value of None means zeros, a memory of None the host's.  `by_columns` are the states that products
        read transposed.
        """
        memory = memory or host_memory()
        existing = {name: slot for name in types if (slot := self._existing_slot(name, owners.get(name))) is not None}
        for name, slot in existing.items():
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
        new = {name: type for name, type in types.items() if name not in existing}
        created = self._make(new, initial, memory, by_columns)
        for name, slot in {**existing, **created}.items():
            if self._slots.get(name) is not slot:
                self._bind(name, slot)
            if name in owners:
                owners[name].slot = slot
        self.family.version += bool(created)

    def _existing_slot(self, name: str, owner: Owner | None) -> Slot | None:
        """The slot that already holds the values of this name or owner."""
        if owner is None or (owner.slot is None and owner.adopts):
            return self._slots.get(name)
        return owner.slot

    def _bind(self, name: str, slot: Slot) -> None:
        """Bind a name to a slot.  If it was bound to another one, the moments of that one are dropped too."""
        if name in self._slots:
            self._slots = {n: s for n, s in self._slots.items() if not n.startswith(f"{name}.")}
            self.forget_updates(name)
        self._slots[name] = slot
        merge_families(self, slot)
        self.family.averages |= name.endswith(RAW)

    def _make(
        self, types: Mapping[str, TensorType], initial: First, memory: StateMemory, by_columns: Container[str]
    ) -> dict[str, Slot]:
        """New slots with their initial values, drawn by the memory, or by NumPy on several threads."""
        for name, type in types.items():
            _need_fixed_size(name, type)
        if not types:
            return {}
        stored_states = memory.hold(list(types.values()), [name in by_columns for name in types])
        slots = {
            name: Slot(types[name], stored, memory.kind, self.family, name in by_columns)
            for name, stored in zip(types, stored_states, strict=True)
        }

        def write(name: str, value: AnyArray | InitialValue) -> None:
            if isinstance(value, InitialValue) and isinstance(stored := slots[name].newest, HostArray):
                stored.draw(value)
                return
            array = value.array() if isinstance(value, InitialValue) else value
            slots[name].write(_check_value(slots[name], array, name))

        initial_values, pending = {name: initial(name) for name in slots}, []
        for name in sorted(slots, key=lambda name: -_bytes(types[name])):
            first = initial_values[name]  # None: the slot keeps the zeros with which it was allocated
            is_drawn = isinstance(first, InitialValue) and memory.draw(slots[name].newest, first)
            if first is not None and not is_drawn:
                pending.append(partial(write, name, first))
        parallel = sum(map(_bytes, types.values())) >= MANY
        run_all(pending, threads=default_threads() if parallel else 1)
        return slots

    @property
    def version(self) -> int:
        """A number that changes with every write here or in a State that shares a slot; code that bypasses `set` must
        change it."""
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
        """The slot of a state; UnknownNameError if there is none of this name."""
        try:
            return self._slots[name]
        except KeyError:
            names = ", ".join(map(repr, self._slots)) or "none"
            raise UnknownNameError(f"there is no state named {name!r}; there are: {names}.") from None

    def is_divided(self, name: str) -> bool:
        """Is the state partitioned among processes?  Then all of them must read it together."""
        return self._parts(name) is not None

    def piece(self, name: str) -> StatePiece | None:
        """This process's part of a partitioned state; None if it has all of it."""
        parts = self._parts(name)
        return None if parts is None else parts.piece()

    def _parts(self, name: str) -> Parts | None:
        from wholestep.compiler.runtime.state.partitioned_state import (
            Parts,
        )  # imported here: most states are not partitioned

        return stored if isinstance(stored := self.slot(name).newest, Parts) and not stored.all_here else None

    def get(self, name: str) -> AnyArray:
        """A copy of a state, as the user sees it: rows contiguous."""
        return self.slot(name).read()

    def set(self, name: str, value: object) -> None:
        """Overwrite the values of a state."""
        self.slot(name).write(self.fit(name, value))

    def replace(self, name: str, value: object) -> None:
        """Overwrite a weight; if the name shows an average, overwrite the trained weight too."""
        self.set(name, value)
        for state, name_there in self.averages_of(name):
            state.set(name_there + RAW, value)

    def averages_of(self, name: str) -> list[tuple[State, str]]:
        """The States in which this weight is the average of a trained weight, and its name there."""
        slot = self.slot(name)
        states = [m for m in list(self.family.members) if isinstance(m, State)] if self.family.averages else []
        return [
            (s, name_there)
            for s in states
            for name_there in s._slots
            if s._slots[name_there] is slot and name_there + RAW in s
        ]

    def fit(self, name: str, value: object) -> AnyArray:
        """`value` as an array of the state's dtype; an error if its shape or dtype does not fit.  Writes nothing."""
        return _check_value(self.slot(name), value, name)


def _check_value(slot: Slot, value: object, name: str) -> AnyArray:
    subject = f"the state {name!r}"
    array = as_array(value, subject)
    if array.shape != slot.type.shape:
        raise ShapeError(
            f"{subject} has shape {shape_text(slot.type.shape)}; received {array.shape}. Reshape the array to it."
        )
    check_dtype(array, slot.type.dtype.numpy, subject)
    return array.astype(slot.type.dtype.numpy, copy=False)


def _need_fixed_size(name: str, type: TensorType) -> None:
    symbols = sorted(symbols_of(type.shape))
    if symbols:
        raise GraphError(
            f"the state {name!r} has shape {shape_text(type.shape)}; a state outlives the step and needs a "
            f"fixed size. Replace {', '.join(map(repr, symbols))} by an integer."
        )


def _storage(by_columns: bool) -> str:
    return "by columns (by_columns=True)" if by_columns else "by rows"


def _bytes(type: TensorType) -> int:
    return type.bytes({})
